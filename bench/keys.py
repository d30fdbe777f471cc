"""Measure key filters, reads by key and the current table, on buckets in a directory.

usage: python -m bench.keys [--rounds 5] [--only archive|get|latest]... [--segments 200] [--mb 100] [--keys 10000000]

- archive: the least CPU time of archiving segments with a key filter, as a ratio to archiving without, in turns; for
  records of 200 B and of 1 KiB, each with a key of its own.
- get: the time and the bytes of `strata get` of one key among `--segments` segments of `--mb` MB, as a process of its
  own, with the page cache as it is; beside the size of all segments.
- latest: Spark's `latest_by_key` on `local[2]` over `--keys` keys of 200 B in four partitions, where every fifth key
  has two records. A read of a few rows comes first: a JVM takes a minute to warm up on a busy machine.

The records are copies of one batch with other keys. The command prints one line for each measurement.
"""

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from crc32c import crc32c
from tests.unit.table.buckets import CLUSTER, NOW_MS, topic_id

from stratalog.adapters.object_store import MemoryStore, open_store
from stratalog.adapters.system import SystemEntropy
from stratalog.ports import ObjectStore
from stratalog.tier.bucket.commit import Writer
from stratalog.tier.bucket.identity import claim_bucket, register_topic
from stratalog.tier.writing.archiver import ClosedSegment, PartitionFolder
from stratalog.tier.writing.tier_writer import TierWriter, WriterContext
from stratalog.wire.records import BatchBuilder

KEY_DIGITS = 12
BATCH_BYTES = 1 << 18


class Batches:
    """Batches of records of `size` bytes, each with the keys of consecutive numbers."""

    def __init__(self, size: int) -> None:
        self.records = max(1, BATCH_BYTES // size)
        builder = BatchBuilder()
        values = np.random.default_rng(1)
        for number in range(self.records):
            builder.add(b"%012d" % number, values.bytes(size - 30), NOW_MS)
        self._data = np.frombuffer(builder.build(0, 0), dtype=np.uint8).copy()
        whole = self._data.tobytes()
        places = [whole.index(b"%012d" % number) for number in range(self.records)]
        self._places = np.array(places)[:, None] + np.arange(KEY_DIGITS)

    def of(self, base: int, keys: np.ndarray) -> bytes:
        """Return the batch at offset `base` with these keys, numbers below 10**12."""
        digits = keys[:, None] // 10 ** np.arange(KEY_DIGITS - 1, -1, -1) % 10
        self._data[self._places] = digits + ord("0")
        data = bytearray(self._data.tobytes())
        data[:8] = base.to_bytes(8, "big")
        data[17:21] = crc32c(memoryview(data)[21:]).to_bytes(4, "big")
        return bytes(data)


def writer_of(store: ObjectStore, partitions: int = 1) -> list[TierWriter]:
    claim_bucket(store, CLUSTER, NOW_MS)
    register_topic(store, CLUSTER, topic_id("t"), "t", partitions, {}, NOW_MS)
    context = WriterContext(store, SystemEntropy())
    return [
        TierWriter.activate(
            context,
            PartitionFolder(CLUSTER, topic_id("t"), index),
            "t",
            Writer(1, 0),
            now_ms=NOW_MS,
        )
        for index in range(partitions)
    ]


def put(tier: TierWriter, base: int, batches: list[bytes], *, with_filter: bool) -> int:
    """Archive one segment from offset `base` on; return its end."""
    end = base + sum(int.from_bytes(one[57:61], "big") for one in batches)
    segment = ClosedSegment(
        base, end, lambda: batches, ((0, base),), aborted=(), has_key_filter=with_filter
    )
    tier.archive([segment], last_stable_offset=end, log_start_offset=0, now_ms=NOW_MS)
    return end


def bench_archive(rounds: int) -> None:
    for size in (200, 1024):
        made = Batches(size)
        count = (64 << 20) // BATCH_BYTES
        batches = [
            made.of(at * made.records, np.arange(made.records) + at * made.records)
            for at in range(count)
        ]
        records = count * made.records
        spent: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(rounds + 1):
            for with_filter in (False, True):
                (tier,) = writer_of(MemoryStore("memory://archive"))
                begun = time.process_time()
                put(tier, 0, batches, with_filter=with_filter)
                spent[with_filter].append((time.process_time() - begun) / records * 1e9)
        without, with_it = min(spent[False]), min(spent[True])
        ratios = [one / other for one, other in zip(spent[True], spent[False], strict=True)]
        print(
            f"archive {size} B: least CPU {without:.0f} and {with_it:.0f} ns a record: filter / none "
            f"{with_it / without:.2f} (rounds {min(ratios):.2f} to {max(ratios):.2f})",
            flush=True,
        )


def bench_get(place: Path, rounds: int, segments: int, mb: int) -> None:
    store = open_store(place.as_uri())
    (tier,) = writer_of(store)
    made = Batches(1024)
    base = 0
    for _ in range(segments):
        batches = []
        for _ in range(mb * 1_000_000 // BATCH_BYTES):
            first = base + len(batches) * made.records
            batches.append(made.of(first, np.arange(first, first + made.records)))
        base = put(tier, base, batches, with_filter=True)
    size = sum(file.stat().st_size for file in place.rglob("*.seg"))
    for number in range(rounds):
        key = base * (2 * number + 1) // (2 * rounds)
        words = ["get", "t", f"{key:012d}", "--tier-url", place.as_uri(), "--tier-only"]
        begun, spent = time.monotonic(), children_s()
        done = subprocess.run(
            [sys.executable, "-m", "stratalog.cli.main", *words],
            capture_output=True,
            check=True,
        )
        seconds = time.monotonic() - begun
        read = re.search(rb"from the bucket (\d+) bytes in (\d+) requests", done.stderr)
        assert read is not None, done.stderr
        share = int(read[1]) / size
        print(
            f"get of one key in {size / 1e9:.1f} GB, {segments} segments: {seconds:.2f} s, "
            f"{children_s() - spent:.2f} s of CPU, "
            f"{int(read[1]) / 1e6:.1f} MB in {int(read[2])} requests, {share:.2%} of the bytes",
            flush=True,
        )


def children_s() -> float:
    """Return the CPU seconds of ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def partition_of(made: Batches, first_key: int, keys: int) -> Iterator[bytes]:
    """Yield batches of `keys` keys from `first_key` on; every fifth key has a second record later."""
    numbers = np.arange(first_key, first_key + keys)
    numbers = np.concatenate([numbers, numbers[::5]])
    for base in range(0, len(numbers) - made.records + 1, made.records):
        yield made.of(base, numbers[base : base + made.records])


def bench_latest(place: Path, rounds: int, keys: int) -> None:
    from pyspark.sql import SparkSession

    partitions = 4
    made = Batches(200)
    tiers = writer_of(open_store(place.as_uri()), partitions)
    for index, tier in enumerate(tiers):
        base, batches = 0, []
        for one in partition_of(made, index * keys, keys // partitions):
            batches.append(one)
            if len(batches) * BATCH_BYTES >= 100_000_000:
                base, batches = put(tier, base, batches, with_filter=False), []
        if batches:
            put(tier, base, batches, with_filter=False)
    size = sum(file.stat().st_size for file in place.rglob("*.seg"))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    warming = {
        "tier.url": place.as_uri(),
        "subscribe": "t",
        "endingOffsets": json.dumps({"t": dict.fromkeys(range(partitions), 1000)}),
    }
    spark.read.format("stratalog").options(**warming).load().count()
    for latest in ["true", "false"] * rounds:
        options = {"tier.url": place.as_uri(), "subscribe": "t", "latest_by_key": latest}
        begun = time.monotonic()
        rows = spark.read.format("stratalog").options(**options).load()
        count = rows.selectExpr("count(*)", "sum(length(value))").collect()[0]
        seconds = time.monotonic() - begun
        print(
            f"latest_by_key={latest}: {count[0]} rows of {size / 1e9:.2f} GB in {seconds:.1f} s, "
            f"{size / 1e6 / seconds:.0f} MB/s",
            flush=True,
        )
    spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    lines = ("archive", "get", "latest")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", choices=lines)
    parser.add_argument("--segments", type=int, default=200)
    parser.add_argument("--mb", type=int, default=100)
    parser.add_argument("--keys", type=int, default=10_000_000)
    chosen = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="bench-keys-"))
    try:
        if "archive" in (chosen.only or lines):
            bench_archive(chosen.rounds)
        if "get" in (chosen.only or lines):
            (place / "get").mkdir()
            bench_get(place / "get", chosen.rounds, chosen.segments, chosen.mb)
            shutil.rmtree(place / "get")
        if "latest" in (chosen.only or lines):
            (place / "latest").mkdir()
            bench_latest(place / "latest", chosen.rounds, chosen.keys)
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
