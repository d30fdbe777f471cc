"""A task's memory is bounded for all batches: a few that decompress to 64 MiB, or many small ones.

Method: the most that Python and Arrow hold at once while a task in a process of its own reads a bucket many times
larger, from the process's peak of resident memory over what it had before.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.table.buckets import NOW_MS, Bucket

from stratalog.adapters.object_store import open_store
from stratalog.table.chunks import CHUNK_BYTES, READ_AHEAD_BYTES
from stratalog.wire.records import BatchBuilder

LARGE = 64 << 20

READER = """
import json, sys
from stratalog import ReadMetrics, read
from stratalog.kernels.decode import warm
warm()
assert read("t", tier_url=sys.argv[1], until=0).read_all().num_rows == 0  # what it loads is no matter here
def peak():
    (line,) = (line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak so far is forgotten: loading had one of its own
before = peak()
metrics = ReadMetrics()
rows = size = 0
for batch in read("t", tier_url=sys.argv[1], metrics=metrics):
    rows += batch.num_rows
    size += batch.nbytes
print(json.dumps({"rows": rows, "bytes": size, "held": peak() - before, "read": metrics.bucket_bytes}))
"""


def taken(place: Path) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", READER, place.as_uri()],
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
    )
    found: dict[str, int] = json.loads(done.stdout)
    return found


def large_batch(codec: str) -> bytes:
    """Return a batch that decompresses to LARGE bytes, in records of 1 MiB."""
    builder = BatchBuilder(codec)
    for number in range(LARGE >> 20):
        builder.add(None, bytes([number]) * ((1 << 20) - 32), NOW_MS)
    return bytes(builder.build(0, 0))


def small_batch() -> bytes:
    builder = BatchBuilder("none")
    for _ in range(10):
        builder.add(b"key", b"v" * 100, NOW_MS)
    return bytes(builder.build(0, 0))


@pytest.mark.parametrize(
    ("kind", "restored"), [("zstd", LARGE), ("none", 0)], ids=["large", "small"]
)
def test_a_task_holds_no_more_memory_than_its_bound(
    tmp_path: Path, kind: str, restored: int
) -> None:
    bucket = Bucket(open_store(tmp_path.as_uri()), index_interval_bytes=65536)
    bucket.create("t")
    if kind == "zstd":
        one, each, end = large_batch(kind), LARGE >> 20, 5 * LARGE >> 20
    else:
        one, each, end = small_batch(), 10, 1_500_000
    made = [base.to_bytes(8, "big") + one[8:] for base in range(0, end, each)]
    bucket.archive("t", 0, [made])
    found = taken(tmp_path)
    assert found["rows"] == end
    # The bound: the read-ahead twice (the C library keeps memory that threads freed), the chunk in use, the Arrow
    # batches of one step and its consumer, and one decompressed batch. Measured on a loaded machine: 47 to 66 MB for
    # small batches.
    bound = 2 * READ_AHEAD_BYTES + 3 * CHUNK_BYTES + restored + (24 << 20)
    assert restored < found["held"] < bound, found
    assert max(found["bytes"], found["read"]) > 2 * bound, "the bucket is too small to show a leak"
