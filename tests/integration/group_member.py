"""A member of a consumer group, in its own process, that writes down each assignment, record and commit.

In: a broker's address, a group, a topic, a file. Out: lines of JSON in the file, each written before the next step:
`{"assigned": [partitions]}`, `{"record": [partition, offset, value]}`, `{"committed": {partition: offset}}` once the
broker has acknowledged the commit. It runs until SIGTERM.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

SESSION_MS = 1500
STOP_TIMEOUT_S = 30


@dataclass
class Member:
    """A running member, as the test sees it."""

    process: subprocess.Popen[bytes]
    output: Path
    _lines: list[dict[str, Any]] = field(default_factory=list)
    _read_bytes: int = 0

    def lines(self) -> list[dict[str, Any]]:
        """Return the complete lines of the file so far. Each call reads only the new ones."""
        if self.output.exists():
            with self.output.open("rb") as output:
                output.seek(self._read_bytes)
                whole, end, _rest = output.read().rpartition(b"\n")
            self._read_bytes += len(whole) + len(end)
            self._lines += map(json.loads, whole.splitlines())
        return self._lines

    def records(self) -> list[tuple[int, int, str]]:
        return [tuple(line["record"]) for line in self.lines() if "record" in line]

    def committed(self) -> dict[int, int]:
        """Return the furthest acknowledged commit of each partition."""
        found: dict[int, int] = {}
        for line in self.lines():
            for partition, offset in line.get("committed", {}).items():
                found[int(partition)] = max(found.get(int(partition), 0), offset)
        return found

    def assignments(self) -> list[list[int]]:
        """Return the partitions of each assignment so far."""
        return [line["assigned"] for line in self.lines() if "assigned" in line]

    def stop(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        self.process.wait(STOP_TIMEOUT_S)


@contextmanager
def member(address: str, group: str, topic: str, output: Path) -> Iterator[Member]:
    """Run a member; end it when the block ends, also by an error."""
    with output.with_suffix(".log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.group_member", address, group, topic, output],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    running = Member(process, output)
    try:
        yield running
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(STOP_TIMEOUT_S)


def consume(address: str, group: str, topic: str, output: Path) -> None:
    """Consume and commit until SIGTERM."""
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: ended.append(number))
    with output.open("a", buffering=1) as out:

        def tell(**line: Any) -> None:
            out.write(json.dumps(line) + "\n")

        def assigned(_consumer: Consumer, partitions: list[TopicPartition]) -> None:
            tell(assigned=sorted(one.partition for one in partitions))

        consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": SESSION_MS // 5,
                "reconnect.backoff.max.ms": 200,
                "log_level": 2,
            }
        )
        consumer.subscribe([topic], on_assign=assigned)
        while not ended:
            messages = [one for one in consumer.consume(100, timeout=0.1) if one.error() is None]
            for message in messages:
                tell(record=[message.partition(), message.offset(), message.value().decode()])
            if messages:
                commit(consumer, messages, tell)
        consumer.close()


def commit(consumer: Consumer, messages: list[Message], tell: Any) -> None:
    """Commit the consumed offsets; write down only acknowledged commits."""
    ends: dict[int, int] = {}
    for message in messages:
        ends[message.partition()] = message.offset() + 1
    offsets = [TopicPartition(messages[0].topic(), one, end) for one, end in ends.items()]
    try:
        done = consumer.commit(offsets=offsets, asynchronous=False)
    except KafkaException:
        return  # the broker is down or the group rebalances: a member will consume these records again
    tell(committed={one.partition: one.offset for one in done if one.error is None})


if __name__ == "__main__":
    consume(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
