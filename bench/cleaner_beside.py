"""Measure how a log cleaner slows another topic's producer, on our broker and on Apache Kafka.

usage: python -m bench.cleaner_beside [--rounds 3] [--seconds 10] [--only Stratalog] [--command STRATA]

A filler writes 13 MB/s of records of 900 B with 40,000 keys to a topic, and a steady producer measures the
acknowledgement of 500 records of 100 B a second in another topic. By turns the filler's topic is compacted, so that the
cleaner works all the time, or it is not. Everything else is the same. Prints a table for RESULTS.md.
"""

import argparse
import shutil
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Self

from confluent_kafka import Producer

from bench import load
from bench.broker import create, drop
from bench.peers import Server, kafka, prepare_kafka, strata
from bench.tier import Measurements

OURS, THEIRS = "Stratalog", "Apache Kafka"
SETTINGS = {"log.cleaner.backoff.ms": "200", "log.cleaner.threads": "1"}
SEGMENT = {"segment.bytes": str(8 << 20)}
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
KEYS = 40_000
RECORD_BYTES = 900
RATE = 500
BURST, PAUSE_S = 300, 0.02
FILLED_S = 4
CLEANED_SHARE = 0.8
"""A log that is cleaned has less than this share of what was written."""


class Filler:
    """Writes to a topic during the block."""

    def __init__(self, server: Server, topic: str) -> None:
        self.bytes = 0
        self._topic = topic
        buffered = {"linger.ms": 20, "queue.buffering.max.messages": 200_000}
        self._producer = Producer({"bootstrap.servers": server.address, **buffered})
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _write(self) -> None:
        chance = Random(1)
        value = chance.randbytes(RECORD_BYTES)
        while not self._ending.is_set():
            for _ in range(BURST):
                self._producer.produce(self._topic, value, b"k%d" % chance.randrange(KEYS))
            self.bytes += BURST * RECORD_BYTES
            self._producer.poll(0)
            time.sleep(PAUSE_S)
        self._producer.flush(60)


def turn(
    server: Server, data: Path, topic: str, seconds: float, *, compacted: bool
) -> tuple[float, float]:
    """Return p50 and p99 in ms of the steady producer, while a filler writes to the new topic `topic`."""
    create(server, topic, 1, SEGMENT | (COMPACTED if compacted else {}))
    with Filler(server, topic) as filler:
        time.sleep(FILLED_S)
        found = load.latencies(server, "live", RATE, seconds)
        left = sum(one.stat().st_size for one in (data / f"{topic}-0").glob("*.log"))
        is_cleaned = left < CLEANED_SHARE * filler.bytes
    assert is_cleaned == compacted, f"{topic}: {left} bytes are left of {filler.bytes}"
    drop(server, topic)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cleaner_beside")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--only", action="append", choices=(OURS, THEIRS))
    parser.add_argument("--command", default="", help="`strata` of another installation")
    parser.add_argument("--directory", help="where the logs are made")
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="bench-cleaner-", dir=options.directory))
    measured = Measurements()
    try:
        with ExitStack() as stack:
            servers = {}
            if OURS in (options.only or (OURS,)):
                ours = strata(place / OURS, options.command, **SETTINGS)
                servers[OURS] = stack.enter_context(ours)
            if THEIRS in (options.only or (THEIRS,)):
                theirs = place / "kafka"
                prepare_kafka(theirs)
                with (theirs / "server.properties").open("a") as file:
                    file.writelines(f"{name}={value}\n" for name, value in SETTINGS.items())
                servers[THEIRS] = stack.enter_context(kafka(theirs))
            for server in servers.values():
                create(server, "live", 1)
                load.produce(server, "live", 100, 200_000)  # a JVM warms up
            for number in range(options.rounds):
                for peer, server in servers.items():
                    data = place / ("kafka" if peer == THEIRS else OURS) / "data"
                    p99 = {}
                    for compacted in (False, True):
                        topic = f"{'compacted' if compacted else 'plain'}-{number}"
                        p50, p99[compacted] = turn(
                            server, data, topic, options.seconds, compacted=compacted
                        )
                        how = f"cleaner {'works' if compacted else 'idle'}, {peer}"
                        measured.note(f"p50, ms, {how}", p50)
                        measured.note(f"p99, ms, {how}", p99[compacted])
                    measured.note(f"p99, works / idle, {peer}", p99[True] / p99[False])
        measured.report(f"{options.rounds} rounds of {options.seconds:g} s")
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
