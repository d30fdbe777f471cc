"""Measure Spark's reads of a topic: our source from bucket and broker, Spark's Kafka connector from Apache Kafka.

usage: python -m bench.spark_read [--records 10500000] [--size 200] [--rounds 5]

One Spark session (`local[2]`) reads each in turn, round by round. It computes the count and the sum of the values'
lengths, so it reads every value. A first round, which does not count, warms all of them. The same client loads both
brokers. For the line with `columns=value` our source decodes only the column that the query reads. Prints a table for
RESULTS.md.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from pipelines.access_log.fetched import fetching
from pyspark.sql import SparkSession
from pyspark.sql.functions import count, length
from pyspark.sql.functions import sum as total

from bench.broker import spread
from bench.load import rdkafka
from bench.peers import Server, kafka, strata

SEGMENT_BYTES = 64 << 20
CONNECTOR = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)


def connector_jars() -> str:
    """Return the connector's jars, fetched one by one: Spark has their other dependencies."""
    with fetching("spark-kafka-4.2.0") as lib:
        lib.mkdir(exist_ok=True)
        for artifact in CONNECTOR:
            if not any(lib.glob(f"{artifact.split(':')[1]}-*.jar")):
                copy = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}"]
                subprocess.run([*copy, f"-DoutputDirectory={lib}"], check=True, timeout=300)
        return ",".join(str(jar) for jar in sorted(lib.glob("*.jar")))


def fill(server: Server, records: int, size: int, configs: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": server.address})
    for future in admin.create_topics([NewTopic("read", 2, 1, config=configs)]).values():
        future.result(30)
    for partition in ("0", "1"):
        rdkafka(
            server,
            *("-P", "-t", "read", "-p", partition, "-s", str(size), "-c", str(records // 2)),
            *("-a", "1", "-X", "linger.ms=5", "-X", "queue.buffering.max.messages=1000000"),
        )


def wait_until_tiered(directory: Path, size: int) -> None:
    """Wait until the bucket alone has every segment but the partitions' active ones."""
    deadline = time.monotonic() + 300
    while sum(file.stat().st_size for file in (directory / "data").rglob("*.log")) > size:
        if time.monotonic() > deadline:
            raise SystemExit("the topic was not tiered within five minutes")
        time.sleep(0.5)


def read(spark: SparkSession, source: str, options: dict[str, str]) -> tuple[int, int, float]:
    begun = time.monotonic()
    frame = spark.read.format(source).options(**options).load()
    row = frame.agg(count("*").alias("n"), total(length("value")).alias("bytes")).collect()[0]
    return row["n"], row["bytes"], time.monotonic() - begun


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=10_500_000)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    jars = connector_jars()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.pop("CLASSPATH", None)
    scratch = Path(tempfile.mkdtemp(prefix="bench-spark-"))
    bucket = (scratch / "bucket").as_uri()
    try:
        with (
            strata(
                scratch / "strata",
                tier__url=bucket,
                remote__log__manager__task__interval__ms="500",
            ) as ours,
            strata(scratch / "plain") as plain,
            kafka(scratch / "kafka") as theirs,
        ):
            tiered = {
                "remote.storage.enable": "true",
                "segment.bytes": str(SEGMENT_BYTES),
                "local.retention.bytes": "1",
                "file.delete.delay.ms": "0",
            }
            fill(ours, chosen.records, chosen.size, tiered)
            fill(plain, chosen.records, chosen.size, {})
            fill(theirs, chosen.records, chosen.size, {})
            wait_until_tiered(scratch / "strata", 2 * SEGMENT_BYTES + (1 << 20))
            compare(jars, chosen, bucket, ours, plain, theirs)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def compare(jars: str, chosen, bucket: str, ours: Server, plain: Server, theirs: Server) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jars)
        .config("spark.driver.memory", "2g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    kafka_options = {"subscribe": "read", "startingOffsets": "earliest"}
    tiered = {**kafka_options, "kafka.bootstrap.servers": ours.address, "tier.url": bucket}
    lines = {
        "bucket and tail": ("stratalog", tiered),
        "bucket and tail, columns=value": ("stratalog", {**tiered, "columns": "value"}),
        "broker": ("stratalog", {**kafka_options, "kafka.bootstrap.servers": plain.address}),
        "Spark's Kafka connector": (
            "kafka",
            {**kafka_options, "kafka.bootstrap.servers": theirs.address, "minPartitions": "2"},
        ),
    }
    rates: dict[str, list[float]] = {name: [] for name in lines}
    for number in range(chosen.rounds + 1):
        for name, (source, options) in lines.items():
            records, size, seconds = read(spark, source, options)
            assert records == chosen.records, (name, records)
            if number:  # the first round warms
                rates[name].append(size / 1e6 / seconds)
    spark.stop()
    print("| Spark read, local[2] | MB/s | against Spark's Kafka connector |\n|---|---|---|")
    peer = rates["Spark's Kafka connector"]
    for name, mine in rates.items():
        ratios = [a / b for a, b in zip(mine, peer, strict=True)]
        print(f"| {name} | {spread(mine, 0)} | {spread(ratios, 2)} |")


if __name__ == "__main__":
    main()
