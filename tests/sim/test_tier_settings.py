"""The effects of the tier's settings, and that dynamic ones take effect without a restart.

Method: the real node in virtual time, with a tiered topic whose history is in the bucket alone.
"""

import asyncio
from typing import Final, TypeVar

from tests.sim.altering import alter, story
from tests.sim.machine import Machine
from tests.sim.raw import Raw, fetch_body, list_offsets_body, records_of
from tests.sim.records import batch, read_all
from tests.sim.world import START_MS

from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode
from stratalog.wire.messages import Request

R = TypeVar("R")

TIER_THREADS: Final = {
    "remote.log.manager.copier.thread.pool.size": "tier-copy /data",
    "remote.log.manager.expiration.thread.pool.size": "tier-expire",
    "remote.log.reader.threads": "tier-read",
}
URL: Final = "memory://bucket"


class History:
    """A tiered topic that grows: all but its newest records are in the bucket only."""

    def __init__(self, machine: Machine, client: Client) -> None:
        self.machine = machine
        self.client = client
        self.written: dict[int, bytes] = {}

    @classmethod
    async def begin(cls, machine: Machine, client: Client) -> "History":
        tiered = {
            "remote.storage.enable": "true",
            "segment.ms": "1000",
            "local.retention.bytes": "1",
            "retention.ms": "-1",
        }
        await client.create_topics([NewTopic("tiered", 1, configs=tiered)])
        return cls(machine, client)

    @property
    def in_bucket(self) -> int:
        return self.machine.partition("tiered").log.tiered_end

    async def grow(self) -> None:
        for number in range(len(self.written), len(self.written) + 5):
            made = batch([b"%d" % number], START_MS + number * 1100)
            await self.client.produce("tiered", 0, made)
            self.written[number] = b"%d" % number
        await asyncio.sleep(60)

    async def check(self) -> None:
        assert self.in_bucket >= len(self.written) - 2
        assert await read_all(self.client, "tiered", 0, len(self.written)) == self.written

    async def ask(self, version: int, body: Request[R]) -> R:
        raw = await Raw.connect(self.machine.world.network)
        try:
            return await raw.ask(version, body)
        finally:
            raw.close()

    async def has_beginning(self) -> bool:
        """Whether a fetch of the oldest record, which looks once, brings it from the bucket."""
        self.machine.partition("tiered").log.tail.clear()
        body = fetch_body([("tiered", 0, 0)], max_wait_ms=0)
        return len(records_of((await self.ask(12, body)).responses[0].partitions[0])) > 0


def test_replicas_skip_the_bucket_as_set_at_work() -> None:
    async def tell(machine: Machine, client: Client) -> None:
        skips = machine.broker.replication.followed._around.skips_tiered
        for text, expected in (("false", False), (None, True)):
            await alter(client, "follower.fetch.last.tiered.offset.enable", text)
            assert skips() is expected

    story(tell)


def test_threads_of_the_tier_change_at_work() -> None:
    async def tell(machine: Machine, client: Client) -> None:
        history = await History.begin(machine, client)
        await history.grow()
        await history.check()
        for threads, (name, worker) in enumerate(TIER_THREADS.items(), 11):
            await alter(client, name, str(threads))
            await history.grow()
            await history.check()
            assert machine.workers_started[-1] == (worker, threads, True)
        for name, _, in_background in machine.workers_started:
            assert in_background == name.startswith("tier-"), name

    story(tell, {"tier.url": URL})


def test_rates_of_the_tier_change_at_work() -> None:
    async def tell(machine: Machine, client: Client) -> None:
        history = await History.begin(machine, client)
        await history.grow()
        await history.check()
        await alter(client, "remote.log.manager.copy.max.bytes.per.second", "1")
        before = history.in_bucket
        await history.grow()
        assert history.in_bucket < before + 3
        await alter(client, "remote.log.manager.copy.max.bytes.per.second", None)
        await history.grow()
        await asyncio.sleep(600)  # whose turn was given waits for it
        await history.check()
        await alter(client, "remote.log.manager.fetch.max.bytes.per.second", "1")
        assert await history.has_beginning(), "what is over the rate is paid for afterwards"
        assert not await history.has_beginning()
        await alter(client, "remote.log.manager.fetch.max.bytes.per.second", None)
        await history.check()

    story(tell, {"tier.url": URL, "tier.cache.bytes": "0"})


def test_waits_for_the_tier_change_at_work() -> None:
    async def tell(machine: Machine, client: Client) -> None:
        history = await History.begin(machine, client)
        await history.grow()
        await history.check()
        machine.be_slow(1.0)
        by_time = list_offsets_body("tiered", START_MS)
        for wait_ms, waits in ((1, False), (5000, True)):
            await alter(client, "remote.fetch.max.wait.ms", str(wait_ms))
            assert await history.has_beginning() == waits
            await alter(client, "remote.list.offsets.request.timeout.ms", str(wait_ms))
            found = (await history.ask(10, by_time)).topics[0].partitions[0]
            assert found.error_code == (ErrorCode.none if waits else ErrorCode.request_timed_out)

    story(tell, {"tier.url": URL, "tier.cache.bytes": "0"})
