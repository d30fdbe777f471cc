"""Kafka Connect and MirrorMaker 2 with exactly-once sources against our brokers: each record is there once.

Method: one distributed worker, `exactly.once.source.support=enabled`, with two connectors: a file's lines, and
MirrorMaker's source connector between two of our clusters. The worker is killed with SIGKILL again and again, and a
broker of the target once, while lines and transactions are written. Aborted records of the source must not be copied.
"""

import json
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from tests.compat.nodes import (
    DEFAULT_FACTOR,
    EACH_NUMBER,
    Serving,
    kill_and_start,
    serving,
)
from tests.compat.tools import java_command, java_environment, kafka_jars

from stratalog import read
from stratalog.adapters.free_ports import free_ports

pytestmark = [pytest.mark.big, pytest.mark.timeout(1500)]

LINES = 2000
TRANSACTIONS = 400
KILLS = 4
PATIENCE_S = 300
STATES = {"transaction__state__log__num__partitions": "3"}
STRING = "org.apache.kafka.connect.storage.StringConverter"
BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"


class Worker:
    """A worker of Connect, which may be killed and started again."""

    def __init__(self, place: Path, target: Serving) -> None:
        (self._port,) = free_ports(1)
        self._log = place / "connect.log"
        self._file = place / "connect.properties"
        self._process: subprocess.Popen[bytes] | None = None
        topics = {
            f"{kind}.storage.{name}": text
            for kind in ("config", "offset", "status")
            for name, text in (
                ("topic", f"connect-{kind}"),
                ("replication.factor", str(DEFAULT_FACTOR)),
            )
        }
        lines = {
            "bootstrap.servers": target.address,
            "group.id": "connect",
            "exactly.once.source.support": "enabled",
            "listeners": f"http://127.0.0.1:{self._port}",
            "rest.advertised.host.name": "127.0.0.1",
            "key.converter": STRING,
            "value.converter": STRING,
            "offset.flush.interval.ms": "500",
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "1000",
            "scheduled.rebalance.max.delay.ms": "0",
            "plugin.discovery": "service_load",
            **topics,
        }
        self._file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))

    def start(self) -> None:
        """Start the worker; return once it answers requests."""
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        artifacts = ("connect-runtime", "connect-file", "connect-mirror")
        jars = (kafka_jars("kafka-connect", *artifacts),)
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                java_command(main, str(self._file), heap="512m", jars=jars),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=java_environment(),
            )
        deadline = time.monotonic() + PATIENCE_S
        while True:
            assert self._process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            try:
                self.asked("GET", "/connectors")
            except (OSError, urllib.error.HTTPError):
                time.sleep(0.5)
            else:
                return

    def put(self, name: str, config: dict[str, str]) -> None:
        """Create a connector, once the worker has joined its group."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.asked("PUT", f"/connectors/{name}/config", config)
            except urllib.error.HTTPError as error:
                reason = error.read().decode()
                assert error.code in (409, 500, 503), reason  # it rebalances, or starts
                assert time.monotonic() < deadline, reason
                time.sleep(0.5)
            else:
                return

    def asked(self, method: str, path: str, body: dict[str, str] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}",
            data,
            {"Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def said(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextmanager
def writing(source: Serving, file: Path) -> Iterator[threading.Thread]:
    """Write lines to the file and transactions to the source, every fourth of which is aborted, for some time."""

    def lines() -> None:
        for number in range(LINES):
            with file.open("a") as out:
                out.write(f"line-{number}\n")
            time.sleep(0.02)

    def transactions() -> None:
        producer = Producer({"bootstrap.servers": source.address, "transactional.id": "m"})
        producer.init_transactions(60)
        for number in range(TRANSACTIONS):
            producer.begin_transaction()
            for partition in range(2):
                producer.produce("m", f"{partition}-{number}", partition=partition)
            producer.flush(60)
            (producer.commit_transaction if number % 4 else producer.abort_transaction)(60)
            time.sleep(0.05)

    def both() -> None:
        other = threading.Thread(target=transactions)
        other.start()
        lines()
        other.join()

    thread = threading.Thread(target=both)
    thread.start()
    try:
        yield thread
    finally:
        thread.join()


def copied(target: Serving, topic: str) -> Counter[bytes]:
    """What a reader of committed records sees."""
    reader = read(topic, bootstrap_servers=target.address, isolation="read_committed")
    return Counter(reader.read_all().column("value").to_pylist())


def create(broker: Serving, *topics: NewTopic) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    for future in admin.create_topics(list(topics)).values():
        future.result(60)


@EACH_NUMBER
def test_connectors_copy_each_record_once_while_worker_and_broker_are_killed(
    tmp_path: Path, nodes: int
) -> None:
    wanted_lines = Counter(b"line-%d" % number for number in range(LINES))
    wanted = Counter(
        b"%d-%d" % (partition, number)
        for partition in range(2)
        for number in range(TRANSACTIONS)
        if number % 4
    )
    file = tmp_path / "lines"
    file.touch()
    with (
        serving(tmp_path / "source", nodes, **STATES) as source,
        serving(tmp_path / "target", nodes, **STATES) as target,
    ):
        create(source, NewTopic("m", 2, DEFAULT_FACTOR))
        create(target, NewTopic("lines", 1, DEFAULT_FACTOR), NewTopic("a.m", 2, DEFAULT_FACTOR))
        worker = Worker(tmp_path, target)
        try:
            worker.start()
            worker.put("lines", lines_connector(file))
            worker.put("mirror", mirror_connector(source, target))
            with writing(source, file):
                for kill in range(KILLS):
                    before = copied(target, "lines").total(), copied(target, "a.m").total()
                    wait_until_more(worker, target, before)
                    worker.kill()
                    if kill == 1:
                        kill_and_start(target)
                    worker.start()
            deadline = time.monotonic() + PATIENCE_S
            while copied(target, "lines") != wanted_lines or copied(target, "a.m") != wanted:
                assert time.monotonic() < deadline, worker.said()
                time.sleep(1)
            time.sleep(3)  # a repeated record would come now
        finally:
            worker.kill()
        assert copied(target, "lines") == wanted_lines
        assert copied(target, "a.m") == wanted


def wait_until_more(worker: Worker, target: Serving, before: tuple[int, int]) -> None:
    """Wait until both connectors have copied more; a connector whose work is done need not."""
    deadline = time.monotonic() + PATIENCE_S
    whole = (LINES, 2 * (TRANSACTIONS - TRANSACTIONS // 4))
    while True:
        now = copied(target, "lines").total(), copied(target, "a.m").total()
        if all(one > old or one == all_ for one, old, all_ in zip(now, before, whole, strict=True)):
            return
        assert time.monotonic() < deadline, (before, now, worker.said())
        time.sleep(0.5)


def lines_connector(file: Path) -> dict[str, str]:
    return {
        "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
        "exactly.once.support": "required",
        "tasks.max": "1",
        "file": str(file),
        "topic": "lines",
    }


def mirror_connector(source: Serving, target: Serving) -> dict[str, str]:
    return {
        "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
        "exactly.once.support": "required",
        "tasks.max": "1",
        "source.cluster.alias": "a",
        "target.cluster.alias": "b",
        "source.cluster.bootstrap.servers": source.address,
        "target.cluster.bootstrap.servers": target.address,
        "source.consumer.isolation.level": "read_committed",
        "topics": "m",
        "replication.factor": str(DEFAULT_FACTOR),
        "offset-syncs.topic.replication.factor": str(DEFAULT_FACTOR),
        "key.converter": BYTES,
        "value.converter": BYTES,
    }
