"""Measure the log cleaner beside Apache Kafka's: CPU time to clean the same log of 200 B records.

usage: python -m bench.cleaner [--records 2000000] [--keys 400000] [--codecs none,lz4] [--rounds 2] [--directory DIR]

Both clean the same segment files, which are written directly: records of 200 B with random keys, 80 in a batch. Ours is
one pass in this process. Kafka's is the CPU time of its cleaner's thread, in one JVM for all rounds of a codec, so that
the later rounds are warm; each round is a partition of its own. A pass reads the log twice, and each byte of the log
counts once. The measurements are megabytes per second of CPU time: other work on
the machine hardly changes them.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

from confluent_kafka.admin import AdminClient, NewTopic
from tests.compat.apache_kafka import kafka_process, properties
from tests.compat.tools import java_tool

from bench.cleaning import SEGMENT_BYTES, cleaned, write_segment
from stratalog.adapters.free_ports import free_ports
from stratalog.adapters.local_disk import LocalDisk
from stratalog.config import LogConfig
from stratalog.log.effects import run
from stratalog.log.recovery import load
from stratalog.wire.records import Record, build_batch

TOPIC = "table"
BATCH = 80
VALUE_BYTES = 170
CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": str(SEGMENT_BYTES),
    "min.cleanable.dirty.ratio": "0.01",
}
SETTINGS = {"log.cleaner.threads": "1", "log.cleaner.backoff.ms": "1000"}
THREAD = "kafka-log-clean"
"""The begin of the name of Kafka's thread, as the kernel has it."""
TICKS_A_SECOND = 100
CLEANED_WITHIN_S = 600


def batches(records: int, keys: int, codec: str) -> Iterator[tuple[int, bytes]]:
    """Yield (base offset, bytes) of each batch."""
    chance = Random(1)
    values = [chance.randbytes(VALUE_BYTES // 2) * 2 for _ in range(500)]
    for base in range(0, records, BATCH):
        made = [
            Record(
                0, 1_700_000_000_000 + at, b"key-%08d" % chance.randrange(keys), values[at % 500]
            )
            for at in range(base, base + BATCH)
        ]
        batch = build_batch(made, leader_epoch=0, codec=codec)
        batch[:8] = base.to_bytes(8, "big")
        yield base, bytes(batch)


def write_log(place: Path, records: int, keys: int, codec: str) -> int:
    """Write the segments, and an empty active one; return the bytes."""
    total, first, size = 0, 0, 0
    pieces: list[bytes] = []
    for base, data in batches(records, keys, codec):
        if size + len(data) > SEGMENT_BYTES:
            write_segment(place, first, pieces)
            pieces, size, first = [], 0, base
        pieces.append(data)
        size += len(data)
        total += len(data)
    write_segment(place, first, pieces)
    write_segment(place, records, [])
    return total


def ours(place: Path) -> float:
    """Clean the log in a directory; return the seconds of CPU time."""
    config = LogConfig(
        cleanup_policy=("compact",), segment_bytes=SEGMENT_BYTES, file_delete_delay_ms=0
    )
    disk = LocalDisk(str(place.parent))
    log = run(disk, load(place.name, config, clean=False, recovery_point=0, now_ms=0))
    log.synced(log.log_end_offset)
    began = time.process_time()
    cleaned(disk, log)
    return time.process_time() - began


def cpu_of_cleaner(pid: int) -> float:
    """Return the CPU seconds of Kafka's cleaner thread."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().startswith(THREAD):
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND
    raise AssertionError("Kafka has no cleaner thread")


def kafkas(place: Path, sources: list[Path]) -> list[float]:
    """Have Kafka clean copies of the logs one after another; return the CPU seconds of each."""
    ports = free_ports(2)
    file = place / "server.properties"
    file.write_text(properties(place, ports, SETTINGS))
    storage = "kafka.tools.StorageTool"
    cluster_id = java_tool(storage, "random-uuid").stdout.split()[-1]
    done = java_tool(storage, "format", "-t", cluster_id, "-c", str(file), "--standalone")
    assert done.returncode == 0, done.stderr
    data, address = place / "data", f"127.0.0.1:{ports[0]}"
    names = [f"{TOPIC}-{number}" for number in range(len(sources))]
    idle = {**CONFIG, "min.cleanable.dirty.ratio": "1.0"}
    with kafka_process(file, ports[0]):
        admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
        for future in admin.create_topics(
            [NewTopic(one, 1, 1, config=idle) for one in names]
        ).values():
            future.result(60)
    (data / ".kafka_cleanshutdown").unlink(missing_ok=True)
    for name, source in zip(names, sources, strict=True):
        for old in (data / f"{name}-0").glob("0*"):
            old.unlink()
        for segment in source.glob("0*.log"):
            shutil.copy(segment, data / f"{name}-0")
    found = []
    with kafka_process(file, ports[0]) as process:
        for name in names:
            before = cpu_of_cleaner(process.pid)
            words = ("--bootstrap-server", address, "--alter", "--entity-type", "topics")
            change = ("--entity-name", name, "--add-config", "min.cleanable.dirty.ratio=0.01")
            done = java_tool("kafka.admin.ConfigCommand", *words, *change)
            assert done.returncode == 0, done.stdout + done.stderr
            wait_until_cleaned(data / "cleaner-offset-checkpoint", name)
            found.append(cpu_of_cleaner(process.pid) - before)
    return found


def wait_until_cleaned(checkpoint: Path, name: str) -> None:
    deadline = time.monotonic() + CLEANED_WITHIN_S
    while True:
        lines = checkpoint.read_text().splitlines() if checkpoint.exists() else []
        if any(line.startswith(f"{name} 0 ") and not line.endswith(" 0") for line in lines):
            return
        assert time.monotonic() < deadline, f"Kafka does not clean {name}"
        time.sleep(0.5)


def measure(place: Path, codec: str, options: argparse.Namespace) -> None:
    sources = []
    for number in range(options.rounds):
        source = place / f"{codec}-{number}"
        source.mkdir()
        size = write_log(source, options.records, options.keys, codec) / 1e6
        (source / "partition.metadata").write_text("version: 0\ntopic_id: 0RUheZ4NQQeOgT8JP761aA\n")
        sources.append(source)
    kafka = place / f"kafka-{codec}"
    kafka.mkdir()
    theirs = [size / one for one in kafkas(kafka, sources)]
    mine = [size / ours(one) for one in sources]
    for name, rates in (("Stratalog", mine), ("Apache Kafka", theirs)):
        print(
            f"{codec:5} {size:6.0f} MB  {name:13} MB a CPU s: {', '.join(f'{r:.0f}' for r in rates)}"
        )
    print(f"{codec:5} the last round: {mine[-1] / theirs[-1]:.2f} times Apache Kafka's", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cleaner")
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--keys", type=int, default=400_000)
    parser.add_argument("--codecs", default="none,lz4")
    parser.add_argument("--rounds", type=int, default=2, help="the first one warms Kafka's JVM")
    parser.add_argument("--directory", help="where the logs are made")
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(dir=options.directory))
    try:
        for codec in options.codecs.split(","):
            measure(place, codec, options)
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
