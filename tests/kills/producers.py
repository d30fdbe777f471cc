"""Idempotent producers with acks=all that number their records: librdkafka's, and Apache Kafka's VerifiableProducer.

In: the addresses of a cluster, a topic. Out: each acknowledged record's number, by partition and offset; the errors. A
producer retries for longer than any fault lasts, so each error is a finding.
"""

import json
import subprocess
import threading
from collections import defaultdict
from pathlib import Path
from typing import IO, Protocol

from confluent_kafka import Message, Producer
from tests.compat.tools import java_command, java_environment

PARTITIONS = 3
PAUSE_S = 0.01
SIZE = 500
JAVA_PER_SECOND = 200
PATIENCE_S = 120
Ledger = dict[int, dict[int, int]]
"""Partition, offset: number of the record."""


class Numbered(Protocol):
    """A producer that runs. `acknowledged` grows meanwhile."""

    topic: str
    acknowledged: Ledger
    unplaced: dict[int, set[int]]
    """Numbers of records that were acknowledged without an offset, by partition.

    librdkafka reports a record so whose answer was lost, once a later one of its partition is acknowledged.
    """
    errors: list[str]

    def end(self) -> None:
        """Stop, once every record sent so far is answered."""

    def kill(self) -> None:
        """Stop at once."""


class Librdkafka:
    """librdkafka's producer: each partition's records are numbered from 0."""

    topic = "by-librdkafka"

    def __init__(self, address: str, _place: Path) -> None:
        self.acknowledged: Ledger = defaultdict(dict)
        self.unplaced: dict[int, set[int]] = defaultdict(set)
        self.errors: list[str] = []
        self._ended = threading.Event()
        self._killed = False
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 2,
                "message.timeout.ms": PATIENCE_S * 1000,
                "reconnect.backoff.max.ms": 200,
                "topic.metadata.refresh.fast.interval.ms": 50,
                "log_level": 2,
            }
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _delivered(self, error: object, message: Message) -> None:
        if error is not None:
            self.errors.append(str(error))
        else:
            number, offset = int(message.value().split(b" ")[0]), message.offset()
            if offset is None:
                self.unplaced[message.partition()].add(number)
            else:
                self.acknowledged[message.partition()][offset] = number

    def _run(self) -> None:
        number = 0
        while not self._ended.wait(PAUSE_S):
            value = (b"%d " % number).ljust(SIZE, b".")
            for partition in range(PARTITIONS):
                self._producer.produce(
                    self.topic, value, partition=partition, on_delivery=self._delivered
                )
            number += 1
            self._producer.poll(0)
        left = 0 if self._killed else self._producer.flush(PATIENCE_S)
        if left:
            self.errors.append(f"{left} records were never answered")

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def kill(self) -> None:
        self._killed = True
        self.end()


class Verifiable:
    """VerifiableProducer of Apache Kafka: all records are numbered together, so numbers rise in each partition."""

    topic = "by-java"

    def __init__(self, address: str, place: Path) -> None:
        self.acknowledged: Ledger = defaultdict(dict)
        self.unplaced: dict[int, set[int]] = {}
        self.errors: list[str] = []
        settings = place / "verifiable.properties"
        settings.write_text(  # the tool's own defaults retry nothing
            f"enable.idempotence=true\nretries=2147483647\ndelivery.timeout.ms={PATIENCE_S * 1000}\n"
            "request.timeout.ms=10000\nretry.backoff.ms=50\nreconnect.backoff.max.ms=200\n"
            # The default stays with a partition for seconds, so one may get nothing for a minute.
            "partitioner.class=org.apache.kafka.clients.producer.RoundRobinPartitioner\n"
        )
        words = ["--bootstrap-server", address, "--topic", self.topic]
        words += ["--throughput", str(JAVA_PER_SECOND), "--command-config", str(settings)]
        self._process = subprocess.Popen(
            java_command("org.apache.kafka.tools.VerifiableProducer", *words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=java_environment(),
        )
        assert self._process.stdout is not None
        self._thread = threading.Thread(target=self._read, args=(self._process.stdout,))
        self._thread.start()

    def _read(self, lines: IO[bytes]) -> None:
        with lines:
            for line in lines:
                event = json.loads(line)
                if event["name"] == "producer_send_success":
                    self.acknowledged[event["partition"]][event["offset"]] = int(event["value"])
                elif event["name"] == "producer_send_error":
                    self.errors.append(event["message"])

    def end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(PATIENCE_S)
        finally:
            self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()
