"""An open transaction survives a move of the node's directory from Apache Kafka to us, and back.

Method: one directory, one server.properties, one port. Kafka runs, then our server, then Kafka again, each on what the
other one left. librdkafka's producers keep their connection string: the transaction that they began at one node is
ended at the next one.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from tests.compat.apache_kafka import apache_kafka, kafka_process
from tests.integration.server_process import STRATA
from tests.integration.waiting import wait_for

pytestmark = [pytest.mark.timeout(300), pytest.mark.serial, pytest.mark.big]

WAIT_S = 60
FEATURES = ("group.version=0", "share.version=0", "streams.version=0")
"""Levels that we serve."""
SETTINGS = {"transaction__state__log__num__partitions": "2"}


def producer(address: str, name: str) -> Producer:
    made = Producer(
        {
            "bootstrap.servers": address,
            "transactional.id": name,
            "transaction.timeout.ms": 600_000,
            "log_level": 0,
        }
    )
    made.init_transactions(WAIT_S)
    return made


def write(one: Producer, *values: bytes) -> None:
    for value in values:
        one.produce("t", value, partition=0)
    assert one.flush(WAIT_S) == 0


def values(address: str, isolation: str) -> list[bytes]:
    """The values up to the end that a consumer of this isolation sees."""
    settings = {"bootstrap.servers": address, "group.id": "g", "log_level": 0}
    reader = Consumer(settings | {"isolation.level": isolation, "enable.partition.eof": True})
    reader.assign([TopicPartition("t", 0, 0)])
    found: list[bytes] = []
    try:
        while True:
            message = reader.poll(WAIT_S)
            assert message is not None, found
            if message.error() is not None:
                return found
            found.append(message.value() or b"")
    finally:
        reader.close()


def committed(address: str) -> list[bytes]:
    return values(address, "read_committed")


@contextmanager
def ours(place: Path, file: Path) -> Iterator[None]:
    """Run our server on Kafka's properties."""
    ready, log = place / "ready.json", place / "server.log"
    with log.open("wb") as output:
        words = [*STRATA, "server", str(file), "--ready-file", str(ready)]
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        wait_for(lambda: ready.exists() or process.poll() is not None, "our server")
        assert process.poll() is None, log.read_text()[-3000:]
        yield
    finally:
        process.terminate()
        process.wait(WAIT_S)


def test_open_transactions_survive_a_move_from_kafka_and_back(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    with apache_kafka(tmp_path, FEATURES, **SETTINGS) as address:
        admin = AdminClient({"bootstrap.servers": address})
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(WAIT_S)
        commits, aborts = producer(address, "commits"), producer(address, "aborts")
        for one, end in ((commits, commits.commit_transaction), (aborts, aborts.abort_transaction)):
            one.begin_transaction()
            write(one, b"kafka")
            end(WAIT_S)
            one.begin_transaction()
            write(one, b"to us")
        wait_for(lambda: committed(address) == [b"kafka"], "the first transaction")
    with ours(tmp_path, file):
        assert committed(address) == [b"kafka"]
        write(commits, b"and here")
        commits.commit_transaction(WAIT_S)
        aborts.abort_transaction(WAIT_S)
        wait_for(lambda: committed(address) == [b"kafka", b"to us", b"and here"], "the second one")
        for one in (commits, aborts):
            one.begin_transaction()
            write(one, b"back")
    with kafka_process(file, int(address.rpartition(":")[2])):
        assert committed(address) == [b"kafka", b"to us", b"and here"]
        write(commits, b"at home")
        commits.commit_transaction(WAIT_S)
        aborts.abort_transaction(WAIT_S)
        whole = [b"kafka", b"to us", b"and here", b"back", b"at home"]
        wait_for(lambda: committed(address) == whole, "the third one")
        assert len(values(address, "read_uncommitted")) == len(whole) + 3
