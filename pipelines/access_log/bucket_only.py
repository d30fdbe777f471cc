"""Count the lines in the bucket again, without a broker: `python bucket_only.py TIER_URL TOPIC`, in a Spark process of
its own.

In: a bucket whose brokers are stopped. Out: one line of JSON, HTTP status -> requests, with `bad` for bad lines.
Never here: a broker's address.
"""

import json
import sys

from parse import with_columns
from pyspark.sql import SparkSession

from stratalog.spark.pipeline_runner import end_with_parent


def main(tier_url: str, topic: str) -> None:
    """Count tiered records by status."""
    end_with_parent()
    spark = SparkSession.builder.getOrCreate()
    try:
        records = (
            spark.read.format("stratalog").option("tier.url", tier_url).option("subscribe", topic)
        ).load()
        counted = with_columns(records.select("value")).groupBy("status").count().collect()
    finally:
        spark.stop()
    answer = {"bad" if row["status"] is None else row["status"]: row["count"] for row in counted}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
