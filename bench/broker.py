"""Measure our broker beside a warm Apache Kafka: throughput, latency, broker CPU, memory, starts.

usage: python -m bench.broker [--rounds 5] [--warm-gb 4] [--only LINE]... [--scale 1.0] [--against STRATA] [--set N=V]

The same compiled client loads both brokers, in turn, round by round. The command prints a table for RESULTS.md:
medians, spread and ratios. A JVM is warm after about 4 GB. `--only` selects lines whose name contains the text (see
--list); `--scale 0.1` makes every load a tenth. `--against` puts another version of this project in Kafka's place:
the path of its `strata` command. `--set` gives this version a setting. `--floor` loads a third program in the same
rounds, which makes the system calls of a line and decides nothing (bench/floor.c): what no broker can undercut. The
command leaves neither processes nor files.
"""

import argparse
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from hatch_build import compile_in_place

from bench import floor, load
from bench.peers import Server, kafka, prepare_kafka, product_command, strata
from stratalog.wire import walk

Starter = Callable[[Path], AbstractContextManager[Server]]
HOUR_MS = 3_600_000
WIDE_PARTITIONS, WIDE_SEGMENTS = 1000, 10
MEMORY_TOPICS = 10
MANY_CONNECTIONS = (1, 16, 200)
CONSUMERS, LATENCY_RATES = 100, (2_000, 20_000)


@dataclass
class Bench:
    """The chosen options, and the measurements so far: by line, then by broker, one value a round."""

    rounds: int
    scale: float
    only: list[str]
    scratch: Path
    starters: Mapping[str, Callable[[Path], AbstractContextManager[Any]]]
    """The two brokers, or clusters, by name, ours first; the floor behind them, if it is wanted."""
    measured: dict[str, dict[str, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )

    def wants(self, line: str) -> bool:
        return not self.only or any(one in line for one in self.only)

    def count(self, full: int) -> int:
        return max(1000, round(full * self.scale))

    def brokers(self) -> Mapping[str, Callable[[Path], AbstractContextManager[Any]]]:
        return {name: start for name, start in self.starters.items() if name != floor.NAME}

    def note(self, line: str, peer: str, value: float) -> None:
        self.measured[line][peer].append(value)


# Lines on two running brokers. Each call runs one round on one broker; round -1 only warms the broker.


def produce_1k(bench: Bench, peer: str, server: Server, topic: str) -> None:
    """Measure one producer of 1 KiB records, and then a consumer of them."""
    count = bench.count(1_000_000)
    touch_memory(count * 2048)
    made = load.produce(server, topic, 1024, count)
    read = load.consume(server, topic, count)
    bench.note("produce 1 KiB, MB/s", peer, made.rate)
    bench.note("produce 1 KiB, CPU s/GB", peer, made.cpu)
    bench.note("consume 1 KiB, MB/s", peer, read.rate)
    bench.note("consume 1 KiB, CPU s/GB", peer, read.cpu)


def produce_100(bench: Bench, peer: str, server: Server, topic: str) -> None:
    count = bench.count(5_000_000)
    touch_memory(count * 200)
    made = load.produce(server, topic, 100, count)
    bench.note("produce 100 B, MB/s", peer, made.rate)
    bench.note("produce 100 B, CPU s/GB", peer, made.cpu)


def made_batches(bench: Bench, peer: str, server: Server, topic: str) -> None:
    """Measure a producer of ready batches, because librdkafka spends more on a small record than either broker."""
    seconds = 2 * bench.scale
    for size, name in ((1024, "1 KiB"), (100, "100 B")):
        touch_memory(
            round(seconds * 1.2e9)
        )  # as much as either broker needs: otherwise the faster one pays for new memory
        made = load.made_batches(server, topic, size, seconds)
        bench.note(f"made batches of {name}, MB/s", peer, made.rate)
        bench.note(f"made batches of {name}, CPU s/GB", peer, made.cpu)


def thousand_partitions(bench: Bench, peer: str, server: Server, topic: str) -> None:
    """Measure one producer of 1 KiB records, spread at random over 1,000 partitions."""
    count = bench.count(500_000)
    touch_memory(count * 2048)
    made = load.produce(server, topic, 1024, count, "-X", load.MANY)
    bench.note("1,000 partitions, MB/s", peer, made.rate)
    bench.note("1,000 partitions, CPU s/GB", peer, made.cpu)


def many_connections(bench: Bench, peer: str, server: Server, topic: str) -> None:
    for count in MANY_CONNECTIONS:
        rate, cpu = load.many_producers(server, topic, count, 5 * bench.scale)
        name = "1 connection" if count == 1 else f"{count} connections"
        bench.note(f"{name}, requests/s", peer, rate)
        bench.note(f"{name}, CPU ms/request", peer, cpu)


def latency(bench: Bench, peer: str, server: Server, topic: str) -> None:
    for rate in LATENCY_RATES:
        middle, slow = load.latencies(server, topic, rate, max(2.0, 6 * bench.scale))
        bench.note(f"latency at {rate:,}/s, p50 ms", peer, middle)
        bench.note(f"latency at {rate:,}/s, p99 ms", peer, slow)


def tail(bench: Bench, peer: str, server: Server, topic: str) -> None:
    rate, cpu = load.tail_consumers(server, topic, CONSUMERS, 5 * bench.scale)
    bench.note("100 consumers at the tail, MB/s", peer, rate)
    bench.note("100 consumers at the tail, CPU s/GB", peer, cpu)


RUNNING = {
    "produce 1 KiB, consume": (produce_1k, 1),
    "produce 100 B": (produce_100, 1),
    "made batches": (made_batches, 1),
    "1,000 partitions": (thousand_partitions, WIDE_PARTITIONS),
    "16 connections": (many_connections, 1),
    "latency": (latency, 1),
    "100 consumers": (tail, 1),
}
FLOORED = (produce_1k, produce_100, made_batches, many_connections, latency)
"""The lines whose requests the floor answers."""
FIRST, WIDE = "start to first record", "start with 1,000 partitions of 10 segments"
MEMORY = "memory idle and with 10,000 partitions, made and stopped"


def running(bench: Bench, warm_gb: float) -> None:
    """Measure all lines of `RUNNING` on one warm pair of brokers."""
    lines = {name: line for name, line in RUNNING.items() if bench.wants(name)}
    if not lines:
        return
    with ExitStack() as stack:
        pair = {
            peer: stack.enter_context(start(bench.scratch / f"running-{peer}"))
            for peer, start in bench.starters.items()
        }
        for peer in bench.brokers():
            server = pair[peer]
            create(server, "warm", 1)
            for _ in range(round(warm_gb)):
                load.produce(server, "warm", 1024, 1_000_000)
            if warm_gb >= 1:
                load.consume(server, "warm", round(warm_gb) * 1_000_000)
            drop(server, "warm")
        warming = Bench(
            1, bench.scale, [], bench.scratch, bench.starters
        )  # its measurements are dropped
        for number in range(-1, bench.rounds):
            for line, partitions in lines.values():
                if number < 0 and line in (produce_1k, produce_100):
                    continue  # warm already
                topic = f"{line.__name__}-{number + 1}"
                # The second broker finds memory as the first left it: take turns.
                peers = [peer for peer in pair if peer != floor.NAME or line in FLOORED]
                for peer in peers if number % 2 == 0 else peers[::-1]:
                    create(pair[peer], topic, partitions)
                    line(bench if number >= 0 else warming, peer, pair[peer], topic)
                for peer in peers:
                    drop(pair[peer], topic)
        if bench.wants("produce 1 KiB, consume"):
            for peer, server in pair.items():
                bench.note("resident after the load, MB", peer, server.resident_mb())


# Starts and memory: each line has its own brokers.


def first_record(server: load.Loaded, topic: str, acks: str = "1") -> None:
    """Return once a record is acknowledged."""
    options = {
        "retry.backoff.ms": 10,
        "reconnect.backoff.ms": 10,
        "reconnect.backoff.max.ms": 20,
        "log_level": 2,
    }
    producer = Producer(
        {"bootstrap.servers": server.address, "acks": acks, "linger.ms": 0, **options}
    )
    acknowledged = []
    producer.produce(
        topic, b"x", partition=0, on_delivery=lambda error, _m: acknowledged.append(error)
    )
    assert producer.flush(120) == 0
    assert acknowledged == [None], acknowledged


def starts(bench: Bench) -> None:
    for number in range(bench.rounds):
        for peer, start in bench.brokers().items():
            directory = bench.scratch / f"first-{peer}-{number}"
            prepare(start, directory)
            begun = time.monotonic()
            with start(directory) as server:
                first_record(server, "first")
                bench.note("start to first acknowledged record, s", peer, time.monotonic() - begun)
                bench.note("resident with one topic, MB", peer, server.resident_mb())
            shutil.rmtree(directory)


def wide_starts(bench: Bench) -> None:
    """Measure starts with 1,000 partitions of 10 segments: after a clean stop, and after `kill -9` under load."""
    # Kafka accepts no small segments, but rolls by the records' time.
    ages = range(WIDE_SEGMENTS + bench.rounds, 0, -1)
    now_ms = round(time.time() * 1000)
    batches = [load.batch(1024, 10, now_ms - age * HOUR_MS) for age in ages]
    partitions = max(10, round(WIDE_PARTITIONS * bench.scale))
    for peer, start in bench.brokers().items():
        with start(bench.scratch / f"wide-{peer}") as server:
            settings = {"segment.ms": str(HOUR_MS // 2), "retention.ms": "-1"}
            create(server, "wide", partitions, settings)
            for records in batches[:WIDE_SEGMENTS]:
                load.once(server, "wide", partitions, records)
    for number in range(bench.rounds):
        for peer, start in bench.brokers().items():
            directory = bench.scratch / f"wide-{peer}"
            begun = time.monotonic()
            with start(directory) as server:
                first_record(server, "wide")
                bench.note(f"{WIDE}, clean, s", peer, time.monotonic() - begun)
                load.once(server, "wide", partitions, batches[WIDE_SEGMENTS + number])
                server.kill()
            begun = time.monotonic()
            with start(directory) as server:
                first_record(server, "wide")
                bench.note(f"{WIDE}, after kill -9, s", peer, time.monotonic() - begun)


def memory(bench: Bench) -> None:
    """Measure, once: idle memory, 10,000 new partitions of one record each, memory with them, and the stop."""
    records = load.batch(100, 1, round(time.time() * 1000))
    partitions = max(10, round(WIDE_PARTITIONS * bench.scale))
    for peer, start in bench.brokers().items():
        with start(bench.scratch / f"memory-{peer}") as server:
            time.sleep(1)
            bench.note("resident idle, MB", peer, server.resident_mb())
            many = f"{MEMORY_TOPICS * partitions:,} partitions"
            begun = time.monotonic()
            for number in range(MEMORY_TOPICS):
                create(server, f"wide-{number}", partitions)
            bench.note(f"create {many}, s", peer, time.monotonic() - begun)
            for number in range(MEMORY_TOPICS):
                load.once(server, f"wide-{number}", partitions, records)
            bench.note(f"resident with {many}, MB", peer, server.resident_mb())
            begun = time.monotonic()
            server.stop()
            bench.note(f"stop {many}, s", peer, time.monotonic() - begun)


# Shared by all lines.


def create(
    server: Server, topic: str, partitions: int, settings: dict[str, str] | None = None
) -> None:
    admin = AdminClient({"bootstrap.servers": server.address})
    wanted = NewTopic(topic, partitions, 1, config=settings or {})
    for future in admin.create_topics([wanted], operation_timeout=60).values():
        future.result(60)
    for _ in range(600):  # both brokers answer before every partition has a leader
        found = admin.list_topics(topic, timeout=30).topics[topic].partitions
        if len(found) == partitions and all(one.leader >= 0 for one in found.values()):
            return
        time.sleep(0.1)
    raise SystemExit(f"{topic} has no leaders")


def drop(server: load.Loaded, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": server.address})
    for future in admin.delete_topics([topic], operation_timeout=60).values():
        future.result(60)


def touch_memory(size: int) -> None:
    """Write and delete `size` bytes, because the first touch of memory costs a virtual machine ten times as much."""
    with tempfile.TemporaryFile(prefix="bench-touch-") as scratch:
        piece = bytes(8 << 20)
        for _ in range(size // len(piece)):
            scratch.write(piece)


def report(bench: Bench, seconds: float) -> None:
    """Print the circumstances of a run of `seconds` seconds, and its table."""
    load_average = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    print(
        f"{time.strftime('%Y-%m-%d')}, {bench.rounds} rounds, {os.cpu_count()} cores, load {load_average}, "
        f"{seconds / 60:.0f} minutes, Python {platform.python_version()} in {sys.base_prefix}\n"
    )
    ours, theirs, *others = bench.starters
    print(f"| line | {ours} | {theirs} | ratio |" + "".join(f" {one} | ratio |" for one in others))
    print("|---" * (4 + 2 * len(others)) + "|")
    for line, by in bench.measured.items():
        cells = [values_of(by[ours]), *beside(by[ours], by[theirs])]
        for other in others:
            cells += beside(by[ours], by[other])
        print(f"| {line} | {' | '.join(cells)} |")


def beside(ours: list[float], theirs: list[float]) -> tuple[str, str]:
    """Return two cells of the table: their values, and the ratios of ours to theirs."""
    # A run that was interrupted has more values of one than of the other.
    ratios = [a / b for a, b in zip(ours, theirs, strict=False) if b]
    return values_of(theirs), spread(ratios, 2) if ratios else ""


def values_of(values: list[float]) -> str:
    return spread(values) if values else ""


def spread(values: list[float], digits: int | None = None) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    if digits is None:
        digits = 0 if middle >= 100 else 1 if middle >= 10 else 2 if middle >= 0.1 else 3
    if len(values) == 1:
        return f"{middle:.{digits}f}"
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def prepare(start: Starter, directory: Path) -> None:
    """Install this checkout and format Apache Kafka's directory: neither counts as a part of the start."""
    if start is kafka:
        prepare_kafka(directory)
    else:
        product_command()


OWN = {FIRST: starts, WIDE: wide_starts, MEMORY: memory}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm-gb", type=float, default=4)
    parser.add_argument("--only", action="append", default=[], metavar="LINE")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--against", metavar="STRATA", help="the `strata` of another version")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="of ours")
    parser.add_argument("--floor", action="store_true", help="the system calls alone, too")
    parser.add_argument("--list", action="store_true", help="the lines' names")
    chosen = parser.parse_args()
    if chosen.list:
        print("\n".join([*RUNNING, *OWN]))
        return
    if not walk.__file__.endswith((".so", ".pyd")):
        compile_in_place(Path(__file__).parents[1])  # as in an installation
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as scratch:
        settings = dict(one.split("=", 1) for one in chosen.set)
        ours = partial(strata, **settings)
        starters: dict[str, Starter] = {"Stratalog": ours, "Apache Kafka": kafka}
        if chosen.against:
            other = partial(strata, command=chosen.against)
            starters = {"this version": ours, "the other version": other}
        if chosen.floor and floor.is_possible():
            starters[floor.NAME] = floor.floor
        bench = Bench(chosen.rounds, chosen.scale, chosen.only, Path(scratch), starters)
        running(bench, chosen.warm_gb)
        for name, line in OWN.items():
            if bench.wants(name):
                line(bench)
    report(bench, time.monotonic() - begun)


if __name__ == "__main__":
    main()
