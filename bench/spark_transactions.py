"""Measure what transactions cost Spark: the exactly-once sink, and reads of committed history.

usage: python -m bench.spark_transactions [--rounds 3] [--rows 1000000] [--records 3000000] [--only sink|read]

One Spark session (`local[2]`) and one broker of ours with a tier. The sink: a stream of `--rows` rows of 200 B a
micro-batch, at least once and exactly once in turn; each query's first batch does not count. The read: a tiered topic
of `--records` records in transactions of a thousand, every tenth aborted, with `read_uncommitted` and
`read_committed` in turn. Prints a table for RESULTS.md. It leaves neither processes nor files.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
import uuid
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from bench.broker import create, drop, spread
from bench.peers import Server, strata
from bench.spark_read import SEGMENT_BYTES, read, wait_until_tiered

ROW_BYTES = 200
RECORDS_A_TRANSACTION, ABORTED_EVERY = 1000, 10
BATCHES = 3
WAIT_S = 600
LEVELS = ("read_uncommitted", "read_committed")
GUARANTEES = ("at-least-once", "exactly-once")


def written(spark: SparkSession, server: Server, scratch: Path, guarantee: str, rows: int) -> float:
    """Return the rows a second of a query's batches after its first: from the batch's begin to its commit."""
    topic = f"sink-{uuid.uuid4().hex[:8]}"
    create(server, topic, 2)
    stream = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", rows)
        .option("numPartitions", 2)
        .load()
        .selectExpr(
            f"rpad(cast(value AS STRING), {ROW_BYTES}, 'x') AS value",
            "cast(value AS STRING) AS key",
        )
    )
    query = (
        stream.writeStream.format("stratalog")
        .option("kafka.bootstrap.servers", server.address)
        .option("topic", topic)
        .option("deliveryGuarantee", guarantee)
        .option("checkpointLocation", str(scratch / topic))
        .start()
    )
    deadline = time.monotonic() + WAIT_S
    while len(query.recentProgress) <= BATCHES:
        if query.exception() is not None or time.monotonic() > deadline:
            raise SystemExit(
                f"the query of {guarantee} did not write its batches: {query.exception()}"
            )
        time.sleep(0.2)
    done = [one for one in query.recentProgress if one["numInputRows"]][1 : BATCHES + 1]
    query.stop()
    drop(server, topic)
    seconds = sum(one["batchDuration"] for one in done) / 1000
    return sum(one["numInputRows"] for one in done) / seconds


def fill(server: Server, records: int) -> int:
    """Write the topic `read` in transactions, every tenth aborted; return the committed records."""
    configs = {
        "remote.storage.enable": "true",
        "segment.bytes": str(SEGMENT_BYTES),
        "local.retention.bytes": "1",
        "file.delete.delay.ms": "0",
    }
    admin = AdminClient({"bootstrap.servers": server.address})
    for future in admin.create_topics([NewTopic("read", 2, 1, config=configs)]).values():
        future.result(30)
    producer = Producer(
        {
            "bootstrap.servers": server.address,
            "transactional.id": "fill",
            "linger.ms": 5,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    producer.init_transactions(60)
    committed = 0
    for number in range(records // RECORDS_A_TRANSACTION):
        producer.begin_transaction()
        for _ in range(RECORDS_A_TRANSACTION):
            producer.produce("read", b"0123456789" * (ROW_BYTES // 10), partition=number % 2)
        if number % ABORTED_EVERY == 0:
            producer.flush(60)  # an abort drops what was not sent
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
            committed += RECORDS_A_TRANSACTION
    return committed


def reads(
    spark: SparkSession, scratch: Path, server: Server, records: int, rounds: int
) -> dict[str, list[float]]:
    committed = fill(server, records)
    wait_until_tiered(scratch / "strata", 2 * SEGMENT_BYTES + (1 << 20))
    options = {
        "subscribe": "read",
        "startingOffsets": "earliest",
        "kafka.bootstrap.servers": server.address,
        "tier.url": (scratch / "bucket").as_uri(),
    }
    expected = {"read_uncommitted": records, "read_committed": committed}
    rates: dict[str, list[float]] = {level: [] for level in LEVELS}
    for number in range(rounds + 1):
        for level in LEVELS if number % 2 else LEVELS[::-1]:
            found, size, seconds = read(
                spark, "stratalog", {**options, "kafka.isolation.level": level}
            )
            assert found == expected[level], (level, found, expected)
            if number:  # the first round warms
                rates[level].append(size / 1e6 / seconds)
    return rates


def sinks(
    spark: SparkSession, scratch: Path, server: Server, rows: int, rounds: int
) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {guarantee: [] for guarantee in GUARANTEES}
    for number in range(rounds + 1):
        for guarantee in GUARANTEES if number % 2 else GUARANTEES[::-1]:
            rate = written(spark, server, scratch, guarantee, rows)
            if number:
                rates[guarantee].append(rate)
    return rates


def report(title: str, unit: str, rates: dict[str, list[float]]) -> None:
    """Print each line's rates, and their ratio to the first line's, round by round."""
    print(f"| {title} | {unit} | ratio |\n|---|---|---|")
    base = next(iter(rates.values()))
    for name, mine in rates.items():
        print(
            f"| {name} | {spread(mine, 0)} | {spread([a / b for a, b in zip(mine, base, strict=True)], 2)} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--records", type=int, default=3_000_000)
    parser.add_argument("--only", choices=("sink", "read"))
    chosen = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.pop("CLASSPATH", None)
    scratch = Path(tempfile.mkdtemp(prefix="bench-spark-"))
    settings = {
        "tier__url": (scratch / "bucket").as_uri(),
        "remote__log__manager__task__interval__ms": "500",
    }
    try:
        with strata(scratch / "strata", **settings) as server:
            spark = (
                SparkSession.builder.master("local[2]")
                .config("spark.driver.memory", "2g")
                .config("spark.driver.host", "127.0.0.1")
                .config("spark.ui.enabled", "false")
                .getOrCreate()
            )
            spark.sparkContext.setLogLevel("OFF")  # a stopped query ends its tasks with a trace
            print(
                f"{time.strftime('%Y-%m-%d')}, {chosen.rounds} rounds, load {os.getloadavg()[0]:.1f}\n"
            )
            if chosen.only != "read":
                report(
                    "the sink", "rows/s", sinks(spark, scratch, server, chosen.rows, chosen.rounds)
                )
            if chosen.only != "sink":
                rates = reads(spark, scratch, server, chosen.records, chosen.rounds)
                report("history with a tenth aborted", "MB/s of values delivered", rates)
            spark.stop()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
