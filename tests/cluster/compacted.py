"""A compacted topic of a run: a writer of few keys, a reader, and the table that every place must give.

In: a cluster under faults. Out: what was acknowledged and read, by offset; raises `Broken` where an offset has two
records, and at the end where a key has an older value than the newest known one, or came back after its deletion.

The topic's policy switches between compact and delete, with a retention that keeps all. At the end the table is read
through the leader, and for each replica from the bucket and then its disk. A failed record is not sent again: the log
may have it or not.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable
from random import Random

from tests.cluster.checks import Broken, holders, log_bytes, newest, partitions_of
from tests.cluster.clients import Session
from tests.sim.cluster import Cluster

from stratalog.client.admin import alter_configs
from stratalog.client.aio import Client
from stratalog.client.calls import TOPIC as OF_TOPIC
from stratalog.ports import ObjectStore
from stratalog.tier.checking.verify import sweep, verify
from stratalog.tier.reading.reader import open_bucket
from stratalog.wire.batch import scan
from stratalog.wire.ids import TopicPartition
from stratalog.wire.records import BatchBuilder, Record, read_records

COMPACTED = "k"
PARTITIONS = 2
KEYS = 10
RETENTION_MS = 2000
READ_MS = 1000
"""A reader that takes longer may miss a tombstone."""
CONFIGS = {
    "cleanup.policy": "compact",
    "segment.ms": "700",
    "retention.ms": "-1",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": str(RETENTION_MS),
    "file.delete.delay.ms": "100",
}
TIERED_CONFIGS = {"remote.storage.enable": "true", "local.retention.ms": "2000"}
OF_BROKERS = {"log.cleaner.backoff.ms": "300", "log.cleaner.dedupe.buffer.size": "100000"}
NAMES = [TopicPartition(COMPACTED, index) for index in range(PARTITIONS)]
NEEDED = ("keys written", "keys read", "tables read", "policies", "cleanings of disks")
NEEDED_WITH_A_BUCKET = ("cleanings of the bucket",)


Newest = dict[bytes, tuple[int, bytes | None]]
"""By key: the offset and the value of its last record."""


class Table:
    """What is known of the topic."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, int], tuple[bytes, bytes | None]] = {}
        """(partition, offset) -> key and value that were acknowledged there, or read there."""
        self.sent: set[tuple[bytes, bytes | None]] = set()
        self.may_be_deleted: set[bytes] = set()
        """Keys of which a tombstone was not acknowledged: the log may have it."""

    def note(self, partition: int, record: Record, how: str) -> None:
        """Note a record. Raises Broken where an earlier answer says something else."""
        assert record.key is not None, "the topic refuses records without a key"
        pair = record.key, record.value
        before = self.known.setdefault((partition, record.offset), pair)
        if before != pair or pair not in self.sent:
            raise Broken(
                f"OffsetsNeverChange: {COMPACTED}-{partition}, offset {record.offset}: {pair} {how}, "
                f"{before} before"
            )

    def newest(self, partition: int) -> Newest:
        """Return each key's newest known record."""
        newest: Newest = {}
        for (index, at), (key, value) in self.known.items():
            if index == partition and at > newest.get(key, (-1, None))[0]:
                newest[key] = at, value
        return newest

    def check(self, partition: int, found: Iterable[Record], where: str) -> None:
        """Compare with all records of a partition, in order, as one place has them. Raises Broken."""
        last: Newest = {}
        offset = -1
        for record in found:
            self.note(partition, record, f"is in {where}")
            assert record.key is not None
            if record.offset <= offset:
                raise Broken(f"{where} has offset {record.offset} behind {offset}")
            offset = record.offset
            last[record.key] = record.offset, record.value
        for key, (at, value) in self.newest(partition).items():
            there = last.get(key)
            if there is not None and there[0] < at:
                raise Broken(
                    f"LastValueSurvives: {COMPACTED}-{partition}, {key!r} in {where}: offset {there[0]} is "
                    f"the last, {value!r} is at {at}"
                )
            if there is None and value is not None and key not in self.may_be_deleted:
                raise Broken(
                    f"LastValueSurvives: {COMPACTED}-{partition}, {key!r} in {where}: nothing, "
                    f"{value!r} is at {at}"
                )


class KeyWriter:
    """Writes values and tombstones with acks=all, and switches the policy at times."""

    def __init__(self, cluster: Cluster, counts: Counter[str], seed: int, table: Table) -> None:
        self._session = Session(cluster, counts)
        self._cluster = cluster
        self._counts = counts
        self._chance = Random(seed)
        self._table = table
        self._number = 0
        self._policy = "compact"
        self._passes: dict[tuple[int, int, str], int] = {}

    async def step(self) -> None:
        chance = self._chance
        self._count_cleanings()
        if chance.random() < 0.02:
            self._policy = "delete" if self._policy == "compact" else "compact"
            change = alter_configs(OF_TOPIC, COMPACTED, {"cleanup.policy": self._policy})
            done = await self._session.ask(lambda client: client.on_controller(change))
            self._counts["policies"] += done is not None
            return
        partition = chance.randrange(PARTITIONS)
        builder, pairs = BatchBuilder(chance.choice(("none", "lz4"))), []
        for _ in range(chance.randint(1, 4)):
            self._number += 1
            key = b"%d-%d" % (partition, chance.randrange(KEYS))
            value = None if chance.random() < 0.25 else b"%d" % self._number
            pairs.append((key, value))
            builder.add(key, value, self._cluster.world.clock.now_ms())
        self._table.sent.update(pairs)
        batch = builder.build()
        produced = await self._session.ask(
            lambda client: client.produce(COMPACTED, partition, batch)
        )
        if produced is None:
            self._table.may_be_deleted.update(key for key, value in pairs if value is None)
            return
        for at, (key, value) in enumerate(pairs):
            record = Record(produced.base_offset + at, 0, key, value)
            self._table.note(partition, record, "acknowledged")
        self._counts["keys written"] += len(pairs)
        if chance.random() < 0.5:
            await asyncio.sleep(chance.uniform(0, 0.3))

    def _count_cleanings(self) -> None:
        for node_id, machine in self._cluster.machines.items():
            if not machine.is_up or machine.node.broker is None:
                continue
            tiering = machine.broker.tiering
            passes = {"disks": machine.broker.cleaners.passes}
            passes["the bucket"] = 0 if tiering is None else tiering.cleaner.passes
            for place, count in passes.items():
                life = node_id, machine.starts, place
                self._counts[f"cleanings of {place}"] += count - self._passes.get(life, 0)
                self._passes[life] = count

    async def close(self) -> None:
        await self._session.close()


class KeyReader:
    """Reads a partition from its start to its end, again and again: no offset changes.

    A read within `delete.retention.ms`, of one leader, finds no older record of a key than the last one known before.
    Where the leader changes, a tombstone may be gone at the next one while the first had an older record, as in Kafka.
    """

    def __init__(self, cluster: Cluster, counts: Counter[str], seed: int, table: Table) -> None:
        self._session = Session(cluster, counts)
        self._cluster = cluster
        self._clock = cluster.world.clock
        self._counts = counts
        self._chance = Random(seed)
        self._table = table

    async def step(self) -> None:
        partition, offset = self._chance.randrange(PARTITIONS), 0
        known, began_ms = self._table.newest(partition), self._clock.steady_ms()
        leader = self._agreed_leader(partition)
        last: dict[bytes, int] = {}
        while True:
            fetched = await self._session.ask(
                lambda client, first=offset: client.fetch(  # type: ignore[misc]
                    COMPACTED, partition, first, max_wait_ms=100, max_bytes=4000
                )
            )
            if fetched is None:
                break
            if not len(fetched.records):
                is_quick = self._clock.steady_ms() - began_ms < READ_MS
                if is_quick and leader is not None and leader == self._agreed_leader(partition):
                    self._check(partition, known, last)
                break
            for record in _records(fetched.records):
                if record.offset >= offset:
                    self._table.note(partition, record, "read")
                    self._counts["keys read"] += 1
                    assert record.key is not None
                    last[record.key] = record.offset
            offset = _end(fetched.records)
        await asyncio.sleep(self._chance.uniform(0, 1))

    async def close(self) -> None:
        await self._session.close()

    def _agreed_leader(self, partition: int) -> tuple[int, int] | None:
        """Return the leader and its epoch where all replicas are in sync, so that no other node takes itself for it."""
        found = partitions_of(newest(self._cluster), COMPACTED).get(partition)
        if found is None or len(found.isr) < len(found.replicas):
            return None
        return found.leader, found.leader_epoch

    def _check(self, partition: int, known: Newest, last: dict[bytes, int]) -> None:
        self._counts["tables read"] += 1
        for key, (at, value) in known.items():
            there = last.get(key, at)
            if there < at:
                raise Broken(
                    f"LastValueSurvives: {COMPACTED}-{partition}: a reader finds {key!r} at {there}, {value!r} "
                    f"is at {at}"
                )


async def read_whole(client: Client, partition: int, end: int) -> list[Record]:
    """Read a partition from its start to `end`, as a consumer does."""
    found: list[Record] = []
    offset = 0
    while offset < end:
        fetched = await client.fetch(COMPACTED, partition, offset, max_bytes=4000)
        found += [one for one in _records(fetched.records) if one.offset >= offset]
        after = _end(fetched.records)
        assert after > offset, f"no batch behind {offset}, below {end}"
        offset = after
    return found


def check_places(cluster: Cluster, table: Table, bucket: ObjectStore | None) -> None:
    """Compare the table with each replica: the bucket's part below its disk, and its disk. Raises Broken.

    What killed cleaners left in the bucket are orphans, which a sweep removes.
    """
    for name in NAMES:
        end, tiered = (0, []) if bucket is None else _in_bucket(bucket, name)
        for machine in holders(cluster, name):
            start = machine.partition(*name).log.local_start_offset
            local = _records(log_bytes(machine, name))
            for seam in (start, (start + end) // 2, end) if start <= end else (start,):
                found = [one for one in tiered if one.offset < seam]
                found += [one for one in local if one.offset >= seam]
                where = f"the bucket below {seam}, then {machine.host.name}"
                table.check(name.partition, found, where)
    if bucket is not None:
        problems = verify(bucket, now_ms=1 << 50, grace_ms=0)
        if any(not one.orphan for one in problems):
            raise Broken(f"the bucket is damaged: {problems}")
        sweep(bucket, now_ms=1 << 50, grace_ms=0)
        if problems := verify(bucket, now_ms=1 << 50, grace_ms=0):
            raise Broken(f"the bucket is damaged after a sweep: {problems}")


def _in_bucket(store: ObjectStore, name: TopicPartition) -> tuple[int, list[Record]]:
    """Return the bucket's end, and every record that it has."""
    bucket = open_bucket(store)
    topic = bucket.topic(name.topic)
    manifest = None if topic is None else bucket.manifest(topic, name.partition)
    found: list[Record] = []
    for segment in () if manifest is None else bucket.live(manifest):
        found += _records(store.get_range(segment.path, 0, segment.entry.data_size))
    return 0 if manifest is None else manifest.archived_end, found


def _records(data: bytes | bytearray | memoryview) -> list[Record]:
    view = memoryview(data)
    found: list[Record] = []
    for at, header in scan(view):
        if not header.is_control:
            found += read_records(view[at : at + header.size])
    return found


def _end(data: bytes | bytearray | memoryview) -> int:
    """Return the offset behind the last whole batch."""
    return [header.next_offset for _at, header in scan(memoryview(data))][-1]
