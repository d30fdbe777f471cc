"""Produce and consume beside a warm Apache Kafka, alternating: throughput, broker CPU per GB, memory, first record.

usage: python -m bench.broker [--rounds 5] [--warm-gb 4] [--only NAME]

Both brokers are loaded by the same librdkafka client, in turn, round by round; medians, spread and ratios are printed
as a table for RESULTS.md. A JVM is warm after about 4 GB.
"""

import argparse
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.peers import Server, kafka, rdkafka_performance, strata

PRODUCE = {"produce 1 KiB": (1024, 1_000_000), "produce 100 B": (100, 5_000_000)}
CONSUME_LINE = "consume 1 KiB"
CONSUMED_SIZE = 1024
TIMEOUT_S = 300


def topic(server: Server, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": server.address})
    for future in admin.create_topics([NewTopic(name, 1, 1)]).values():
        future.result(30)


def drop(server: Server, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": server.address})
    for future in admin.delete_topics([name]).values():
        future.result(30)


def load(server: Server, *options: str) -> tuple[float, float]:
    """(MB/s by the client's last line, broker CPU seconds)."""
    before = server.cpu_seconds()
    done = subprocess.run(
        [str(rdkafka_performance()), "-b", server.address, "-u", "-q", *options],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    cpu = server.cpu_seconds() - before
    rows = [
        re.split(r"\s*\|\s*", line.strip("| \n"))
        for line in done.stdout.splitlines()
        if line.startswith("|")
    ]
    figures = [row for row in rows if row and row[0].strip().isdigit()]
    assert figures, done.stdout[-500:] + done.stderr[-500:]
    return throughput(figures[-1]), cpu


def throughput(row: list[str]) -> float:
    elapsed_ms, size = float(row[0]), float(row[2])
    return size / 1e6 / (elapsed_ms / 1000)


def produce(server: Server, size: int, count: int, name: str) -> tuple[float, float]:
    rate, cpu = load(
        server,
        *("-P", "-t", name, "-s", str(size), "-c", str(count), "-a", "1"),
        *("-X", "linger.ms=5", "-X", "queue.buffering.max.messages=1000000"),
    )
    return rate, cpu / (size * count / 1e9)


def consume(server: Server, size: int, count: int, name: str) -> tuple[float, float]:
    rate, cpu = load(
        server,
        *("-C", "-t", name, "-p", "0", "-o", "beginning", "-c", str(count)),
        *("-X", "fetch.message.max.bytes=1048576", "-X", "queued.min.messages=1000000"),
    )
    return rate, cpu / (size * count / 1e9)


def first_record(start) -> float:
    """Seconds from starting the process to the first acknowledged record."""
    scratch = Path(tempfile.mkdtemp(prefix="bench-first-"))
    try:
        begun = time.monotonic()
        with start(scratch) as server:
            producer = Producer({"bootstrap.servers": server.address, "acks": 1})
            acknowledged = []
            producer.produce(
                "first", b"x", on_delivery=lambda error, _m: acknowledged.append(error)
            )
            assert producer.flush(60) == 0
            assert acknowledged == [None], acknowledged
            return time.monotonic() - begun
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def touch_memory(size: int) -> None:
    """Write and delete `size` bytes: memory that a virtual machine touches first costs ten times as much."""
    with tempfile.TemporaryFile(prefix="bench-touch-") as scratch:
        piece = bytes(8 << 20)
        for _ in range(size // len(piece)):
            scratch.write(piece)


def rounds(servers: list[Server], count: int, warm_gb: float, only: str) -> dict:
    figures: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for server in servers:
        topic(server, "warm")
        for _ in range(max(1, round(warm_gb))):
            produce(server, 1024, 1_000_000, "warm")
        consume(server, 1024, 1_000_000, "warm")
        drop(server, "warm")
    for number in range(count):
        for name, (size, records) in PRODUCE.items():
            if only not in name and only not in CONSUME_LINE:
                continue
            made = f"{name.replace(' ', '-')}-{number}"
            # Who goes second finds memory as the first left it: take turns.
            for server in servers if number % 2 == 0 else servers[::-1]:
                topic(server, made)
                touch_memory(size * records * 2)
                figures[name, server.name].append(produce(server, size, records, made))
                if size == CONSUMED_SIZE:
                    figures[CONSUME_LINE, server.name].append(consume(server, size, records, made))
            for server in servers:
                drop(server, made)
    return figures


def report(figures: dict, ours: str, theirs: str) -> None:
    print("| line | Stratalog | Apache Kafka | ratio |\n|---|---|---|---|")
    for name in dict.fromkeys(key[0] for key in figures):
        for index, (unit, digits) in enumerate((("MB/s", 0), ("CPU s/GB", 2))):
            mine = [figure[index] for figure in figures[name, ours]]
            peer = [figure[index] for figure in figures[name, theirs]]
            ratios = [a / b for a, b in zip(mine, peer, strict=True)]
            print(
                f"| {name}, {unit} | {spread(mine, digits)} | {spread(peer, digits)} | {spread(ratios, 2)} |"
            )


def spread(values: list[float], digits: int) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm-gb", type=float, default=4)
    parser.add_argument("--only", default="", help="lines whose name has this in it")
    chosen = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        with strata(scratch / "strata") as ours, kafka(scratch / "kafka") as theirs:
            figures = rounds([ours, theirs], chosen.rounds, chosen.warm_gb, chosen.only)
            report(figures, ours.name, theirs.name)
            print(
                f"| resident after the load, MB | {ours.resident_mb():.0f} | {theirs.resident_mb():.0f} | "
                f"{ours.resident_mb() / theirs.resident_mb():.2f} |"
            )
        starts = [(first_record(strata), first_record(kafka)) for _ in range(chosen.rounds)]
        mine, peer = [a for a, _ in starts], [b for _, b in starts]
        print(
            f"| start to first acknowledged record, s | {spread(mine, 2)} | {spread(peer, 2)} | "
            f"{spread([a / b for a, b in starts], 2)} |"
        )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
