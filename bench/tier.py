"""Measure the tier: the cost of uploads for producers, the speed of history reads, the time of planning.

usage: python -m bench.tier [--rounds 5] [--mb 1024] [--only LINE]...

The bucket is a directory for one line and a real MinIO (fetched once, see CONTRIBUTING.md) for the next. Compared calls
take turns within a round, and ratios are computed round by round. The command prints a table for RESULTS.md.

- roll: the latency of a steady producer while the segments of 64 partitions close together, on a tiered topic and on a
  plain one; and the time until all segments are in the bucket.
- directory, minio: the upload of closed segments, compared with obstore's put of the same bytes; a consumer that reads
  them through a fresh broker, compared with obstore's sequential get. For a directory obstore does not fsync, so its
  put is measured without and with fsync.
- lag: how many closed segments of 100 MB wait for their upload while a producer writes at full speed, and at half of
  it, and how long the last upload takes.
- plan: a partition of 10,000 segments of 100 MB, from the manifests' bytes to Spark's tasks.
"""

import argparse
import os
import shutil
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any, Self
from urllib.parse import unquote, urlsplit
from uuid import UUID

import obstore
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from msgspec.structs import replace
from obstore import store as stores
from tests.compat.object_servers import ENVIRONMENT, s3_server

from bench import load
from bench.broker import create, drop, spread, touch_memory
from bench.peers import Server, strata
from stratalog.adapters.bucket_url import parse_bucket_url
from stratalog.adapters.object_store import MemoryStore, open_store
from stratalog.adapters.s3_bucket import S3Bucket
from stratalog.adapters.system import SystemEntropy
from stratalog.ports import ObjectStore
from stratalog.table.plan import Range, plan
from stratalog.tier.bucket.commit import Writer
from stratalog.tier.bucket.identity import read_claim
from stratalog.tier.formats.manifest import Entry, Manifest, SegmentState, decode, encode
from stratalog.tier.reading.archives import ArchiveManifests
from stratalog.tier.reading.reader import open_bucket
from stratalog.tier.writing.archiver import PartitionFolder
from stratalog.tier.writing.tier_writer import TierWriter, WriterContext
from stratalog.wire.ids import topic_id_text

PARTITIONS = 64
SEGMENT = 1 << 20
SEGMENT_LARGE = 32 << 20
SEGMENT_LAG = 100_000_000
LAG_RECORDS = 1_000_000
FETCH_BYTES = 4 << 20
PROBE_RATE = 500
PROBE_S = 5
WAIT_S = 300
TIERED = {
    "remote.storage.enable": "true",
    "local.retention.bytes": "1",
    "file.delete.delay.ms": "0",
}


class Measurements:
    """Measured values by line."""

    def __init__(self) -> None:
        self.lines: dict[str, list[float]] = defaultdict(list)

    def note(self, line: str, value: float) -> None:
        self.lines[line].append(value)
        print(f"  {line}: {value:.3f}", flush=True)

    def rate(self, what: str, size: int, seconds: float, cpu_seconds: float) -> None:
        self.note(f"{what}, MB/s", size / seconds / 1e6)
        self.note(f"{what}, CPU s/GB", cpu_seconds / size * 1e9)

    def divide(self, line: str, what: str, by: str) -> None:
        """Note the ratio of two lines' newest rates."""
        self.note(line, self.lines[f"{what}, MB/s"][-1] / self.lines[f"{by}, MB/s"][-1])

    def report(self, how: str) -> None:
        """Print the table."""
        load_average = ", ".join(f"{one:.1f}" for one in os.getloadavg())
        print(f"{time.strftime('%Y-%m-%d')}, {how}, load {load_average}\n")
        print("| line | median (least-most) |\n|---|---|")
        for line, values in self.lines.items():
            print(f"| {line} | {spread(values)} |")


class Probe:
    """A steady producer in its own process during the block, and the broker's maximum memory meanwhile."""

    def __init__(self, server: Server) -> None:
        self.p99_ms = self.resident_mb = 0.0
        self._server = server
        self._threads = [threading.Thread(target=call) for call in (self._write, self._watch)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        time.sleep(1)  # the producer has started
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join()

    def _write(self) -> None:
        _median, self.p99_ms = load.latencies(self._server, "probe", PROBE_RATE, PROBE_S)

    def _watch(self) -> None:
        while self._threads[0].is_alive():
            self.resident_mb = max(self.resident_mb, self._server.resident_mb())
            time.sleep(0.02)


def fill(server: Server, topic: str, partitions: int, size: int) -> None:
    """Produce `size` bytes in records of 10 KB, in turn to each partition."""
    producer = Producer({"bootstrap.servers": server.address, "linger.ms": 5})
    for number in range(size // 10_000):
        while True:
            try:
                producer.produce(topic, bytes(10_000), partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0


def tiered_bytes(bucket: str, topic: str) -> int:
    opened = open_bucket(open_store(bucket))
    named = opened.topic(topic)
    return 0 if named is None else sum(m.live_bytes for m in opened.manifests(named).values())


def all_rolled(bucket: str) -> bool:
    """Return whether every partition's first segment is in the bucket."""
    opened = open_bucket(open_store(bucket))
    named = opened.topic("tiered")
    manifests = {} if named is None else opened.manifests(named)
    return sum(manifest.tiered_end > 0 for manifest in manifests.values()) == PARTITIONS


def wait_until(tiered: Callable[[], bool]) -> float:
    began = time.monotonic()
    while not tiered():
        assert time.monotonic() - began < WAIT_S, (
            f"after {WAIT_S} s the bucket lacks closed segments"
        )
        time.sleep(0.01)
    return time.monotonic() - began


def roll(measured: Measurements, scratch: Path, bucket: str, turn: int, _mb: int) -> None:
    """Measure a roll: fill nine tenths of a segment in each partition, then the rest while the probe writes."""
    with broker(scratch, bucket) as server:
        create(server, "probe", 1)
        touch_memory(400 << 20)
        p99 = {}

        def rolled(topic: str) -> None:
            settings = TIERED if topic == "tiered" else {}
            create(server, topic, PARTITIONS, {"segment.bytes": str(SEGMENT), **settings})
            fill(server, topic, PARTITIONS, PARTITIONS * SEGMENT * 9 // 10)
            time.sleep(1)
            with Probe(server) as probe:
                fill(server, topic, PARTITIONS, PARTITIONS * SEGMENT // 5)
                if settings:
                    lag = wait_until(lambda: all_rolled(bucket))
                    measured.note("roll: lag until all is in the bucket, s", lag)
            p99[topic] = probe.p99_ms
            measured.note(f"roll: p99 of produce beside it, {topic}, ms", probe.p99_ms)
            measured.note(f"roll: resident at most, {topic}, MB", probe.resident_mb)

        by_turns(turn, lambda: rolled("plain"), lambda: rolled("tiered"))
        measured.note("roll: p99, tiered / plain", p99["tiered"] / p99["plain"])
        for topic in ("probe", "plain", "tiered"):
            drop(server, topic)


def lag(measured: Measurements, scratch: Path, bucket: str, _turn: int, _mb: int) -> None:
    full = waiting(measured, scratch, bucket, "full speed")
    waiting(measured, scratch, bucket, "half of that", "-r", str(int(full * 1e6 / 1024 / 2)))


def waiting(measured: Measurements, scratch: Path, bucket: str, speed: str, *options: str) -> float:
    """Note the waiting segments; return MB/s of the producer. A segment counts as closed once its successor exists."""
    touch_memory(2 * LAG_RECORDS * 1024)
    with broker(scratch, bucket) as server:
        settings = {"remote.storage.enable": "true", "segment.bytes": str(SEGMENT_LAG)}
        create(server, "lag", 1, settings)
        folder = scratch / "strata" / "data" / "lag-0"
        store = open_store(bucket)
        made: list[load.Throughput] = []
        writing = threading.Thread(
            target=lambda: made.append(load.produce(server, "lag", 1024, LAG_RECORDS, *options))
        )
        writing.start()
        count, most, ended = 0, 0, 0.0
        while writing.is_alive() or count:
            alive = writing.is_alive()
            bases = sorted(int(file.stem) for file in folder.glob("*.log"))
            end = tiered_end(store, "lag")
            count = sum(base >= end for base in bases[:-1])
            most = max(most, count)
            ended = time.monotonic() if alive else ended
            assert time.monotonic() - ended < WAIT_S, (
                f"after {WAIT_S} s the bucket lacks closed segments"
            )
            time.sleep(0.01)
        measured.note(f"lag: produce at {speed}, MB/s", made[0].rate)
        measured.note(f"lag: closed segments of 100 MB that wait at {speed}, at most", most)
        measured.note(
            f"lag: all in the bucket after the last record, {speed}, s", time.monotonic() - ended
        )
        drop(server, "lag")
    return made[0].rate


def tiered_end(store: ObjectStore, topic: str) -> int:
    """Return the first offset of partition 0 that is not in the bucket."""
    if read_claim(store) is None:
        return 0
    opened = open_bucket(store)
    named = opened.topic(topic)
    manifest = None if named is None else opened.manifest(named, 0)
    return 0 if manifest is None else manifest.archived_end


def archive_and_history(
    measured: Measurements, scratch: Path, bucket: str, turn: int, mb: int
) -> None:
    """Compare with obstore; it goes first in every second round, because the second finds memory and disk in use."""
    size = mb << 20
    touch_memory(3 * size)
    where = "MinIO" if bucket.startswith("s3:") else "directory"
    waiting = {"remote.log.copy.disable": "true", "local.retention.ms": "-2"}
    with broker(scratch, bucket) as server:
        create(server, "t", 1, {**TIERED, "segment.bytes": str(SEGMENT_LARGE), **waiting})
        fill(server, "t", 1, size)
        store = open_store(bucket)
        files = sorted((scratch / "strata" / "data" / "t-0").glob("*.log"))[:-1]
        pieces = [file.read_bytes() for file in files]
        by_turns(
            turn,
            lambda: bare_put(measured, where, store, pieces),
            lambda: archived(measured, where, server, bucket, sum(map(len, pieces))),
        )
        for put in ("put", "put and sync")[: 2 if where == "directory" else 1]:
            measured.divide(
                f"archive, {where}, of obstore's {put}",
                f"archive, {where}",
                f"obstore's {put}, {where}",
            )
    opened = open_bucket(store)
    manifest = opened.manifest(opened.topic("t"), 0)
    with broker(scratch, bucket) as server:
        by_turns(
            turn,
            lambda: bare_get(measured, where, store, manifest),
            lambda: consumed(measured, where, server, manifest),
        )
        measured.divide(
            f"history, {where}, of obstore's", f"history, {where}", f"obstore's get, {where}"
        )
        drop(server, "t")


def by_turns(turn: int, first: Callable[[], None], second: Callable[[], None]) -> None:
    for call in (first, second) if turn % 2 == 0 else (second, first):
        call()


def archived(measured: Measurements, where: str, server: Server, bucket: str, closed: int) -> None:
    admin = AdminClient({"bootstrap.servers": server.address})
    wanted = {"remote.log.copy.disable": "false", "local.retention.bytes": "1"}
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in wanted.items()
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, "t", incremental_configs=entries)
    before = server.cpu_seconds()
    began = time.monotonic()
    admin.incremental_alter_configs([resource])[resource].result(30)
    wait_until(lambda: tiered_bytes(bucket, "t") >= closed)
    took = time.monotonic() - began
    measured.rate(f"archive, {where}", closed, took, server.cpu_seconds() - before)


def consumed(measured: Measurements, where: str, server: Server, manifest: Manifest) -> None:
    """Measure a consumer of history: the compiled client with large fetches, as users configure it for speed."""
    before = server.cpu_seconds()
    count = sum(one.records for one in manifest.live_totals())
    read = load.consume(server, "t", count, "-X", f"fetch.message.max.bytes={FETCH_BYTES}")
    size = manifest.live_bytes
    measured.rate(f"history, {where}", size, count / read.records, server.cpu_seconds() - before)


def bare_put(measured: Measurements, where: str, store: ObjectStore, pieces: list[bytes]) -> None:
    """Measure obstore alone, one object after another, with its default put."""
    bare = obstore_of(store)
    began, cpu = time.monotonic(), time.process_time()
    for number, piece in enumerate(pieces):
        obstore.put(bare, f"bench/{number}", piece)
    took = time.monotonic() - began
    size = sum(map(len, pieces))
    measured.rate(f"obstore's put, {where}", size, took, time.process_time() - cpu)
    if where == "directory":
        for number in range(len(pieces)):
            path = Path(unquote(urlsplit(store.url).path)) / "bench" / str(number)
            with path.open() as file:
                os.fsync(file.fileno())
        took, cpu_seconds = time.monotonic() - began, time.process_time() - cpu
        measured.rate(f"obstore's put and sync, {where}", size, took, cpu_seconds)
    obstore.delete(bare, [f"bench/{number}" for number in range(len(pieces))])


def bare_get(measured: Measurements, where: str, store: ObjectStore, manifest: Manifest) -> None:
    """Measure obstore alone: the same objects, one after another."""
    bare = obstore_of(store)
    began, cpu, size = time.monotonic(), time.process_time(), 0
    for segment in ArchiveManifests(store).live(manifest):
        size += len(obstore.get(bare, segment.path).bytes())
    took = time.monotonic() - began
    measured.rate(f"obstore's get, {where}", size, took, time.process_time() - cpu)


def obstore_of(store: ObjectStore) -> Any:
    """Return the obstore store below ours; for our own directory store, obstore's LocalStore."""
    bare = getattr(store, "_store", None)
    return bare if bare is not None else stores.LocalStore(store.url.removeprefix("file://"))


def planned(measured: Measurements, _scratch: Path, _bucket: str, _turn: int, _mb: int) -> None:
    topic_id = UUID(int=7 << 64)
    each, chance = 100_000_000, Random(7)
    segments = tuple(
        Entry(
            id=topic_id_text(UUID(int=chance.getrandbits(128))),
            base_offset=number * each // 200,
            last_offset=(number + 1) * each // 200 - 1,
            leader_epoch=1,
            size=each + 60_000,
            data_size=each,
            records=each // 200,
            min_timestamp=number * 3_600_000,
            max_timestamp=(number + 1) * 3_600_000 - 1,
            min_timestamp_exact=False,
            data_crc=chance.getrandbits(32),
            footer_crc=chance.getrandbits(32),
            leader_epochs=((1, 0),),
            state=SegmentState.COPY_FINISHED,
            state_ms=0,
        )
        for number in range(10_000)
    )
    end = segments[-1].last_offset + 1
    store = MemoryStore()
    context, folder = WriterContext(store, SystemEntropy()), PartitionFolder("c", topic_id, 0)
    tier = TierWriter.activate(context, folder, "t", Writer(0, 1), now_ms=0)
    tier.manifest = replace(tier.manifest, segments=segments, tiered_end=end)
    stored = encode(tier.spill(0))
    began = time.perf_counter()
    manifest = decode(stored, "here")
    wanted = Range("t", topic_id, 0, 0, end)
    live = list(ArchiveManifests(store).live(manifest))
    tasks = plan([(wanted, live)], has_broker=False, min_tasks=None)
    measured.note("plan of 1 TB in 10,000 segments, s", time.perf_counter() - began)
    archived = sum(named.size for named in manifest.archives)
    measured.note("its manifests, bytes a segment", (len(stored) + archived) / len(segments))
    assert len(tasks) >= 5000


def broker(scratch: Path, bucket: str):
    quick = {"remote__log__manager__task__interval__ms": "500"}
    quick |= {"log__retention__check__interval__ms": "500"}
    return strata(scratch / "strata", tier__url=bucket, **quick)


LINES = {
    "roll": roll,
    "lag": lag,
    "directory": archive_and_history,
    "minio": archive_and_history,
    "plan": planned,
}


@contextmanager
def bucket_for(name: str, scratch: Path) -> Iterator[str]:
    """Yield the URL of an empty bucket, on a new MinIO for the line `minio`."""
    if name != "minio":
        yield (scratch / "bucket").as_uri()
        return
    os.environ.update(ENVIRONMENT)
    with s3_server("minio", scratch) as server:
        with closing(S3Bucket(parse_bucket_url(server.url("tier")))) as bucket:
            bucket.create()
        yield server.url("tier")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mb", type=int, default=1024, help="history to archive and read")
    parser.add_argument("--only", choices=LINES, action="append")
    chosen = parser.parse_args()
    measured = Measurements()
    for turn in range(chosen.rounds):
        for name in chosen.only or LINES:
            scratch = Path(tempfile.mkdtemp(prefix="bench-tier-"))
            try:
                with bucket_for(name, scratch) as bucket:
                    LINES[name](measured, scratch, bucket, turn, chosen.mb)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    measured.report(f"{chosen.rounds} rounds")


if __name__ == "__main__":
    main()
