"""Kafka Streams with exactly once against our broker: its own smoke test, whose processors and broker are killed.

Method: as its streams_smoke_test.py. `StreamsSmokeTest run` writes numbers and verifies what a reader of committed
records sees in the topics of results; `process` computes them. Two processors are killed with SIGKILL in the middle of
the work, the broker once, and the third processor finishes.
"""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from tests.compat.nodes import DEFAULT_FACTOR, EACH_NUMBER, Serving, kill_and_start, serving
from tests.compat.tools import KAFKA_VERSION, java_command, java_environment, kafka_jars

pytestmark = [pytest.mark.big, pytest.mark.timeout(1500)]

MAIN = "org.apache.kafka.streams.tests.StreamsSmokeTest"
TOPICS = (
    "data echo max min min-suppressed min-raw dif sum sws-raw sws-suppressed cnt avg tagg wcnt fk"
).split()
PARTITIONS = 5
PATIENCE_S = 400


@dataclass
class Program:
    """A JVM and what it has printed."""

    process: "subprocess.Popen[bytes]"
    log: Path

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, text: str) -> None:
        """Wait until the program has printed a text. Raise AssertionError with its last lines where it ends first."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.said():
            assert self.process.poll() is None, self.said()[-3000:]
            assert time.monotonic() < deadline, self.said()[-3000:]
            time.sleep(0.2)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def smoke_test(broker: Serving, place: Path) -> Iterator[Callable[[str], Program]]:
    """Yield a function that starts the driver (`run`) or a processor (`process`)."""
    streams = kafka_jars("kafka-streams", "kafka-streams")
    tests = [f"{name}:{KAFKA_VERSION}:test" for name in ("kafka-streams", "kafka-clients")]
    jars = (streams, kafka_jars("kafka-streams-tests", *tests, with_dependencies=False))
    started: list[Program] = []

    def start(command: str) -> Program:
        own = place / f"{command}-{len(started)}"
        own.mkdir()
        lines = {
            "bootstrap.servers": broker.address,
            "processing.guarantee": "exactly_once_v2",
            "state.dir": str(own),
            "session.timeout.ms": "6000",
        }
        file = own / "streams.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        with (own / "log").open("wb") as output:
            process = subprocess.Popen(
                java_command(MAIN, str(file), command, heap="512m", jars=jars),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=java_environment(),
            )
        started.append(Program(process, own / "log"))
        return started[-1]

    try:
        yield start
    finally:
        for one in started:
            one.kill()


@EACH_NUMBER
def test_streams_count_each_record_once_while_processors_and_the_broker_are_killed(
    tmp_path: Path, nodes: int
) -> None:
    with (
        serving(tmp_path / "broker", nodes, transaction__state__log__num__partitions="3") as broker,
        smoke_test(broker, tmp_path) as start,
    ):
        admin = AdminClient({"bootstrap.servers": broker.address})
        topics = [NewTopic(name, PARTITIONS, DEFAULT_FACTOR) for name in TOPICS]
        for future in admin.create_topics(topics).values():
            future.result(60)
        processor = start("process")
        processor.wait_for("REBALANCING -> RUNNING")
        driver = start("run")
        for kill in range(2):
            processor.wait_for("processed")
            assert "Result Verification" not in driver.said(), "too late to kill a processor"
            processor.kill()
            if kill:
                kill_and_start(broker)
            processor = start("process")
            processor.wait_for("REBALANCING -> RUNNING")
        assert driver.process.wait(PATIENCE_S) == 0, driver.said()[-3000:]
        said = driver.said()
        assert "SUCCESS" in said, said[-5000:]
        assert "PROCESSED-MORE-THAN-GENERATED" not in said
        assert "ALL-RECORDS-DELIVERED" in said
