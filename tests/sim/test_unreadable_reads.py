"""Fetches of damaged bytes: the log has one error for each damaged place, and a metric counts the fetches."""

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.records import batch, read_all
from tests.sim.world import START_MS, World

from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode, Rejected

TOPIC = "t"
LOG = f"{TOPIC}-0/{0:020}.log"
COUNT = 9
FETCHES = 2000
MAGIC_AT = 16


async def fetch_code(client: Client, offset: int) -> ErrorCode:
    with pytest.raises(Rejected) as refused:
        await client.fetch(TOPIC, 0, offset, max_bytes=1)
    return refused.value.code


def errors(logged: list[Any]) -> list[tuple[str, str, str, int]]:
    return [
        (one["event"], one["partition"], one["reason"].partition(": a batch")[0], one["reads"])
        for one in logged
        if one["log_level"] == "error"
    ]


def test_2000_fetches_of_two_damaged_places_log_one_error_for_each() -> None:
    async def story() -> None:
        world = World(1)
        machine = Machine(world)
        client = await machine.restart()
        await client.create_topics([NewTopic(TOPIC, 1, configs={"index.interval.bytes": "0"})])
        data = batch([b"value"], START_MS)
        for _ in range(COUNT):
            await client.produce(TOPIC, 0, data)
        await machine.stop()
        client = await machine.restart()
        damaged = (3, 6)
        for number in damaged:
            world.disks["/data"].flip(LOG, number * len(data) + MAGIC_AT)
        with capture_logs() as logged:
            for number in damaged:
                for _ in range(FETCHES // 2):
                    assert await fetch_code(client, number) is ErrorCode.corrupt_message
        expected = [
            ("log unreadable", f"{TOPIC}-0", f"{LOG}: byte {number * len(data)}", 1)
            for number in damaged
        ]
        assert errors(logged) == expected
        with capture_logs() as logged:
            other = await machine.connect()
            await asyncio.gather(*(fetch_code(one, 3) for one in (client, other)))
        assert errors(logged) == []
        assert machine.partition(TOPIC).metrics.unreadable_reads == FETCHES + 2
        for number in set(range(COUNT)) - set(damaged):
            assert await read_all(client, TOPIC, number, number + 1, max_bytes=1) == {
                number: b"value"
            }
        await machine.stop()

    run(story())
