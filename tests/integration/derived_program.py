"""The two pipelines behind the access log, as a Spark program for tests: BOOTSTRAP TIER_URL STATE.

In: a topic. Out: as one line of JSON, what both have streamed so far and what both say of all of history. Streams go
as far as the log reaches and then end; run again with STATE, they go on from their checkpoints.
"""

import json
import sys
from pathlib import Path
from typing import Any

from command import parse_arguments
from parse import with_columns
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark program uses
from sessions import VISITS, sessions
from stream import CONF, follow, history

DELAY = "1 hour"
MORE = {
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",  # the program runs for seconds
    "spark.python.authenticate.socketTimeout": "120s",  # a loaded machine must not fail the test
}


def rows(found: DataFrame) -> list[dict[str, Any]]:
    return [json.loads(row[0]) for row in found.select(F.to_json(F.struct("*"))).collect()]


def visits(reader: Any, bootstrap: str, tier_url: str) -> DataFrame:
    options = {"kafka.bootstrap.servers": bootstrap, "tier.url": tier_url}
    found = reader.format("stratalog").options(**options, subscribe="access_log")
    lines = with_columns(found.option("startingOffsets", "earliest").load())
    return lines.where("NOT bad").select(*VISITS)


def stream_sessions(spark: SparkSession, bootstrap: str, tier_url: str, state: Path) -> DataFrame:
    found = visits(spark.readStream, bootstrap, tier_url).withWatermark("time", DELAY)
    writer = sessions(found).writeStream.format("parquet").outputMode("append")
    writer = writer.option("checkpointLocation", str(state / "checkpoint"))
    writer.trigger(availableNow=True).start(str(state / "sessions")).awaitTermination()
    return spark.read.parquet(str(state / "sessions"))


def main(bootstrap: str, tier_url: str, state: Path) -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", "640m")
    for name, value in {**CONF, **MORE}.items():
        builder = builder.config(name, value)
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    flags_state = str(state / "anomalies")
    options = parse_arguments(
        ["--bootstrap-server", bootstrap, "--tier-url", tier_url, "--state", flags_state]
    )
    follow(spark, options).awaitTermination()
    streamed = stream_sessions(spark, bootstrap, tier_url, state / "sessions")
    said = {
        "flags": rows(spark.read.parquet(f"{flags_state}/flagged")),
        "flags_in_history": history(spark, options),
        "sessions": rows(streamed),
        "sessions_in_history": rows(sessions(visits(spark.read, bootstrap, tier_url))),
    }
    spark.stop()
    print(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
