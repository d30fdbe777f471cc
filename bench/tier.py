"""The tier's own lines: what copying costs producers, how fast history comes back, how long planning takes.

usage: python -m bench.tier [--rounds 5] [--mb 256] [--bucket s3://…] [--only LINE]

Without `--bucket` the bucket is a directory, and obstore's own figures are of a directory too (which it does not
sync). Lines alternate within a round; prints a table for RESULTS.md.

- roll: 64 partitions whose segments close together, while a steady producer is timed; on a tiered topic and on one
  that is not, and how long until all is in the bucket.
- archive: closed segments in the bucket, against obstore's put of the same bytes.
- history: a consumer reading a tiered topic through a fresh broker, against obstore's sequential get.
- plan: a partition of 10,000 segments of 100 MB, from the manifest's bytes to Spark's tasks.
"""

import argparse
import shutil
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import obstore
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from obstore import store as stores

from bench.broker import create, drop, spread, touch_memory
from bench.peers import Server, strata
from stratalog.adapters.object_store import open_store
from stratalog.table.plan import Range, plan
from stratalog.tier.manifest import Entry, Manifest, SegmentState, decode, encode
from stratalog.tier.reader import open_bucket
from stratalog.wire.ids import topic_id_text

PARTITIONS = 64
SEGMENT = 1 << 20
PROBE_RATE = 200
WAIT_S = 300
TIERED = {
    "remote.storage.enable": "true",
    "local.retention.ms": "0",
    "file.delete.delay.ms": "0",
}


class Figures:
    """Values by line."""

    def __init__(self) -> None:
        self.lines: dict[str, list[float]] = defaultdict(list)

    def note(self, line: str, value: float) -> None:
        self.lines[line].append(value)
        print(f"  {line}: {value:.3f}", flush=True)


@contextmanager
def probe(server: Server) -> Iterator[list[float]]:
    """Milliseconds from a record to its acknowledgement, one of 1 KiB every 5 ms while the block runs."""
    times: list[float] = []
    ending = threading.Event()
    producer = Producer({"bootstrap.servers": server.address, "linger.ms": 0})

    def write() -> None:
        while not ending.is_set():
            sent = time.perf_counter()

            def told(_error, _message, sent=sent) -> None:
                times.append((time.perf_counter() - sent) * 1000)

            producer.produce("probe", bytes(1024), on_delivery=told)
            producer.poll(1 / PROBE_RATE)
        producer.flush(30)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield times
    finally:
        ending.set()
        thread.join()


def fill(server: Server, topic: str, partitions: int, size: int) -> None:
    """`size` bytes in records of 10 KB, in turn over the partitions."""
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
    """Whether every partition's first segment is in the bucket."""
    opened = open_bucket(open_store(bucket))
    named = opened.topic("tiered")
    manifests = {} if named is None else opened.manifests(named)
    return sum(manifest.tiered_end > 0 for manifest in manifests.values()) == PARTITIONS


def wait_until(tiered: Callable[[], bool]) -> float:
    began = time.monotonic()
    while not tiered():
        assert time.monotonic() - began < WAIT_S, "not tiered"
        time.sleep(0.05)
    return time.monotonic() - began


def roll(figures: Figures, scratch: Path, bucket: str, _mb: int) -> None:
    with broker(scratch, bucket) as server:
        create(server, "probe", 1)
        touch_memory(400 << 20)
        medians = {}
        for who, settings in (("plain", {}), ("tiered", TIERED)):
            create(server, who, PARTITIONS, {"segment.bytes": str(SEGMENT), **settings})
            with probe(server) as times:
                fill(server, who, PARTITIONS, int(PARTITIONS * SEGMENT * 1.2))
                if settings:
                    lag = wait_until(lambda: all_rolled(bucket))
                    figures.note("roll: lag until all is in the bucket, s", lag)
                else:
                    time.sleep(1)
            medians[who] = statistics.quantiles(times, n=100)[98]
            figures.note(f"roll: p99 of produce beside it, {who}, ms", medians[who])
        figures.note("roll: p99, tiered / plain", medians["tiered"] / medians["plain"])
        for who in ("probe", "plain", "tiered"):
            drop(server, who)


def archive_and_history(figures: Figures, scratch: Path, bucket: str, mb: int) -> None:
    size = mb << 20
    touch_memory(2 * size)
    with broker(scratch, bucket) as server:
        waiting = {"remote.log.copy.disable": "true", "local.retention.ms": "-2"}
        create(server, "t", 1, {**TIERED, "segment.bytes": str(32 << 20), **waiting})
        fill(server, "t", 1, size)

        admin = AdminClient({"bootstrap.servers": server.address})
        entries = [
            ConfigEntry(
                "remote.log.copy.disable", "false", incremental_operation=AlterConfigOpType.SET
            ),
            ConfigEntry("local.retention.ms", "0", incremental_operation=AlterConfigOpType.SET),
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, "t", incremental_configs=entries)
        closed = size - (33 << 20)
        before = server.cpu_seconds()
        admin.incremental_alter_configs([resource])[resource].result(30)
        took = wait_until(lambda: tiered_bytes(bucket, "t") >= closed)
        copied = tiered_bytes(bucket, "t")
        figures.note("archive, MB/s", copied / took / 1e6)
        figures.note("archive, CPU s/GB", (server.cpu_seconds() - before) / copied * 1e9)
    opened = open_bucket(open_store(bucket))
    manifest = opened.manifest(opened.topic("t"), 0)
    with broker(scratch, bucket) as server:
        consumer = Consumer(
            {
                "bootstrap.servers": server.address,
                "group.id": "g",
                "fetch.message.max.bytes": 4 << 20,
            }
        )
        consumer.assign([TopicPartition("t", 0, 0)])
        before, began, read = server.cpu_seconds(), time.monotonic(), 0
        while read < copied - (1 << 20):
            read += sum(len(m.value()) for m in consumer.consume(1000, 5) if m.error() is None)
            assert time.monotonic() - began < WAIT_S
        figures.note("history through the broker, MB/s", read / (time.monotonic() - began) / 1e6)
        figures.note("history, CPU s/GB", (server.cpu_seconds() - before) / read * 1e9)
        consumer.close()
        sequential(figures, opened.store, manifest)
        drop(server, "t")


def sequential(figures: Figures, store, manifest: Manifest) -> None:
    """obstore alone: the same objects got one after another, and put elsewhere."""
    bare = getattr(store, "_store", None)
    if bare is None:
        bare = stores.LocalStore(store.root)
    began, size, pieces = time.monotonic(), 0, []
    for segment in manifest.live():
        pieces.append(bytes(obstore.get(bare, segment.path).bytes()))
        size += len(pieces[-1])
    figures.note("obstore's sequential get, MB/s", size / (time.monotonic() - began) / 1e6)
    began = time.monotonic()
    for number, piece in enumerate(pieces):
        obstore.put(bare, f"bench/{number}", piece)
    figures.note("obstore's put, MB/s", size / (time.monotonic() - began) / 1e6)
    obstore.delete(bare, [f"bench/{number}" for number in range(len(pieces))])


def planned(figures: Figures, _scratch: Path, _bucket: str, _mb: int) -> None:
    topic_id = UUID(int=7 << 64)
    each = 100_000_000
    segments = tuple(
        Entry(
            id=topic_id_text(UUID(int=number + 1 << 64)),
            base_offset=number * each // 200,
            last_offset=(number + 1) * each // 200 - 1,
            leader_epoch=1,
            size=each + 60_000,
            data_size=each,
            records=each // 200,
            min_timestamp=number * 3_600_000,
            max_timestamp=(number + 1) * 3_600_000 - 1,
            min_timestamp_exact=False,
            data_crc=1,
            footer_crc=1,
            leader_epochs=((1, 0),),
            state=SegmentState.COPY_FINISHED,
            state_ms=0,
        )
        for number in range(10_000)
    )
    end = segments[-1].last_offset + 1
    manifest = Manifest(
        cluster_id="c",
        topic_id=topic_id_text(topic_id),
        topic="t",
        partition=0,
        tiered_end=end,
        segments=segments,
    )
    stored = encode(manifest)
    began = time.perf_counter()
    wanted = Range("t", topic_id, 0, 0, end)
    tasks = plan([(wanted, decode(stored, "here"))], has_broker=False, min_tasks=None)
    figures.note("plan of 1 TB in 10,000 segments, s", time.perf_counter() - began)
    figures.note("its manifest, bytes a segment", len(stored) / len(segments))
    assert len(tasks) >= 5000


def broker(scratch: Path, bucket: str):
    quick = {"remote__log__manager__task__interval__ms": "500"}
    quick |= {"log__retention__check__interval__ms": "500"}
    return strata(scratch / "strata", tier__url=bucket, **quick)


LINES = {"roll": roll, "archive": archive_and_history, "plan": planned}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mb", type=int, default=256, help="history to archive and read")
    parser.add_argument("--bucket", help="an empty one; by default a directory")
    parser.add_argument("--only", choices=LINES, action="append")
    chosen = parser.parse_args()
    figures = Figures()
    for _ in range(chosen.rounds):
        for name in chosen.only or LINES:
            scratch = Path(tempfile.mkdtemp(prefix="bench-tier-"))
            try:
                LINES[name](
                    figures, scratch, chosen.bucket or (scratch / "bucket").as_uri(), chosen.mb
                )
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    print("| line | median (least-most) |\n|---|---|")
    for line, values in figures.lines.items():
        print(f"| {line} | {spread(values)} |")


if __name__ == "__main__":
    main()
