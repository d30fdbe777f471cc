"""A Delta table asked for its counts: `python delta_counts.py TABLE`, in a Spark process of its own.

In: a table of good lines. Out: one line of JSON, HTTP status -> rows. Never here: what wrote it.
"""

import json
import sys

from pyspark.sql import SparkSession

from stratalog.spark.pipeline_runner import end_with_parent


def main(table: str) -> None:
    """Count by status over the whole table."""
    end_with_parent()
    spark = SparkSession.builder.getOrCreate()
    try:
        counted = spark.read.format("delta").load(table).groupBy("status").count().collect()
    finally:
        spark.stop()
    sys.stdout.write(json.dumps({row["status"]: row["count"] for row in counted}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
