"""Measure how a consumer of history, and flooding clients, slow the other clients of our broker and of Apache Kafka.

usage: python -m bench.beside [--rounds 3] [--only history|floods] [--mb 384] [--records 500000] [--seconds 5]

Both brokers keep the same history in a directory (Kafka: LocalTieredStorage, from its own tests) and only the newest
segment on their disk. Four loads run in turn on each: a producer at full speed alone, and beside a consumer that reads
history repeatedly at full speed; a steady producer and a consumer at the tail alone, and beside one that reads history
at half of the measured speed. Then 16 connections pipeline ApiVersions, Metadata, Fetch and Produce without pause, and
another client sends requests beside them. Prints a table for RESULTS.md.
"""

import argparse
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from tests.fuzz.overload import CONNECTIONS, FLOODS, Target, flooded, prepared

from bench import load
from bench.broker import create, drop, touch_memory
from bench.peers import Server, kafka, rdkafka_performance, strata
from bench.tier import Measurements, fill

SEGMENT = 32 << 20
WAIT_S = 120
RATE = 1000
RECORD_BYTES = 1024
OURS, THEIRS = "Stratalog", "Apache Kafka"


class HistoryReader:
    """A consumer that reads the topic `history` repeatedly during the block, at most `rate` bytes a second."""

    def __init__(self, server: Server, rate: float | None = None) -> None:
        self.bytes_per_second = 0.0
        self._server, self._rate = server, rate
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> Self:
        self._thread.start()
        time.sleep(1)  # the consumer has started
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _read(self) -> None:
        options = {"enable.partition.eof": True, "group.id": "history"}
        consumer = Consumer({"bootstrap.servers": self._server.address, **options})
        beginning = TopicPartition("history", 0, OFFSET_BEGINNING)
        consumer.assign([beginning])
        began, size = time.monotonic(), 0
        while not self._ending.is_set():
            for message in consumer.consume(100, 0.1):
                if message.error() is None:
                    size += len(message.value())
                else:  # the topic's end
                    consumer.seek(beginning)
            while self._rate and size > self._rate * (time.monotonic() - began):
                time.sleep(0.002)
        self.bytes_per_second = size / (time.monotonic() - began)
        consumer.close()


class TailReader:
    """A consumer at the end of the topic `live` during the block; it notes the age of each record on arrival."""

    def __init__(self, server: Server, ages_file: Path) -> None:
        self.p99_ms = 0.0
        self._ages_file = ages_file
        ages_file.unlink(missing_ok=True)
        words = ["-C", "-t", "live", "-p", "0", "-o", "end", "-b", server.address, "-u", "-q"]
        self._process = subprocess.Popen(
            [str(rdkafka_performance()), *words, "-l", "-A", str(ages_file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def __enter__(self) -> Self:
        time.sleep(1)
        return self

    def __exit__(self, *_: object) -> None:
        time.sleep(0.5)
        self._process.terminate()
        self._process.wait(30)
        ages = [int(line) / 1000 for line in self._ages_file.read_text().split() if line.isdigit()]
        assert len(ages) > RATE, (
            f"the consumer at the tail received {len(ages)} records: too few for a p99"
        )
        self.p99_ms = statistics.quantiles(ages[RATE // 2 :], n=100)[98]


def produced(server: Server, records: int) -> float:
    """Return MB/s of one producer of 1 KiB records at full speed."""
    create(server, "busy", 1)
    try:
        return load.produce(server, "busy", RECORD_BYTES, records).rate
    finally:
        drop(server, "busy")


def live(server: Server, seconds: float, scratch: Path) -> tuple[float, float]:
    """Return p99 in ms of a steady producer, and of the age of records that reach a consumer at the tail."""
    with TailReader(server, scratch / "ages") as tail:
        _median, produce = load.latencies(server, "live", RATE, seconds)
    return produce, tail.p99_ms


def round_of(
    measured: Measurements, peer: str, server: Server, chosen: argparse.Namespace, scratch: Path
) -> None:
    touch_memory(chosen.records * 3 * RECORD_BYTES)
    alone = produced(server, chosen.records)
    with HistoryReader(server) as history:
        beside = produced(server, chosen.records)
    measured.note(f"produce alone, MB/s, {peer}", alone)
    measured.note(f"history beside it, MB/s, {peer}", history.bytes_per_second / 1e6)
    measured.note(f"produce beside history / alone, {peer}", beside / alone)
    quiet = live(server, chosen.seconds, scratch)
    with HistoryReader(server, history.bytes_per_second / 2):
        loaded = live(server, chosen.seconds, scratch)
    for what, before, after in zip(("produce", "consume"), quiet, loaded, strict=True):
        measured.note(f"p99 of live {what} alone, ms, {peer}", before)
        measured.note(
            f"p99 of live {what}, beside history at half speed / alone, {peer}", after / before
        )


def floods(measured: Measurements, peer: str, server: Server, place: Path, seconds: float) -> None:
    pid = server.process.pid
    target = Target(server.name, server.port, pid, place / "data", place / "log")
    requests = prepared(target)
    for name in FLOODS:
        seen, rate = flooded(target, requests, name, seconds)
        beside = f"beside {CONNECTIONS} connections of {name}"
        measured.note(f"p99 of another client {beside}, ms, {peer}", seen.beside.percentile_ms(99))
        measured.note(f"answers a second to the {CONNECTIONS}, {name}, {peer}", rate)


def make_history(server: Server, data: Path, size: int, records: int) -> None:
    """Create a tiered topic with all but the newest segment only in the bucket, and a topic for live records."""
    settings = {"remote.storage.enable": "true", "local.retention.ms": "1", "retention.ms": "-1"}
    more = {"segment.bytes": str(SEGMENT), "file.delete.delay.ms": "0"}
    create(server, "history", 1, settings | more)
    create(server, "live", 1)
    fill(server, "history", 1, size)
    deadline = time.monotonic() + WAIT_S
    while len(list((data / "history-0").glob("*.log"))) > 1:
        assert time.monotonic() < deadline, f"{server.name}: its history stays on its disk"
        time.sleep(0.2)
    load.produce(server, "live", RECORD_BYTES, records)  # a JVM warms up


@contextmanager
def both(scratch: Path) -> Iterator[dict[str, Server]]:
    quick = {"remote__log__manager__task__interval__ms": "500"}
    quick |= {"log__retention__check__interval__ms": "500"}
    url = (scratch / "bucket").as_uri()
    with ExitStack() as stack:
        yield {
            OURS: stack.enter_context(strata(scratch / "ours", tier__url=url, **quick)),
            THEIRS: stack.enter_context(kafka(scratch / "theirs", tiered=True)),
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mb", type=int, default=384, help="size of the history in MiB")
    parser.add_argument(
        "--records", type=int, default=500_000, help="records of a producer at full speed"
    )
    parser.add_argument(
        "--seconds", type=float, default=5, help="duration of each measurement at the tail"
    )
    parser.add_argument("--only", choices=("history", "floods"))
    chosen = parser.parse_args()
    measured = Measurements()
    scratch = Path(tempfile.mkdtemp(prefix="bench-beside-"))
    try:
        with both(scratch) as servers:
            places = {OURS: scratch / "ours", THEIRS: scratch / "theirs"}
            for peer, place in places.items() if chosen.only != "floods" else ():
                make_history(servers[peer], place / "data", chosen.mb << 20, chosen.records)
            for turn in range(chosen.rounds):
                for peer in list(servers) if turn % 2 == 0 else list(servers)[::-1]:
                    if chosen.only != "floods":
                        round_of(measured, peer, servers[peer], chosen, scratch)
                    if chosen.only != "history":
                        floods(measured, peer, servers[peer], places[peer], chosen.seconds)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    measured.report(f"{chosen.rounds} rounds")


if __name__ == "__main__":
    main()
