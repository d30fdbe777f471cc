"""The Spark program of `anomalies.py`: flags as hours end, or all flags of history.

In: the options of `anomalies.py`, in an environment that it made. Out: flags as Parquet in STATE/flagged, each once;
in STATE/checkpoint how far it is and what is usual; or, for history, a JSON object per flag on standard output.
Never here: what is out of the ordinary.
"""

import json
import sys
from argparse import Namespace
from typing import Any

from command import parse_arguments, rule
from flags import REQUESTS, flagged_in_history, flagged_in_stream, hours
from parse import with_columns
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark program uses

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    # Spark keeps what a program keeps for a key in RocksDB only.
    "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
}


def source(reader: Any, options: Namespace) -> Any:
    """The good lines of the topic, from the first on."""
    named = {"kafka.bootstrap.servers": options.bootstrap_server, "tier.url": options.tier_url}
    given = {name: value for name, value in named.items() if value}
    lines = reader.format("stratalog").options(**given, subscribe=options.topic)
    found = lines.option("startingOffsets", "earliest").load().select("value")
    return with_columns(found).where("NOT bad").select(*REQUESTS)


def follow(spark: SparkSession, options: Namespace) -> Any:
    """The running query: from where its checkpoint is, on and on, or as far as the log reaches now."""
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
    """All flags of all of history, the hours that are not over too, in order."""
    found = flagged_in_history(hours(source(spark.read, options)), rule(options))
    ordered = found.orderBy("hour", "kind", "key", "what")
    return [json.loads(row[0]) for row in ordered.select(F.to_json(F.struct("*"))).collect()]


def main(arguments: list[str]) -> None:
    """Until the log's end, without end, or all of history, as the options say."""
    options = parse_arguments(arguments)
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
    finally:
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
