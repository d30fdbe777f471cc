"""A compacted topic of a simulation: a client that writes a few keys again and again, and the last value of each.

In: a machine. Out: the records that a reader finds, compared with the acknowledged ones.
"""

import asyncio
from dataclasses import dataclass, field
from random import Random

from tests.sim.machine import Machine

from stratalog.broker.partitions.partition import HostedPartition
from stratalog.client.aio import Client
from stratalog.errors import Rejected, Unavailable
from stratalog.ports import ObjectStore
from stratalog.tier.reading.reader import open_bucket
from stratalog.wire.batch import scan
from stratalog.wire.records import BatchBuilder, Record, read_records

TOPIC = "compacted"
RETENTION_MS = 1000
CONFIGS = {
    "cleanup.policy": "compact",
    "flush.messages": "1",
    "segment.ms": "300",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": str(RETENTION_MS),
    "file.delete.delay.ms": "100",
}
SETTINGS = {"log.cleaner.backoff.ms": "100", "log.cleaner.dedupe.buffer.size": "100000"}
CODECS = ("none", "lz4", "zstd")


@dataclass
class Table:
    """The written records by offset, and the possible last values of each key."""

    written: dict[int, tuple[bytes, bytes | None]] = field(default_factory=dict)
    last: dict[bytes, list[bytes | None]] = field(default_factory=dict)
    deleted: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """By key: the offset of the tombstone that is the last record, and when it was sent."""
    number: int = 0

    async def write(self, client: Client, clock_ms: int, chance: Random) -> None:
        builder = BatchBuilder(chance.choice(CODECS))
        entries: list[tuple[bytes, bytes | None]] = []
        for _ in range(chance.randint(1, 5)):
            self.number += 1
            key = b"key-%d" % chance.randint(0, 6)
            value = None if chance.random() < 0.2 else b"%d" % self.number
            entries.append((key, value))
            builder.add(key, value, clock_ms)
        for key, value in entries:
            self.last.setdefault(key, [None]).append(value)
            self.deleted.pop(key, None)
        produced = await client.produce(TOPIC, 0, builder.build())
        for at, (key, value) in enumerate(entries):
            self.written[produced.base_offset + at] = key, value
            self.last[key] = [value]
            self.deleted.pop(key, None)
            if value is None:
                self.deleted[key] = produced.base_offset + at, clock_ms

    def check(self, records: list[Record]) -> None:
        found: dict[bytes, bytes | None] = {}
        for record in records:
            assert record.key is not None
            known = self.written.setdefault(record.offset, (record.key, record.value))
            assert known == (record.key, record.value), "an offset has another record"
            found[record.key] = record.value
        for key, values in self.last.items():
            assert found.get(key) in values
            self.last[key] = [found.get(key)]

    def check_tombstones(
        self, known: dict[bytes, tuple[int, int]], records: list[Record], now_ms: int
    ) -> None:
        """Check that a read that began with `known` as `deleted` found the tombstones younger than `RETENTION_MS`."""
        there = {record.offset for record in records}
        for key, (offset, sent_ms) in known.items():
            if self.deleted.get(key) == (offset, sent_ms) and now_ms - sent_ms < RETENTION_MS:
                assert offset in there, "a tombstone left early"


async def write_for_a_while(machine: Machine, client: Client, table: Table) -> None:
    chance = machine.world.chance
    try:
        while True:
            await table.write(client, machine.world.clock.now_ms(), chance)
            if chance.random() < 0.3:
                await asyncio.sleep(chance.uniform(0, 1))
    except (Unavailable, Rejected):
        pass  # the broker died: the log may have the unacknowledged record or not


async def read_all(machine: Machine, client: Client) -> list[Record]:
    return await read_of(machine.partition(TOPIC), client)


async def read_of(hosted: HostedPartition, client: Client, first: int = 0) -> list[Record]:
    """Return the records from `first`, or the log's start, to the high watermark, as a consumer finds them."""
    offset, end = max(hosted.log.log_start_offset, first), hosted.high_watermark
    records: list[Record] = []
    while offset < end:
        fetched = await client.fetch(TOPIC, 0, offset, max_bytes=2000)
        assert isinstance(fetched.records, memoryview)
        before = offset
        has_records = False
        for position, header in scan(fetched.records):
            has_records = has_records or header.record_count > 0
            batch = fetched.records[position : position + header.size]
            records += [one for one in read_records(batch) if one.offset >= before]
            offset = header.next_offset
        assert offset > before
        assert has_records or offset >= end, "librdkafka fails after some answers without a record"
    return records


async def read_for_a_while(
    machine: Machine, client: Client, table: Table, writing: asyncio.Task[None]
) -> None:
    """Read from the start on, again and again, while segments are swapped: no offset goes back, no tombstone lacks.

    It ends with `writing`: a read of an empty log asks no broker, and so never finds it dead.
    """
    hosted = machine.partition(TOPIC)
    try:
        while not writing.done():
            known = dict(table.deleted)
            records = await read_of(hosted, client)
            table.check_tombstones(known, records, machine.world.clock.now_ms())
            offsets = [one.offset for one in records]
            assert offsets == sorted(set(offsets))
            await asyncio.sleep(machine.world.chance.uniform(0, 0.2))
    except (Unavailable, Rejected):
        pass


def in_bucket(store: ObjectStore, topic: str) -> tuple[int, list[Record]]:
    """Return the bucket's end, and every record that it has, read without a broker."""
    bucket = open_bucket(store)
    named = bucket.topic(topic)
    manifest = None if named is None else bucket.manifest(named, 0)
    if manifest is None:
        return 0, []
    found: list[Record] = []
    for segment in bucket.live(manifest):
        data = store.get_range(segment.path, 0, segment.entry.data_size)
        for position, header in scan(data):
            if not header.is_control:
                found += read_records(data[position : position + header.size])
    return manifest.archived_end, found
