"""A stream of the access log into Cassandra, as a Spark program for tests: BOOTSTRAP OPTIONS CHECKPOINT.

In: a topic, the sink's options as JSON. Out: rows, a thousand in a batch, until the log's end.
"""

import json
import sys

from parse import COLUMNS, with_columns
from pyspark.sql import SparkSession


def main(bootstrap: str, options: dict[str, str], checkpoint: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "512m")
        # The program runs for seconds only.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    found = spark.readStream.format("stratalog").option("kafka.bootstrap.servers", bootstrap)
    found = found.option("subscribe", "access_log").option("startingOffsets", "earliest")
    lines = with_columns(found.option("maxOffsetsPerTrigger", "1000").load())
    rows = lines.select("topic", "partition", "offset", *COLUMNS)
    writer = rows.writeStream.format("stratalog_cassandra").options(**options)
    writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    writer.start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3])
