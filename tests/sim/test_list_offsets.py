"""Goal: each kind of ListOffsets returns its offset, on a topic with a part in the bucket alone.

Method: segments are tiered and expire locally; then each kind is asked in the newest version, and in the one before it
existed. Timestamps rise by one a record, save one in the middle that is later than all.
"""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace
from tests.sim.disk import SimDisk
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw, list_offsets_body
from tests.sim.transactional import Producer
from tests.sim.world import START_MS, World

from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode
from stratalog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from stratalog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from stratalog.wire.records import Record, build_batch

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = range(-1, -7, -1)
SINCE = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, PENDING_UPLOAD: 11}
NEWEST = 11
BATCHES, RECORDS = 30, 20
LATER = 150
"""The offset of the record with the largest timestamp, which is LATEST_MS."""
SECOND = 170
"""The offset of the record with the second largest one, LATEST_MS - 1: in the same segment."""
LATEST_MS = START_MS + 1_000_000
STEP_MS = 100
"""Between records."""
TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": "1048576",
    "local.retention.bytes": "1",
    "retention.ms": "-1",
}


def batch(number: int) -> bytearray:
    records = []
    for index in range(RECORDS):
        offset = number * RECORDS + index
        odd = {LATER: LATEST_MS, SECOND: LATEST_MS - 1}
        timestamp = odd.get(offset, START_MS + offset * STEP_MS)
        records.append(Record(0, timestamp, None, b"v" * 5000))
    return build_batch(records)


async def ask(
    raw: Raw, timestamp: int, version: int = NEWEST, topic: str = "t", isolation: int = 0
) -> Any:
    body = replace(list_offsets_body(topic, timestamp), isolation_level=isolation)
    answer = await raw.ask(version, body)
    (found,) = answer.topics[0].partitions
    return found


def test_every_kind_of_list_offsets() -> None:
    async def story() -> None:
        machine = Machine(World(5), {"tier.url": "memory://bucket"})
        client = await machine.restart()
        await client.create_topics([NewTopic("t", 1, configs=TIERED), NewTopic("plain", 1)])
        raw = await Raw.connect(machine.world.network)

        async def offset(timestamp: int, topic: str = "t") -> int:
            found = await ask(raw, timestamp, topic=topic)
            assert found.error_code == ErrorCode.none
            return int(found.offset)

        assert [await offset(kind) for kind in (LATEST, EARLIEST, EARLIEST_LOCAL)] == [0, 0, 0]
        assert [await offset(kind) for kind in (MAX_TIMESTAMP, LATEST_TIERED)] == [-1, -1]
        assert await offset(PENDING_UPLOAD) == -1, "an empty topic has nothing to upload"
        for number in range(BATCHES):
            await client.produce("t", 0, batch(number))
        log = machine.partition("t").log
        end = BATCHES * RECORDS
        for _ in range(600):
            if 0 < log.tiered_end == log.segments[-1].base_offset == log.local_start_offset:
                break
            await asyncio.sleep(1)
        tiered_end = log.tiered_end
        assert 0 < tiered_end < end
        assert tiered_end > LATER + 1, "the bucket must have the offsets looked up below"
        assert await offset(LATEST) == end
        assert await offset(EARLIEST) == 0
        assert await offset(EARLIEST_LOCAL) == tiered_end
        assert await offset(LATEST_TIERED) == tiered_end - 1
        assert await offset(PENDING_UPLOAD) == tiered_end
        found = await ask(raw, MAX_TIMESTAMP)
        assert (found.offset, found.timestamp) == (LATER, LATEST_MS)
        assert await offset(START_MS + 30 * STEP_MS) == 30
        assert await offset(START_MS + end * STEP_MS) == LATER, (
            "the answer must be the first record of that time"
        )
        assert await offset(LATEST_MS + 1) == -1
        await client.produce("plain", 0, batch(0))
        assert [await offset(kind, "plain") for kind in (LATEST_TIERED, PENDING_UPLOAD)] == [-1, -1]
        for kind, since in SINCE.items():
            assert (await ask(raw, kind, since)).error_code == ErrorCode.none
            assert (await ask(raw, kind, since - 1)).error_code == ErrorCode.unsupported_version
        assert (await ask(raw, PENDING_UPLOAD - 1)).error_code == ErrorCode.unsupported_version
        await delete_below(raw, LATER + 1)
        found = await ask(raw, MAX_TIMESTAMP)
        assert (found.offset, found.timestamp) == (SECOND, LATEST_MS - 1), "it is in the bucket"
        await delete_below(raw, SECOND + 1)
        found = await ask(raw, MAX_TIMESTAMP)
        last = START_MS + (end - 1) * STEP_MS
        assert (found.offset, found.timestamp) == (end - 1, last), "it is on the disk"
        await delete_below(raw, tiered_end + 5)
        assert await offset(PENDING_UPLOAD) == tiered_end + 5, (
            "deleted records are no longer pending"
        )
        await delete_below(raw, end)
        assert [await offset(kind) for kind in (PENDING_UPLOAD, MAX_TIMESTAMP)] == [-1, -1]
        raw.close()
        await machine.stop()

    run(story())


async def delete_below(raw: Raw, offset: int) -> None:
    cut = DeleteRecordsPartition(partition_index=0, offset=offset)
    topics = [DeleteRecordsTopic(name="t", partitions=[cut])]
    answer = await raw.ask(2, DeleteRecordsRequest(topics=topics, timeout_ms=1000))
    assert answer.topics[0].partitions[0].error_code == ErrorCode.none


def test_no_answer_lies_beyond_what_the_client_may_read() -> None:
    async def story() -> None:
        machine = Machine(World(5), {})
        client = await machine.restart()
        await client.create_topics([NewTopic("t", 1, configs={"retention.ms": "-1"})])
        raw = await Raw.connect(machine.world.network)

        async def answers(isolation: int) -> list[int]:
            kinds = (LATEST, EARLIEST, MAX_TIMESTAMP, START_MS)
            found = [await ask(raw, kind, isolation=isolation) for kind in kinds]
            return [one.offset for one in found]

        async def write(time_ms: int) -> None:
            await client.produce("t", 0, build_batch([Record(0, time_ms, None, b"v")]))

        await write(START_MS - 1000)
        assert await answers(1) == [1, 0, 0, -1]
        producer = Producer(raw)
        assert [await producer.begin(), await producer.add(0)] == [ErrorCode.none] * 2
        assert await producer.write(0, b"staged") == ErrorCode.none
        await write(START_MS + 4000)
        assert await answers(0) == [3, 0, 2, 1]
        assert await answers(1) == [1, 0, -1, -1], "the latest record is not readable yet"
        raw.close()
        await machine.stop()

    run(story())


def test_the_latest_of_the_kept_records_is_found_on_the_disk() -> None:
    async def story() -> None:
        machine = Machine(World(5), {})
        client = await machine.restart()
        await client.create_topics([NewTopic("t", 1, configs={"retention.ms": "-1"})])
        raw = await Raw.connect(machine.world.network)
        times = [START_MS + late for late in (10, 90, 80, 70, 40, 60, 60, 20, 30)]
        for at in range(0, len(times), 3):
            records = [Record(0, time, None, b"v") for time in times[at : at + 3]]
            await client.produce("t", 0, build_batch(records))
        for start in range(len(times) + 1):
            await delete_below(raw, start)
            found = await ask(raw, MAX_TIMESTAMP)
            latest = max(times[start:], default=-1)
            expected = times.index(latest, start) if latest >= 0 else -1
            assert (found.offset, found.timestamp) == (expected, latest)
        raw.close()
        await machine.stop()

    run(story())


def test_look_ups_by_time_of_many_partitions_wait_for_the_drive_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        machine = Machine(World(5))
        await machine.start()
        client = await machine.connect()
        await client.create_topics([NewTopic("t", 10)])
        made = build_batch([Record(0, START_MS, None, b"x")])
        for partition in range(10):
            await client.produce("t", partition, made)
        raw = await Raw.connect(machine.world.network)
        monkeypatch.setattr(SimDisk, "try_read", lambda *_: None)  # no page is in memory
        machine.take_ms(1000)
        took = []
        for partitions in (1, 4, 10):
            topic = ListOffsetsTopic(
                name="t",
                partitions=[
                    ListOffsetsPartition(partition_index=at, timestamp=START_MS)
                    for at in range(partitions)
                ],
            )
            begun = asyncio.get_running_loop().time()
            answer = await raw.ask(NEWEST, ListOffsetsRequest(replica_id=-1, topics=[topic]))
            took.append(asyncio.get_running_loop().time() - begun)
            found = answer.topics[0].partitions
            assert [one.partition_index for one in found] == list(range(partitions))
            assert {(one.error_code, one.offset, one.timestamp) for one in found} == {
                (0, 0, START_MS)
            }
        assert took[1] < 1.5 * took[0]
        assert 2 * took[0] < took[2] < 4 * took[0], "four at a time"
        await client.close()
        await machine.stop()

    run(story())
