"""Goal: Fetch and OffsetForLeaderEpoch answer by Kafka's rules.

Method: the real node, requests written from the schemas, and answers read field by field, in the first version that has
a rule and in the newest. `test_waiting_fetches.py` tests which fetches wait, and for how long.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

import pytest
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw, fetch_body
from tests.sim.world import START_MS, World

from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode
from stratalog.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from stratalog.wire.records import Record, build_batch

FETCH, OFFSET_FOR_LEADER_EPOCH = 1, 23
NEWEST = 18
BY_ID_FROM = 13
LARGE, SMALL = b"L" * 9000, b"s" * 300
STRANGER = UUID(int=77)


def story(tell: Callable[[Machine, Any, Raw], Coroutine[Any, Any, None]]) -> None:
    """Start a node with the topic `t`: in each of two partitions a large record's batch, then a small one's."""

    async def whole() -> None:
        machine = Machine(World(3))
        client = await machine.restart()
        await client.create_topics([NewTopic("t", partitions=2)])
        await machine.stop()
        client = await machine.restart()  # each start is a new epoch, so this adds an earlier one
        for partition in (0, 1):
            for value in (LARGE, SMALL):
                await client.produce(
                    "t", partition, build_batch([Record(0, START_MS, None, value)])
                )
        raw = await Raw.connect(machine.world.network)
        async with asyncio.timeout(60):
            await tell(machine, client, raw)
        assert machine.broken_tasks == []
        await machine.stop()

    run(whole())


async def topic_of(client: Any, version: int) -> Any:
    return (await client.metadata(["t"])).topics["t"].topic_id if version >= BY_ID_FROM else "t"


async def fetched(
    raw: Raw, version: int, wanted: list[tuple[Any, int, int]], **limits: Any
) -> list[Any]:
    answer = await raw.ask(version, fetch_body(wanted, **limits))
    assert answer.error_code == ErrorCode.none
    return [partition for topic in answer.responses for partition in topic.partitions]


def sizes(found: list[Any]) -> list[int]:
    return [len(one.records or b"") for one in found]


@pytest.mark.parametrize("version", [4, 12, NEWEST])
def test_the_first_batch_comes_whole_however_small_the_limits(version: int) -> None:
    async def tell(_machine: Machine, client: Any, raw: Raw) -> None:
        topic = await topic_of(client, version)
        both = [(topic, 0, 0), (topic, 1, 0)]
        everything = sizes(await fetched(raw, version, both))
        first = sizes(await fetched(raw, version, [(topic, 0, 0)], partition_max_bytes=1))[0]
        assert len(LARGE) < first < everything[0] == everything[1]
        # The exception holds only for the first partition that has records.
        assert sizes(await fetched(raw, version, both, max_bytes=1)) == [first, 0]
        assert sizes(await fetched(raw, version, both, partition_max_bytes=1)) == [first, 0]
        nothing_first = [(topic, 0, 2), (topic, 1, 0)]
        assert sizes(await fetched(raw, version, nothing_first, max_bytes=1)) == [0, first]
        # The answer holds whole batches only, also if a limit falls within one.
        middle = first + len(SMALL) // 2
        assert sizes(await fetched(raw, version, both, partition_max_bytes=middle)) == [first] * 2
        assert sizes(await fetched(raw, version, both, max_bytes=middle)) == [first, 0]
        assert sizes(await fetched(raw, version, both, max_bytes=0)) == [first, 0]

    story(tell)


@pytest.mark.parametrize("version", [9, 12, NEWEST])
def test_an_unreadable_partition_is_answered_at_once_beside_readable_ones(version: int) -> None:
    async def tell(machine: Machine, client: Any, raw: Raw) -> None:
        loop = asyncio.get_running_loop()
        topic = await topic_of(client, version)
        epoch = (await client.metadata(["t"])).topics["t"].partitions[0].leader_epoch
        stranger: Any = STRANGER if version >= BY_ID_FROM else "missing"
        unknown = (
            ErrorCode.unknown_topic_id
            if version >= BY_ID_FROM
            else ErrorCode.unknown_topic_or_partition
        )
        for wanted, more, code in (
            ((stranger, 0, 0), {}, unknown),
            ((topic, 9, 0), {}, ErrorCode.unknown_topic_or_partition),
            ((topic, 0, 3), {}, ErrorCode.offset_out_of_range),
            ((topic, 0, -1), {}, ErrorCode.offset_out_of_range),
            ((topic, 0, 0), {"leader_epoch": epoch - 1}, ErrorCode.fenced_leader_epoch),
            ((topic, 0, 0), {"leader_epoch": epoch + 1}, ErrorCode.unknown_leader_epoch),
        ):
            begun = loop.time()
            (found,) = await fetched(raw, version, [wanted], min_bytes=1 << 20, **more)
            assert found.error_code == code, wanted
            assert not found.records
            assert loop.time() - begun < 0.1, "a fetch with an error is answered at once"
        good, bad = await fetched(raw, version, [(topic, 0, 0), (topic, 7, 0)])
        assert (good.error_code, bad.error_code) == (
            ErrorCode.none,
            ErrorCode.unknown_topic_or_partition,
        )
        assert good.records
        (same,) = await fetched(raw, version, [(topic, 0, 0)], leader_epoch=epoch)
        assert same.error_code == ErrorCode.none

    story(tell)


@pytest.mark.parametrize("version", [11, NEWEST])
def test_the_fields_around_the_records(version: int) -> None:
    async def tell(_machine: Machine, client: Any, raw: Raw) -> None:
        topic = await topic_of(client, version)
        for isolation_level in (0, 1):
            (found,) = await fetched(raw, version, [(topic, 0, 1)], isolation_level=isolation_level)
            assert (found.high_watermark, found.last_stable_offset) == (2, 2)
            assert (found.log_start_offset, found.preferred_read_replica) == (0, -1)
            assert not found.aborted_transactions
            assert sizes([found])[0] > len(SMALL)

    story(tell)


@pytest.mark.parametrize("version", [12, NEWEST])
def test_a_log_that_diverged_learns_where_at_once(version: int) -> None:
    """KIP-595: a fetch names the epoch of its last record, and the answer the end that both logs share."""

    async def tell(machine: Machine, client: Any, raw: Raw) -> None:
        first = (await client.metadata(["t"])).topics["t"].partitions[0].leader_epoch
        await machine.stop()
        client = await machine.restart()
        await client.produce("t", 0, build_batch([Record(0, START_MS, None, SMALL)]))
        raw = await Raw.connect(machine.world.network)
        topic = await topic_of(client, version)
        now = (await client.metadata(["t"])).topics["t"].partitions[0].leader_epoch

        async def ask(offset: int, epoch: int) -> Any:
            limits = {"last_fetched_epoch": epoch, "max_wait_ms": 60_000}
            (found,) = await fetched(raw, version, [(topic, 0, offset)], **limits)
            return found

        def diverging(found: Any) -> tuple[int, int, int]:
            assert not found.records
            return found.error_code, found.diverging_epoch.epoch, found.diverging_epoch.end_offset

        assert diverging(await ask(3, first)) == (0, first, 2), "that epoch ended at 2"
        assert diverging(await ask(9, now)) == (0, now, 3), "its log is longer than the leader's"
        assert diverging(await ask(3, first + (now - first) // 2)) == (0, first, 2)
        assert (await ask(3, now + 1)).error_code == ErrorCode.offset_out_of_range
        for offset, epoch in ((2, first), (2, now), (0, -1)):
            agreed = await ask(offset, epoch)
            assert (agreed.error_code, agreed.diverging_epoch.epoch) == (0, -1)
            assert agreed.records

    story(tell)


def epoch_body(version: int, current: int, epoch: int, *, topic: str = "t") -> Any:
    partition = OffsetForLeaderPartition(
        partition=0, current_leader_epoch=current, leader_epoch=epoch
    )
    wanted = OffsetForLeaderTopic(topic=topic, partitions=[partition])
    return OffsetForLeaderEpochRequest(replica_id=-1, topics=[wanted])


@pytest.mark.parametrize("version", [3, 4])
def test_offset_for_leader_epoch_answers_the_end_of_an_epoch(version: int) -> None:
    """KIP-320: a consumer learns where the epoch that it read last ends in the log."""

    async def tell(machine: Machine, client: Any, raw: Raw) -> None:
        first = (await client.metadata(["t"])).topics["t"].partitions[0].leader_epoch
        await machine.stop()
        client = await machine.restart()
        raw = await Raw.connect(machine.world.network)
        now = (await client.metadata(["t"])).topics["t"].partitions[0].leader_epoch
        assert now > first > 0, "each start is a new epoch"
        await client.produce("t", 0, build_batch([Record(0, START_MS, None, SMALL)]))

        async def ended(current: int, epoch: int, topic: str = "t") -> tuple[int, int, int]:
            body = epoch_body(version, current, epoch, topic=topic)
            answer = await raw.ask(version, body)
            (found,) = answer.topics[0].partitions
            return int(found.error_code), found.leader_epoch, found.end_offset

        assert await ended(-1, first) == (0, first, 2)
        assert await ended(now, now) == (0, now, 3)
        assert await ended(-1, now + 1) == (0, -1, -1), "no such epoch yet"
        assert await ended(now - 1, first) == (ErrorCode.fenced_leader_epoch, -1, -1)
        assert await ended(now + 1, first) == (ErrorCode.unknown_leader_epoch, -1, -1)
        unknown = await ended(-1, first, topic="missing")
        assert unknown[0] == ErrorCode.unknown_topic_or_partition

    story(tell)
