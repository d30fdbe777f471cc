"""How many bytes peers send to a broker that joins, comes back, or lost its disk, however long the history is.

usage: python -m bench.rebuild [--unit-mb 8] [--times 1 10 100]

Three real nodes share a bucket in a directory. A topic of four partitions has replicas on nodes 1 and 2, and segments
of 1 MiB that leave the disk once the bucket has them. Then node 3 replaces node 2, is killed and misses some
records, comes back, is killed again, and comes back with an empty disk. The command prints, for each length of the
history, the bytes that node 3 appended as a follower, by its own metric. The bound is segment size x partitions.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.request import urlopen

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.cluster_processes import ClusterProcesses

from bench.peers import product_command
from stratalog.adapters.local_disk import LocalDisk
from stratalog.adapters.system import SystemEntropy
from stratalog.broker.storage.claim import format_directory

PARTITIONS: Final = 4
SEGMENT: Final = 1 << 20
RECORD: Final = 16 << 10
MISSED_MB: Final = 1
"""Megabytes that node 3 misses while it is down."""
WAIT_S: Final = 600
TOPIC: Final = "history"
NEW: Final = 3
CONFIG: Final = {
    "remote.storage.enable": "true",
    "segment.bytes": str(SEGMENT),
    "local.retention.bytes": "1",
    "retention.ms": "-1",
    "min.insync.replicas": "1",
}
SETTINGS: Final = {
    "monitor.listener": "127.0.0.1:0",
    "remote.log.manager.task.interval.ms": "500",
    "log.retention.check.interval.ms": "500",
    "replica.lag.time.max.ms": "5000",
}


def produce(nodes: ClusterProcesses, megabytes: int) -> None:
    """Write records of 16 KiB to all partitions in turn."""
    producer = Producer({"bootstrap.servers": nodes.address, "batch.size": 1 << 18, "log_level": 2})
    for number in range(megabytes * (1 << 20) // RECORD):
        while True:
            try:
                producer.produce(TOPIC, b"x" * RECORD, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    left = producer.flush(WAIT_S)
    if left:
        raise SystemExit(f"{left} records were not acknowledged within {WAIT_S} s")


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"no {what} within {WAIT_S} s")
        time.sleep(0.3)


def strata(nodes: ClusterProcesses, *words: str) -> str:
    done = subprocess.run(
        [product_command(), *words, "-b", nodes.address],
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


def local_bytes(nodes: ClusterProcesses, node: int) -> int:
    return sum(file.stat().st_size for file in nodes.data(node).glob(f"{TOPIC}-*/*.log"))


def received(nodes: ClusterProcesses) -> int:
    """Return the bytes of the topic that node 3 appended as a follower since its start."""
    port = json.loads((nodes.directory(NEW) / "ready.json").read_text())["monitor_port"]
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f'stratalog_topic_replication_bytes_in_total{{topic="{TOPIC}"}}'):
                return int(float(line.rpartition(" ")[2]))
    return 0


def is_whole(nodes: ClusterProcesses) -> bool:
    words = ("partition", "list", TOPIC, "--under-replicated", "--json")
    return json.loads(strata(nodes, *words)) == []


def empty_disk(nodes: ClusterProcesses) -> None:
    """Replace node 3's disk by an empty one, formatted for the same cluster."""
    meta = (nodes.data(NEW) / "meta.properties").read_text()
    (cluster_id,) = [
        line.partition("=")[2] for line in meta.splitlines() if line.startswith("cluster.id=")
    ]
    shutil.rmtree(nodes.data(NEW))
    disk = LocalDisk(str(nodes.data(NEW)))
    format_directory(str(nodes.data(NEW)), disk, NEW, cluster_id, SystemEntropy())
    disk.close()


def measured(place: Path, megabytes: int) -> list[int]:
    """Return the bytes that node 3 got: new, after it missed some, and with an empty disk."""
    settings = {**SETTINGS, "tier.url": (place / "bucket").as_uri()}
    nodes = ClusterProcesses(place, 3, settings, command=[product_command()])
    with nodes:
        admin = AdminClient({"bootstrap.servers": nodes.address})
        topic = NewTopic(TOPIC, PARTITIONS, replica_assignment=[[1, 2]] * PARTITIONS, config=CONFIG)
        for made in admin.create_topics([topic]).values():
            made.result(60)
        produce(nodes, megabytes)
        limit = PARTITIONS * SEGMENT
        for node in (1, 2):
            wait_for(lambda node=node: local_bytes(nodes, node) < limit, "empty disks")  # type: ignore[misc]
        found = []
        strata(nodes, "partition", "reassign", TOPIC, "--brokers", f"1,{NEW}")
        wait_for(lambda: is_whole(nodes), "whole partition")
        found.append(received(nodes))
        for change in (lambda: produce(nodes, MISSED_MB), lambda: empty_disk(nodes)):
            nodes.kill(NEW)
            change()
            nodes.start([NEW])
            wait_for(lambda: is_whole(nodes), "whole partition")
            found.append(received(nodes))
        return found


def main() -> None:
    """Print one row for each length of the history."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--unit-mb", type=int, default=8)
    parser.add_argument("--times", type=int, nargs="+", default=[1, 10, 100])
    options = parser.parse_args()
    sys.stdout.write(
        "| history, MB | new broker | missed 1 MB | empty disk | bound |\n|---|---|---|---|---|\n"
    )
    for times in options.times:
        with tempfile.TemporaryDirectory(prefix="stratalog-rebuild-") as place:
            got = measured(Path(place), times * options.unit_mb)
        cells = [times * options.unit_mb, *got, PARTITIONS * SEGMENT]
        sys.stdout.write("| " + " | ".join(f"{cell:,}" for cell in cells) + " |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
