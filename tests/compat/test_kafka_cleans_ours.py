"""Apache Kafka's own log cleaner cleans a directory that ours has cleaned, and changes nothing.

Method: our server writes a compacted topic of every codec, with tombstones and transactions, and cleans it. Then Apache
Kafka starts on the directory without `cleaner-offset-checkpoint`: to its cleaner all is dirty.
"""

import re
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.compat.apache_kafka import properties
from tests.compat.test_kafka_directories import SESSION, TIMEOUT_S, client, kafka, ours_on
from tests.compat.tools import java_tool

from stratalog.adapters.free_ports import free_ports
from stratalog.wire.batch import crc_holds, scan
from stratalog.wire.records import Record, read_records

pytestmark = [pytest.mark.timeout(300), pytest.mark.serial, pytest.mark.big]
TOPIC = "table"
CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "0.01",
}
SETTINGS = {"log.cleaner.backoff.ms": "200", "log.cleaner.min.cleanable.ratio": "0.01", **SESSION}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
KEYS, RECORDS, VALUE_BYTES = 50, 8000, 1000
Kept = list[tuple[object, ...]]


def fill(address: str) -> None:
    """Write values and tombstones with a producer of each codec; each fourth batch is in a transaction that ends."""
    chance = Random(1)
    for turn, codec in enumerate(CODECS * 2):
        settings = {"compression.type": codec, "linger.ms": 5}
        is_transactional = turn % 2 == 1
        if is_transactional:
            settings["transactional.id"] = f"t-{turn}"
        producer = Producer(client(address) | settings)
        if is_transactional:
            producer.init_transactions(TIMEOUT_S)
            producer.begin_transaction()
        for _ in range(RECORDS // 10):
            value = None if chance.random() < 0.1 else chance.randbytes(VALUE_BYTES)
            producer.produce(TOPIC, value, b"key-%d" % chance.randrange(KEYS))
        assert producer.flush(TIMEOUT_S) == 0
        if is_transactional:
            (producer.abort_transaction if turn == 3 else producer.commit_transaction)(TIMEOUT_S)


def batches(directory: Path) -> tuple[list[Record], Kept]:
    """Return all records of a log, and the headers of the batches that have some."""
    records: list[Record] = []
    headers: Kept = []
    for path in sorted(directory.glob("*.log")):
        data = memoryview(path.read_bytes())
        for at, header in scan(data):
            assert crc_holds(data, at, header)
            if header.record_count:
                records += read_records(data[at : at + header.size])
                headers.append(tuple(header))
    return records, headers


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 2 * TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def test_kafkas_cleaner_changes_nothing_that_ours_cleaned(tmp_path: Path) -> None:
    ports = free_ports(2)
    file, data = tmp_path / "server.properties", tmp_path / "data"
    file.write_text(properties(tmp_path, ports, SETTINGS))
    storage = "kafka.tools.StorageTool"
    cluster_id = java_tool(storage, "random-uuid").stdout.split()[-1]
    lower = ("--release-version", "4.0", "--feature", "group.version=0")
    done = java_tool(storage, "format", "-t", cluster_id, "-c", str(file), "--standalone", *lower)
    assert done.returncode == 0, done.stdout + done.stderr
    log, checkpoint = data / f"{TOPIC}-0", data / "cleaner-offset-checkpoint"
    with ours_on(file, ports[0]):
        address = f"127.0.0.1:{ports[0]}"
        admin = AdminClient(client(address))
        made = admin.create_topics([NewTopic(TOPIC, 1, 1, config=CONFIG)])
        made[TOPIC].result(TIMEOUT_S)
        fill(address)
        until(lambda: len(batches(log)[0]) < RECORDS // 4, "our cleaner cleans")
        time.sleep(2)  # a last pass ends
    before = batches(log)
    first = min(log.glob("*.log"))
    inode = first.stat().st_ino
    checkpoint.unlink()
    cleaned = re.compile(rf"^{TOPIC} 0 [1-9]", re.MULTILINE)
    with kafka(file, ports[0]):
        until(
            lambda: checkpoint.exists() and bool(cleaned.search(checkpoint.read_text())),
            "Kafka's cleaner cleans",
        )
    assert first.stat().st_ino != inode, "Kafka has written the segment anew"
    assert batches(log) == before
