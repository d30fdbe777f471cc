"""Apache Kafka's `TransactionalMessageCopier` against our broker, killed again and again: each message once.

Method: as Kafka's own transactions_test.py. Two copiers, one for each input partition, copy in transactions that they
abort at random; both are killed with SIGKILL, and once the broker, or one of three nodes. A reader of committed records
then sees each message once.
"""

import subprocess
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from tests.compat.nodes import DEFAULT_FACTOR, EACH_NUMBER, Serving, kill_and_start, serving
from tests.compat.tools import java_command, java_environment

from stratalog import read

pytestmark = [pytest.mark.big, pytest.mark.timeout(900)]

MESSAGES = 5000
PARTITIONS = 2
KILLS = 4
PATIENCE_S = 300
MAIN = "org.apache.kafka.tools.TransactionalMessageCopier"


def copier(broker: Serving, partition: int, log: Path) -> "subprocess.Popen[bytes]":
    words = {
        "broker-list": broker.address,
        "input-topic": "in",
        "input-partition": str(partition),
        "output-topic": "out",
        "consumer-group": "copiers",
        "transaction-size": "100",
        "transaction-timeout": "5000",
        "transactional-id": f"copier-{partition}",
    }
    arguments = [part for name, value in words.items() for part in (f"--{name}", value)]
    with log.open("ab") as output:
        return subprocess.Popen(
            java_command(MAIN, *arguments, "--enable-random-aborts"),
            stdout=output,
            stderr=subprocess.STDOUT,
            env=java_environment(),
        )


def produced(broker: Serving) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    topics = [NewTopic(topic, PARTITIONS, DEFAULT_FACTOR) for topic in ("in", "out")]
    for future in admin.create_topics(topics).values():
        future.result(30)
    producer = Producer({"bootstrap.servers": broker.address})
    for number in range(MESSAGES):
        for partition in range(PARTITIONS):
            producer.produce("in", b"%d-%d" % (partition, number), partition=partition)
    assert producer.flush(60) == 0


def copied(broker: Serving) -> list[list[int]]:
    """Return the numbers in the output, by input partition."""
    reader = read("out", bootstrap_servers=broker.address, isolation="read_committed")
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    for value in reader.read_all().column("value").to_pylist():
        partition, _, number = value.decode().partition("-")
        found[int(partition)].append(int(number))
    return found


@EACH_NUMBER
def test_messages_are_copied_once_while_copiers_are_killed(tmp_path: Path, nodes: int) -> None:
    with serving(tmp_path, nodes, transaction__state__log__num__partitions="3") as broker:
        produced(broker)
        log = tmp_path / "copiers.log"
        running = [copier(broker, partition, log) for partition in range(PARTITIONS)]
        try:
            deadline = time.monotonic() + PATIENCE_S
            for kill in range(KILLS):
                before = sum(map(len, copied(broker)))
                while sum(map(len, copied(broker))) < min(before + 300, PARTITIONS * MESSAGES):
                    assert time.monotonic() < deadline, log.read_text()[-3000:]
                    time.sleep(0.2)
                if kill == 1:
                    kill_and_start(broker)
                for partition, process in enumerate(running):
                    process.kill()
                    process.wait()
                    running[partition] = copier(broker, partition, log)
            while any(len(one) < MESSAGES for one in copied(broker)):
                assert time.monotonic() < deadline, log.read_text()[-3000:]
                time.sleep(0.5)
        finally:
            for process in running:
                process.kill()
                process.wait()
        assert [sorted(one) for one in copied(broker)] == [list(range(MESSAGES))] * PARTITIONS
