"""The Spark program of `anomalies.py`: flags as hours end, or all flags of history.

In: the options of `anomalies.py`, in an environment that it made. Out: flags as Parquet in STATE/flagged, each once; in
STATE/checkpoint its progress and the baselines; or, for history, a JSON object per flag on standard output. Never here:
the rule for flags.
"""

import json
import sys
from argparse import Namespace
from typing import Any

import where
from command import parse_arguments, rule
from flags import REQUESTS, flagged_in_history, flagged_in_stream, hours
from parse import with_columns
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark program uses

from stratalog.errors import Unavailable, UserError

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    # Spark keeps what a program keeps for a key in RocksDB only.
    "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
}


def given(options: Namespace) -> dict[str, str]:
    """Return the source's options."""
    return where.source(options.bootstrap_server, options.tier_url, options.topic)


def source(reader: Any, options: Namespace) -> Any:
    """Return the good lines of the topic, from the first on."""
    lines = reader.format("stratalog").options(**given(options))
    found = lines.option("startingOffsets", "earliest").load().select("value")
    return with_columns(found).where("NOT bad").select(*REQUESTS)


def follow(spark: SparkSession, options: Namespace) -> Any:
    """Start the query from its checkpoint: without an end, or to the log's present end."""
    lines = source(spark.readStream, options).withWatermark("time", options.delay)
    writer = (
        flagged_in_stream(hours(lines), rule(options))
        .writeStream.format("parquet")
        .outputMode("append")
        .option("checkpointLocation", str(options.state / "checkpoint"))
    )
    when: dict[str, Any] = (
        {"processingTime": options.every} if options.every else {"availableNow": True}
    )
    return writer.trigger(**when).start(str(options.state / "flagged"))


def history(spark: SparkSession, options: Namespace) -> list[dict[str, Any]]:
    """Return all flags of history in order, including hours that are not over."""
    found = flagged_in_history(hours(source(spark.read, options)), rule(options))
    ordered = found.orderBy("hour", "kind", "key", "what")
    return [json.loads(row[0]) for row in ordered.select(F.to_json(F.struct("*"))).collect()]


def run(options: Namespace) -> None:
    """Run to the log's end, without an end, or over all of history, by the options. Raises UserError, Unavailable."""
    where.log_ends(given(options))  # errors of the store show at once
    builder = SparkSession.builder.appName("anomalies")
    for name, value in CONF.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        if options.history:
            for flag in history(spark, options):
                sys.stdout.write(json.dumps(flag) + "\n")
        else:
            follow(spark, options).awaitTermination()
    except PySparkException as error:
        raise UserError(where.spark_failure(error)) from error
    finally:
        spark.stop()


def main(arguments: list[str]) -> int:
    """Run the command; returns the exit status."""
    try:
        run(parse_arguments(arguments))
    except (UserError, Unavailable) as error:
        sys.stderr.write(f"anomalies.py: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
