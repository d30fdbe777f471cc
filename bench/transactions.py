"""Measure producers with transactions beside an Apache Kafka: throughput, and the time that a commit takes.

usage: python -m bench.transactions [--rounds 5] [--records 300000] [--seconds 8] [--partitions 1]
       [--only throughput|commits] [--client librdkafka|java]

One client in Python, over librdkafka, loads both brokers in turn, round by round. A producer of 1 KiB records with
acks=all runs plain, idempotent, and with transactions of 100 ms; the ratio to the plain one is taken on the same broker
in the same round. An idempotent librdkafka waits for each request of a partition before it sends the next one, so
`--partitions` tells its waiting from the broker's time. With `--client java` the throughput is that of Kafka's own
producer (`kafka-producer-perf-test.sh`), which has five requests in flight and is idempotent by default: its steady
state, after 100,000 records for its JVM. Then 20 producers make 1,000 transactions a second of ten
records in all, at a steady rate, and each commit is timed from its call to its return. Prints a table for RESULTS.md. A
first round, which does not count, warms both brokers. The command leaves neither processes nor files.
"""

import argparse
import os
import re
import statistics
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import Producer
from tests.compat.tools import java, java_environment, kafka_lib

from bench.broker import create, drop, spread, touch_memory
from bench.peers import KAFKA_OPTIONS, Server, kafka, strata

OURS, THEIRS = "Stratalog", "Apache Kafka"
RECORD_BYTES = 1024
TRANSACTION_S = 0.1
PRODUCERS, COMMITS_PER_SECOND, RECORDS_A_COMMIT = 20, 1000, 10
TIMEOUT_S = 60
KINDS = ("plain", "idempotent", "transactional")
WARMUP_RECORDS = 100_000
LIBRDKAFKA, JAVA = "librdkafka", "java"


def producer(server: Server, kind: str, name: str, linger_ms: float) -> Producer:
    """Return a producer of this kind; a transactional one has its producer id already."""
    options = {
        "bootstrap.servers": server.address,
        "acks": "all",
        "linger.ms": linger_ms,
        "queue.buffering.max.messages": 1_000_000,
        "queue.buffering.max.kbytes": 2_000_000,
        "enable.idempotence": kind != "plain",
    }
    if kind != "transactional":
        return Producer(options)
    made = Producer({**options, "transactional.id": name})
    made.init_transactions(TIMEOUT_S)
    return made


def throughput(server: Server, topic: str, kind: str, records: int) -> tuple[float, float]:
    """Return MB/s and broker CPU seconds per GB of one producer, up to the last acknowledgement or commit."""
    one = producer(server, kind, f"{topic}-{kind}", 5)
    is_transactional = kind == "transactional"
    value = bytes(RECORD_BYTES)
    if not is_transactional:  # it has its connection, and its producer id where it is idempotent
        one.produce(topic, value)
        assert one.flush(TIMEOUT_S) == 0
    cpu, begun = server.cpu_seconds(), time.monotonic()
    ends = begun + TRANSACTION_S
    if is_transactional:
        one.begin_transaction()
    for number in range(records):
        one.produce(topic, value)
        if is_transactional and number % 100 == 0 and time.monotonic() >= ends:
            one.commit_transaction(TIMEOUT_S)
            one.begin_transaction()
            ends = time.monotonic() + TRANSACTION_S
    if is_transactional:
        one.commit_transaction(TIMEOUT_S)
    assert one.flush(TIMEOUT_S) == 0
    size = records * RECORD_BYTES
    seconds = time.monotonic() - begun
    return size / 1e6 / seconds, (server.cpu_seconds() - cpu) / (size / 1e9)


def java_throughput(server: Server, topic: str, kind: str, records: int) -> tuple[float, float]:
    """Return as `throughput`, of Kafka's own producer; its CPU time counts the records of its warm-up."""
    options = {
        "bootstrap.servers": server.address,
        "acks": "all",
        "linger.ms": 5,
        "enable.idempotence": str(kind != "plain").lower(),
    }
    sent = records + WARMUP_RECORDS
    words = {
        "topic": topic,
        "num-records": sent,
        "record-size": RECORD_BYTES,
        "throughput": -1,
        "warmup-records": WARMUP_RECORDS,
    }
    if kind == "transactional":
        words |= {"transaction-duration-ms": round(TRANSACTION_S * 1000), "transactional-id": topic}
    main = "org.apache.kafka.tools.ProducerPerformance"
    command = [java(), *KAFKA_OPTIONS, "-cp", f"{kafka_lib()}/*", main]
    command += [part for name, value in words.items() for part in (f"--{name}", str(value))]
    command += ["--command-property", *(f"{name}={value}" for name, value in options.items())]
    cpu = server.cpu_seconds()
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=java_environment(), check=True
    )
    # The last line is the steady state's; KIP-1052.
    rates = re.findall(r"([\d.]+) records/sec", done.stdout)
    assert "steady" in done.stdout, done.stdout
    spent = (server.cpu_seconds() - cpu) / (sent * RECORD_BYTES / 1e9)
    return float(rates[-1]) * RECORD_BYTES / 1e6, spent


def commits(server: Server, topic: str, seconds: float) -> list[float]:
    """Return the seconds that each commit took."""
    taken: list[float] = []
    pause = PRODUCERS / COMMITS_PER_SECOND
    barrier = threading.Barrier(PRODUCERS)

    def run(number: int) -> None:
        one = producer(server, "transactional", f"{topic}-{number}", 0)
        barrier.wait(TIMEOUT_S)
        due = time.monotonic() + pause * number / PRODUCERS
        end = due + seconds
        while due < end:
            time.sleep(max(0.0, due - time.monotonic()))
            one.begin_transaction()
            for _ in range(RECORDS_A_COMMIT):
                one.produce(topic, bytes(100))
            begun = time.monotonic()
            one.commit_transaction(TIMEOUT_S)
            taken.append(time.monotonic() - begun)
            due += pause

    threads = [threading.Thread(target=run, args=(number,)) for number in range(PRODUCERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 2 * TIMEOUT_S)
    count = round(COMMITS_PER_SECOND * seconds)
    assert abs(len(taken) - count) <= PRODUCERS, f"{len(taken)} of {count} commits"
    return taken


Measured = dict[str, dict[str, list[float]]]


def fresh() -> Measured:
    return defaultdict(lambda: defaultdict(list))


def throughput_round(
    measured: Measured, peer: str, server: Server, topic: str, chosen: argparse.Namespace
) -> None:
    """Measure the three kinds of producers one after the other, each on a topic of its own."""
    measure = java_throughput if chosen.client == JAVA else throughput
    records = chosen.records
    for kind in KINDS:
        name = f"{topic}-{kind}"
        create(server, name, chosen.partitions)
        touch_memory(records * 2 * RECORD_BYTES)
        rate, cpu = measure(server, name, kind, records)
        measured[f"{kind}, MB/s"][peer].append(rate)
        measured[f"{kind}, CPU s/GB"][peer].append(cpu)
        drop(server, name)
    plain = measured["plain, MB/s"][peer][-1]
    for kind in KINDS[1:]:
        measured[f"{kind} / plain"][peer].append(measured[f"{kind}, MB/s"][peer][-1] / plain)


def commits_round(
    measured: Measured, peer: str, server: Server, topic: str, seconds: float
) -> None:
    """Measure commits, and the broker's CPU time for each: the ten records and the producers' starts count too."""
    create(server, topic, 4)
    before, begun = server.cpu_seconds(), time.monotonic()
    taken = commits(server, topic, seconds)
    cuts = statistics.quantiles(taken, n=100)
    measured["1,000 commits a second, took s"][peer].append(time.monotonic() - begun)
    measured["commit, p50 ms"][peer].append(cuts[49] * 1000)
    measured["commit, p99 ms"][peer].append(cuts[98] * 1000)
    cpu_ms = (server.cpu_seconds() - before) * 1000
    measured["CPU ms a commit"][peer].append(cpu_ms / len(taken))
    drop(server, topic)


def report(measured: Measured) -> None:
    print(f"| line | {OURS} | {THEIRS} | ratio |\n|---|---|---|---|")
    for line, by in measured.items():
        ratios = [a / b for a, b in zip(by[OURS], by[THEIRS], strict=True)]
        print(f"| {line} | {spread(by[OURS])} | {spread(by[THEIRS])} | {spread(ratios, 2)} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--partitions", type=int, default=1, help="of the topics of throughput")
    parser.add_argument("--only", choices=("throughput", "commits"))
    parser.add_argument("--client", choices=(LIBRDKAFKA, JAVA), default=LIBRDKAFKA)
    chosen = parser.parse_args()
    measured = fresh()
    with (
        tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as scratch,
        ExitStack() as stack,
    ):
        pair = {
            OURS: stack.enter_context(strata(Path(scratch) / "strata")),
            THEIRS: stack.enter_context(kafka(Path(scratch) / "kafka")),
        }
        for number in range(-1, chosen.rounds):
            into = measured if number >= 0 else fresh()
            for peer in list(pair) if number % 2 == 0 else list(pair)[::-1]:
                if chosen.only != "commits":
                    name = f"rate-{number + 1}"
                    throughput_round(into, peer, pair[peer], name, chosen)
                if chosen.only != "throughput":
                    commits_round(into, peer, pair[peer], f"commits-{number + 1}", chosen.seconds)
    load_average = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    print(f"{time.strftime('%Y-%m-%d')}, {chosen.rounds} rounds, load {load_average}\n")
    report(measured)


if __name__ == "__main__":
    main()
