"""Goal: fetches that wait together for one append get the same answers as each would get alone.

Method: many fetches wait at one partition's tail in several versions, with and without sessions, with different limits.
Each answer is compared with that of a lone fetch, in virtual time.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace
from tests.sim.disk import SimDisk
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw, fetch_body, records_of
from tests.sim.world import World

from stratalog.client.calls import NewTopic
from stratalog.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from stratalog.wire.records import Record, build_batch

FETCH = 1
MAX_WAIT_MS = 500
LARGE, SMALL = b"L" * 9000, b"s" * 300
LARGE_AND_SMALL = 9200


def story(tell: Callable[[Machine, Any], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        machine = Machine(World(7))
        await machine.start()
        client = await machine.connect()
        await client.create_topics([NewTopic("events", partitions=1, configs={})])
        async with asyncio.timeout(60):
            await tell(machine, client)
        assert machine.broken_tasks == []
        broker = machine.node.broker
        assert broker is not None
        assert len(broker.purgatory) == 0, "the purgatory still holds an ended fetch"
        await machine.stop()

    run(whole())


def body(version: int, topic_id: Any, offset: int, **limits: Any) -> FetchRequest:
    limits = {"max_wait_ms": MAX_WAIT_MS, **limits}
    wanted = topic_id if version >= 13 else "events"
    return fetch_body([(wanted, 0, offset)], **limits)


def records(answer: FetchResponse) -> list[bytes]:
    return [records_of(one) for topic in answer.responses for one in topic.partitions]


async def send(client: Any, value: bytes) -> None:
    await client.produce("events", 0, build_batch([Record(0, 1_700_000_000_000, None, value)]))


async def topic_id_of(client: Any) -> Any:
    return (await client.metadata(["events"])).topics["events"].topic_id


CROWD: list[tuple[int, dict[str, int]]] = [
    (version, {"min_bytes": LARGE_AND_SMALL, **limits})
    for version in (4, 11, 12, 16)
    for limits in ({}, {}, {"partition_max_bytes": 1}, {"max_bytes": 9200})
]


def test_waiting_fetches_get_the_answers_of_lone_ones() -> None:
    async def tell(machine: Machine, client: Any) -> None:
        topic_id = await topic_id_of(client)
        raws = [await Raw.connect(machine.world.network) for _ in CROWD]
        asked = [
            raw.ask(version, body(version, topic_id, 0, **limits))
            for raw, (version, limits) in zip(raws, CROWD, strict=True)
        ]
        await asyncio.sleep(0.1)
        assert not any(one.done() for one in asked)
        await asyncio.gather(send(client, LARGE), send(client, SMALL))
        answers = await asyncio.gather(*asked)
        alone = await Raw.connect(machine.world.network)
        for answer, (version, limits) in zip(answers, CROWD, strict=True):
            same = await alone.ask(version, body(version, topic_id, 0, **limits, max_wait_ms=0))
            assert records(answer) == records(same) != [b""]
        assert len({tuple(records(answer)) for answer in answers}) == 2, (
            "each fetch keeps its limits"
        )

    story(tell)


def test_a_fetch_that_needs_more_bytes_waits_up_to_its_limit() -> None:
    async def tell(machine: Machine, client: Any) -> None:
        loop = asyncio.get_running_loop()
        topic_id = await topic_id_of(client)
        patient, other = [await Raw.connect(machine.world.network) for _ in range(2)]
        begun = loop.time()
        waits = patient.ask(16, body(16, topic_id, 0, min_bytes=100_000))
        gets = other.ask(16, body(16, topic_id, 0))
        await asyncio.sleep(0.1)
        await send(client, SMALL)
        assert records(await gets) != [b""]
        assert not waits.done()
        assert records(await waits) == records(await gets)
        assert 0 <= loop.time() - begun - MAX_WAIT_MS / 1000 < 0.05

    story(tell)


def test_waiting_fetches_keep_separate_sessions() -> None:
    async def tell(machine: Machine, client: Any) -> None:
        topic_id = await topic_id_of(client)
        await send(client, SMALL)
        raws = [await Raw.connect(machine.world.network) for _ in range(5)]
        begin = replace(body(16, topic_id, 1, max_wait_ms=0), session_epoch=0)
        ids = [(await raw.ask(16, begin)).session_id for raw in raws]
        assert len(set(ids)) == len(raws)
        nothing = replace(body(16, topic_id, 1), topics=[])
        for epoch in (1, 2):
            asked = [
                raw.ask(16, replace(nothing, session_id=one, session_epoch=epoch))
                for raw, one in zip(raws, ids, strict=True)
            ]
            await asyncio.sleep(0.1)
            await send(client, SMALL)
            answers = await asyncio.gather(*asked)
            assert [answer.session_id for answer in answers] == ids
            assert len({tuple(records(answer)) for answer in answers}) == 1
            assert all(records(answer) != [b""] for answer in answers)

    story(tell)


def read_from_the_drive(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each read of a log take two seconds."""
    assert machine.node.broker is not None
    for hosted in machine.node.broker.hosting.all():
        hosted.log.tail.clear()
    monkeypatch.setattr(SimDisk, "try_read", lambda *_: None)
    machine.take_ms(2000)


def reads_under_way() -> int:
    return sum(one.get_coro().__name__ == "_read" for one in asyncio.all_tasks())  # type: ignore[union-attr]


def test_a_fetch_reads_all_its_partitions_from_the_drive_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def tell(machine: Machine, client: Any) -> None:
        await client.create_topics([NewTopic("cold", partitions=5, configs={})])
        for partition in range(5):
            made = build_batch([Record(0, 1_700_000_000_000, None, SMALL)])
            await client.produce("cold", partition, made)
        raw = await Raw.connect(machine.world.network)
        read_from_the_drive(machine, monkeypatch)
        begun = asyncio.get_running_loop().time()
        answer = await raw.ask(
            11, fetch_body([("cold", at, 0) for at in range(5)], max_bytes=8 << 20)
        )
        assert all(records(answer))
        assert len(records(answer)) == 5
        assert asyncio.get_running_loop().time() - begun < 2.1

    story(tell)


def test_a_client_that_hangs_up_ends_each_of_its_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    async def tell(machine: Machine, client: Any) -> None:
        await client.create_topics([NewTopic("cold", partitions=3, configs={})])
        for partition in range(3):
            made = build_batch([Record(0, 1_700_000_000_000, None, SMALL)])
            await client.produce("cold", partition, made)
        raw = await Raw.connect(machine.world.network)
        read_from_the_drive(machine, monkeypatch)
        asked = raw.ask(11, fetch_body([("cold", at, 0) for at in range(3)], max_bytes=8 << 20))
        await asyncio.sleep(0.1)
        assert reads_under_way() == 3
        raw.close()
        await asyncio.sleep(0.1)
        assert reads_under_way() == 0
        assert asked.cancelled()

    story(tell)


def test_a_client_that_hangs_up_ends_the_reads_behind_its_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def tell(machine: Machine, client: Any) -> None:
        await send(client, SMALL)
        raw = await Raw.connect(machine.world.network)
        read_from_the_drive(machine, monkeypatch)
        asked = raw.ask(11, body(11, None, 0, min_bytes=100_000))
        await asyncio.sleep(2.2)
        assert reads_under_way() == 0, "it waits for more"
        await asyncio.sleep(0.5)
        assert reads_under_way() == 1, "it looks once more"
        raw.close()
        await asyncio.sleep(0.1)
        assert reads_under_way() == 0
        assert asked.cancelled()

    story(tell)


def test_a_client_that_hangs_up_while_waiting_is_forgotten() -> None:
    async def tell(machine: Machine, client: Any) -> None:
        topic_id = await topic_id_of(client)
        raws = [await Raw.connect(machine.world.network) for _ in range(3)]
        asked = [raw.ask(16, body(16, topic_id, 0, max_wait_ms=2**31 - 1)) for raw in raws]
        await asyncio.sleep(0.1)
        for raw in raws[:2]:
            raw.close()
        await asyncio.sleep(0.1)
        assert machine.node.broker is not None
        assert len(machine.node.broker.purgatory) == 1
        await send(client, SMALL)
        assert records(await asked[2]) != [b""]

    story(tell)


@pytest.mark.parametrize("topics", [1, 5000])
def test_a_large_fetch_names_its_partitions_in_slices(
    topics: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other connections get turns before the session begins, and the answer has each partition once."""
    count = 5000
    partitions = [
        FetchPartition(partition=one, fetch_offset=0, partition_max_bytes=1)
        for one in range(count // topics)
    ]
    named = [FetchTopic(topic_id=UUID(int=1 + one), partitions=partitions) for one in range(topics)]
    asked = replace(fetch_body([], max_wait_ms=0), topics=[*named, named[0]], session_epoch=0)

    async def tell(machine: Machine, _client: Any) -> None:
        turns, sessions = machine.node._connections.turns, machine.broker.fetch_sessions
        slices = 0
        granted, begin = turns.slice, sessions.begin
        before_begin: list[int] = []

        def slice_() -> "asyncio.Future[None]":
            nonlocal slices
            slices += 1
            return granted()

        def begin_(*given: Any, **more: Any) -> Any:
            before_begin.append(slices)
            return begin(*given, **more)

        monkeypatch.setattr(turns, "slice", slice_)
        monkeypatch.setattr(sessions, "begin", begin_)
        raw = await Raw.connect(machine.world.network)
        answer = await raw.ask(16, asked)
        assert before_begin == [(count + len(partitions)) // 250 - 1 + (topics > 1)]
        found = [one.partition_index for topic in answer.responses for one in topic.partitions]
        assert sorted(found) == sorted(one.partition for _ in named for one in partitions)
        small = await raw.ask(16, fetch_body([(UUID(int=1), 0, 0)], max_wait_ms=0))
        assert [one.error_code for one in small.responses[0].partitions] == [100]
        assert before_begin[1] == slices, "a small fetch begins in its turn"

    story(tell)
