"""Write the fixture of directories that Apache Kafka leaves when it is killed around a compaction.

usage: python -m tests.golden.kafka_directories.make

In: Apache Kafka 4.3.1. Out: `compacted.tar.xz` beside this file, once. The archive holds one partition's directory
twice: `before` the cleaner ran, and `after` it, both with the node killed (SIGKILL). Each has Kafka's checkpoints.
"""

import shutil
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from tests.compat.apache_kafka import kafka_process, properties
from tests.compat.tools import java_tool

from stratalog.adapters.free_ports import free_ports

HERE = Path(__file__).parent
TOPIC = "compacted"
SEGMENTS = 6
RECORDS = 3
"""Records of a segment. The first record has its own key, except in the third segment; all others share a key."""
FIRST_MS = 1_700_000_000_000
TIMEOUT_S = 60
SETTINGS = {"log.cleaner.backoff.ms": "200", "log.flush.offset.checkpoint.interval.ms": "500"}
CONFIGS = {
    "cleanup.policy": "compact",
    "segment.ms": "1000",
    # The cleaner merges segments while their indexes fit into one.
    "segment.index.bytes": "60",
    "index.interval.bytes": "0",
    "min.cleanable.dirty.ratio": "0.01",
    "min.compaction.lag.ms": str(1 << 60),
    "delete.retention.ms": "0",
}


def fill(address: str) -> None:
    """Create the topic and produce `SEGMENTS` segments, by the records' time, and the active one."""
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=CONFIGS)])[TOPIC].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0, "enable.idempotence": True})
    for number in range(SEGMENTS * RECORDS + 1):
        segment, at = divmod(number, RECORDS)
        key = f"own-{segment}" if at == 0 and segment != 2 else "shared"
        timestamp = FIRST_MS + 10_000 * segment + at
        producer.produce(TOPIC, f"{number}", key, partition=0, timestamp=timestamp)
        assert producer.flush(TIMEOUT_S) == 0


def compact(address: str, directory: Path) -> None:
    """Let the cleaner run until it has cleaned all but the active segment."""
    admin = AdminClient({"bootstrap.servers": address})
    entry = ConfigEntry("min.compaction.lag.ms", "0", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)
    deadline = time.monotonic() + TIMEOUT_S
    cleaned = f"{TOPIC} 0 {SEGMENTS * RECORDS}"
    checkpoint = directory.parent / "cleaner-offset-checkpoint"
    while not (checkpoint.exists() and cleaned in checkpoint.read_text()):
        assert time.monotonic() < deadline, checkpoint.read_text() if checkpoint.exists() else "no"
        time.sleep(0.1)


def main() -> None:
    archive = HERE / f"{TOPIC}.tar.xz"
    if archive.exists():
        sys.exit(f"{archive} is there: a fixture is never made again")
    with tempfile.TemporaryDirectory() as place:
        scratch = Path(place)
        ports = free_ports(2)
        file = scratch / "server.properties"
        file.write_text(properties(scratch, ports, SETTINGS))
        storage = "kafka.tools.StorageTool"
        cluster_id = java_tool(storage, "random-uuid").stdout.split()[-1]
        done = java_tool(storage, "format", "-t", cluster_id, "-c", str(file), "--standalone")
        assert done.returncode == 0, done.stdout + done.stderr
        partition = scratch / "data" / f"{TOPIC}-0"
        for name, work in (("before", fill), ("after", lambda at: compact(at, partition))):
            with kafka_process(file, ports[0]) as process:
                work(f"127.0.0.1:{ports[0]}")
                time.sleep(1)  # the offsets' checkpoint
                process.kill()
                process.wait(TIMEOUT_S)
            shutil.copytree(partition, scratch / name)
            for checkpoint in partition.parent.glob("*checkpoint"):
                shutil.copy(checkpoint, scratch / name)
            shutil.copy(partition / "leader-epoch-checkpoint", scratch / name)
        with tarfile.open(archive, "w:xz") as out:
            for name in ("before", "after"):
                out.add(scratch / name, name)
    print(archive, archive.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
