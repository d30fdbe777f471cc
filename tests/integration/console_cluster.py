"""A broker with a bucket, filled, for the tests of the web console; and the tags of a page.

In: a place. Out: a broker whose topic `orders` is mostly in its bucket, hostile records, two groups.
"""

import asyncio
import json
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from tests.broker_process import BrokerProcess, broker_process

from stratalog.adapters.network import TcpNetwork
from stratalog.client.admin import commit_offsets
from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.wire.ids import TopicPartition
from stratalog.wire.records import BatchBuilder

RECORDS = 4_000
TIERED = {
    "segment.bytes": "1048576",
    "remote.storage.enable": "true",
    "local.retention.bytes": "1",
    "retention.ms": "3600000",
}
HOSTILE = (
    b"<script>document.title='owned'</script>",
    b'"><img src=x onerror=alert(1)>',
    b"\x00\xff\x80",
    "\u202ebackwards\u0007".encode(),
    b"",
    None,
    b"{{ 7 * 7 }}{% raw %}",
    b"x" * 10_000,
)
TIER_WAIT_S = 60


async def fill(address: str, now_ms: int) -> None:
    client = await Client.connect(TcpNetwork(), address)
    async with client:
        names = [
            NewTopic("orders", 2, 1, TIERED),
            NewTopic("hostile", 1, 1),
            NewTopic("empty", 1, 1),
            NewTopic("odd.json", 1, 1),
        ]
        assert not [one for one in await client.create_topics(names) if one.error]
        async with client.pipeline() as pipeline:
            for partition in range(2):
                for first in range(0, RECORDS, 200):
                    builder = BatchBuilder()
                    for number in range(first, first + 200):
                        value = json.dumps({"order": number, "padding": "." * 700}).encode()
                        builder.add(b"key-%d" % (number % 50), value, now_ms - RECORDS + number)
                    await pipeline.send("orders", partition, builder.build())
        builder = BatchBuilder()
        for value in HOSTILE:
            builder.add(b"<b>k</b>", value, now_ms, (("<i>h</i>", b"<u>v</u>"), ("n", None)))
        await client.produce("hostile", 0, builder.build())
        committed = {TopicPartition("orders", 0): 100, TopicPartition("orders", 1): RECORDS}
        for group in ("billing", "a/b <x>"):
            await client.on_coordinator(group, commit_offsets(group, committed))


def apart(work: Coroutine[Any, Any, None]) -> None:
    """Run it on a thread of its own: Playwright's loop may run on this one."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(work)).result()


@contextmanager
def filled_broker(place: Path) -> Iterator[BrokerProcess]:
    with broker_process(place) as started:
        apart(fill(started.address, int(time.time() * 1000)))
        deadline = time.monotonic() + TIER_WAIT_S
        data = started.data / "orders-0"
        while len(list(data.glob("*.log"))) > 1:
            assert time.monotonic() < deadline, sorted(data.iterdir())
            time.sleep(0.1)
        yield started


class Tags(HTMLParser):
    """The tags of a page with their attributes, and its addresses."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
