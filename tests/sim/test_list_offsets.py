"""Goal: each kind of ListOffsets returns its offset, on a topic with a part in the bucket alone.

Method: segments are tiered and expire locally; then each kind is asked in the newest version, and in the one before it
existed. Timestamps rise by one a record, save one in the middle that is later than all.
"""

import asyncio
from typing import Any

from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw, list_offsets_body
from tests.sim.world import START_MS, World

from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode
from stratalog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from stratalog.wire.records import Record, build_batch

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = range(-1, -7, -1)
SINCE = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, PENDING_UPLOAD: 11}
NEWEST = 11
BATCHES, RECORDS = 30, 20
LATER = 150
"""The offset of the record with the largest timestamp, which is LATEST_MS."""
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
        timestamp = START_MS + offset * STEP_MS if offset != LATER else LATEST_MS
        records.append(Record(0, timestamp, None, b"v" * 5000))
    return build_batch(records)


async def ask(raw: Raw, timestamp: int, version: int = NEWEST, topic: str = "t") -> Any:
    answer = await raw.ask(version, list_offsets_body(topic, timestamp))
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
        assert await offset(PENDING_UPLOAD) == 0, "no segment may be in the bucket yet"
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
        cut = DeleteRecordsPartition(partition_index=0, offset=tiered_end + 5)
        topics = [DeleteRecordsTopic(name="t", partitions=[cut])]
        await raw.ask(2, DeleteRecordsRequest(topics=topics, timeout_ms=1000))
        assert await offset(PENDING_UPLOAD) == tiered_end + 5, (
            "deleted records are no longer pending"
        )
        raw.close()
        await machine.stop()

    run(story())
