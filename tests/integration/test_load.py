"""Log lines through a real broker: each record has its line's time, also one far ahead or long ago."""

import asyncio

from load import create_topic, load, survey
from tests.broker_process import broker_process

from stratalog import read
from stratalog.adapters.network import TcpNetwork
from stratalog.client.aio import Client
from stratalog.client.idempotent import IdempotentPipeline

TIMES = {
    "17/May/2015:10:05:03 +0000": 1_431_857_103_000,
    "01/Jan/2090:00:00:00 +0000": 3_786_912_000_000,
    "31/Dec/9999:23:59:59 +0000": 253_402_300_799_000,
    "01/Jan/1970:00:00:00 +0000": 0,
}


def test_lines_dated_far_ahead_and_long_ago_are_taken_with_their_times(tmp_path):
    log = tmp_path / "log"
    log.write_text("".join(f'h - - [{time}] "GET / HTTP/1.1" 200 1\n' for time in TIMES))
    with broker_process(tmp_path) as broker:

        async def loaded() -> int:
            seen = survey([log], lambda _: None)
            async with await Client.connect(TcpNetwork(), broker.address) as client:
                await create_topic(client, "t", seen)
                async with IdempotentPipeline(client) as pipeline:
                    return await load(pipeline, "t", [log], seen, lambda _: None)

        assert asyncio.run(loaded()) == len(TIMES)
        rows = read("t", bootstrap_servers=broker.address, columns=["timestamp"]).read_all()
    assert [moment.value // 1000 for moment in rows["timestamp"]] == list(TIMES.values())
