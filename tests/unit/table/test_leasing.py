"""A query's read lease: it keeps the query's objects from plan to end and costs one object; it is optional.

Method: `stratalog.read` over a bucket in a directory, while the partition's leader expires every segment. The test
moves the steady clock.
"""

import logging
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import active_count

import pyarrow as pa
import pytest
from tests.unit.table.buckets import CLUSTER, NOW_MS, Bucket, batch, topic_id

from stratalog import read
from stratalog.adapters.object_store import MemoryStore, open_store
from stratalog.adapters.system import SystemEntropy
from stratalog.errors import Unavailable
from stratalog.ports import Buffer
from stratalog.table.leasing import Leasing, kept
from stratalog.table.plan import BrokerTask, BucketTask, PlannedLease, Range
from stratalog.tier.bucket.commit import Writer
from stratalog.tier.bucket.leases import LEASE_MS, Lease, Leases, list_leases
from stratalog.tier.formats.manifest import Manifest
from stratalog.tier.writing.archiver import PartitionFolder
from stratalog.tier.writing.tier_writer import Retention, TierWriter, WriterContext
from stratalog.wire.ids import topic_id_text

GRACE_MS = 60_000
SEGMENTS = 12


class Turned:
    """Both clocks, moved by the test."""

    def __init__(self) -> None:
        self.passed_ms = 0

    def steady_ms(self) -> int:
        return self.passed_ms

    def now_ms(self) -> int:
        return NOW_MS + self.passed_ms

    def elapsed_ns(self) -> int:
        return self.passed_ms * 1_000_000


class Leader:
    """The partition's leader, with a retention that keeps no segment."""

    def __init__(self, url: str) -> None:
        self.clock = Turned()
        store = open_store(url)
        leases = Leases(store, CLUSTER)
        context = WriterContext(
            store, SystemEntropy(), steady_ms=self.clock.steady_ms, leases=leases
        )
        folder, writer = PartitionFolder(CLUSTER, topic_id("t"), 0), Writer(1, 1)
        self.tier = TierWriter.activate(context, folder, "t", writer, now_ms=NOW_MS)

    def passes(self, ms: int) -> None:
        """Let time pass, then expire and remove segments."""
        self.tier.expire(NOW_MS, Retention(-1, 0, 0, 0, GRACE_MS))
        self.clock.passed_ms += ms
        self.tier.expire(NOW_MS, Retention(-1, 0, 0, 0, GRACE_MS))


@pytest.fixture
def url(tmp_path: Path) -> str:
    made = Bucket(open_store(tmp_path.as_uri()))
    made.create("t")
    made.archive("t", 0, [[batch(10 * number, 10)] for number in range(SEGMENTS)])
    return tmp_path.as_uri()


def objects(url: str, kind: str) -> list[str]:
    return [info.path for info in open_store(url).list("") if kind in info.path]


def offsets(reader: pa.RecordBatchReader) -> list[int]:
    return [offset for one in reader for offset in one.column("offset").to_pylist()]


EVERYTHING = list(range(10 * SEGMENTS))


def test_segments_are_deleted_only_after_the_reader_has_read_all(url: str) -> None:
    leader = Leader(url)
    reader = read("t", tier_url=url)
    assert len(objects(url, "/leases/")) == 1, "a query must cost one small object"
    leader.passes(LEASE_MS - 1)
    assert leader.tier.start_offset == 10 * SEGMENTS
    assert len(objects(url, ".seg")) == SEGMENTS
    assert offsets(reader) == EVERYTHING
    assert objects(url, "/leases/") == []
    leader.passes(GRACE_MS)
    assert objects(url, ".seg") == []


def test_a_lease_names_the_client_and_its_machine(url: str) -> None:
    reader = read("t", tier_url=url)
    ((_, lease),) = list_leases(open_store(url), CLUSTER)
    assert lease is not None
    assert lease.holder == f"stratalog-spark on {platform.node()}"
    reader.close()


def test_a_crashed_readers_segments_stay_until_the_lease_ends(url: str) -> None:
    leader = Leader(url)
    reader = read("t", tier_url=url)
    leader.passes(GRACE_MS)
    leader.passes(LEASE_MS)
    assert objects(url, ".seg") == []
    assert objects(url, "/leases/") == []
    with pytest.raises(Exception, match="missing"):
        offsets(reader)


def test_a_reader_closed_early_releases_its_lease(url: str) -> None:
    reader = read("t", tier_url=url)
    next(iter(reader))
    reader.close()
    del reader
    assert objects(url, "/leases/") == []


class ReadOnly(MemoryStore):
    """A bucket that the reader must not write."""

    refused = 0

    def put(self, path: str, chunks: Iterator[Buffer]) -> None:  # type: ignore[override]
        self.refused += 1
        raise Unavailable(f"{path}: AccessDenied")


def manifest(version: int, partition: int = 0) -> Manifest:
    return Manifest(
        cluster_id=CLUSTER,
        topic_id=topic_id_text(topic_id("t")),
        topic="t",
        partition=partition,
        version=version,
    )


def task(partition: int = 0) -> BucketTask:
    return BucketTask(Range("t", topic_id("t"), partition, 0, 10), ())


def test_a_reader_without_write_access_is_warned_once_and_reads_without_a_lease(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = ReadOnly("memory://read-only")
    versions = {(topic_id("t"), 0): manifest(3)}
    with caplog.at_level(logging.WARNING, "stratalog.spark"):
        for _ in range(3):
            (planned,) = Leasing(store, CLUSTER, "reader").leased([task()], versions)
            assert isinstance(planned, BucketTask)
            assert planned.lease is None
    assert store.refused == 3
    assert [record.message.count("AccessDenied") for record in caplog.records] == [1]


def test_a_stream_renews_its_lease_only_if_it_is_old_or_pins_too_little() -> None:
    store, clock = MemoryStore("memory://stream"), Turned()
    held = Leasing(store, CLUSTER, "reader", clock=clock)

    def planned(version: int, *partitions: int) -> Lease:
        manifests = {(topic_id("t"), p): manifest(version, p) for p in partitions}
        tasks = held.leased([task(p) for p in partitions], manifests)
        found, *others = [one.lease for one in tasks if isinstance(one, BucketTask)]
        assert found is not None
        assert all(other is found for other in others)
        (info,) = store.list(f"{CLUSTER}/cluster/leases/")
        assert info.path == found.lease.path
        return found.lease

    first = planned(5, 0)
    assert planned(6, 0) is first, "the lease still pins every object of the plan"
    assert planned(6, 0, 1).versions == {topic_id_text(topic_id("t")): {"0": 6, "1": 6}}
    clock.passed_ms += LEASE_MS // 3
    assert planned(9, 1).versions == {topic_id_text(topic_id("t")): {"1": 9}}
    tail = BrokerTask(Range("t", topic_id("t"), 0, 0, 10))
    assert held.leased([tail], {}) == [tail], "a task that reads only the broker must pin nothing"
    held.release()
    assert list(store.list("")) == []


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def batches() -> Iterator[pa.RecordBatch]:
    return iter([pa.record_batch({"n": [n]}) for n in range(2)])


def test_a_task_renews_the_lease_while_it_reads() -> None:
    """The task renews also while its caller works on one batch for long. A young lease is not renewed."""
    store, clock = MemoryStore("memory://renewing"), Turned()
    held = Leasing(store, CLUSTER, "reader", 1000, clock)
    (planned,) = held.leased([task()], {(topic_id("t"), 0): manifest(3)})
    assert isinstance(planned, BucketTask)
    for _ in kept(batches(), planned.lease, store, clock):
        for _ in range(3):
            held.release()
            store.delete([info.path for info in store.list("")])
            until(lambda: bool(list(store.list(""))))
    clock.passed_ms += 1000
    before = active_count()
    reading = kept(batches(), planned.lease, store, clock)
    next(reading)
    until(lambda: bool(list(store.list(""))))
    assert active_count() == before + 1
    reading.close()
    assert active_count() == before, "an ended task renewed the lease"


def test_a_young_lease_is_not_renewed() -> None:
    store = MemoryStore("memory://young")
    held = Leasing(store, CLUSTER, "reader")
    (planned,) = held.leased([task()], {(topic_id("t"), 0): manifest(3)})
    assert isinstance(planned, BucketTask)
    held.release()
    assert len(list(kept(batches(), planned.lease, store))) == 2
    assert list(store.list("")) == []


def test_a_failed_renewal_of_the_lease_does_not_end_the_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = ReadOnly("memory://read-only")
    lease = Lease(cluster_id=CLUSTER, id="L" * 22, holder="reader", versions={})
    with caplog.at_level(logging.INFO, "stratalog.spark"):
        for _ in kept(batches(), PlannedLease(lease, 0), store):
            until(lambda: store.refused > 0 and bool(caplog.records))
    assert "not renewed" in caplog.text
