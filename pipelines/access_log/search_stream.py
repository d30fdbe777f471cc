"""Stream an access log's records into OpenSearch continuously, each as a document.

    python pipelines/access_log/search_stream.py --bootstrap-server host:9092 --hosts http://search:9200 --checkpoint D

In: a topic of lines, from the bucket where they are old and from the broker where they are new; a checkpoint, from
which it continues. Out: an index; a line of JSON per micro-batch on stdout. It ends by SIGINT or SIGTERM, with 0. An
unreadable line becomes a document, too: `bad` is true, `reason` has the reason, `message` is the line.
"""

import json
import os
import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from parse import COLUMNS, with_columns
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark program uses
from where import log_ends, source, spark_failure

from stratalog.errors import Unavailable, UserError
from stratalog.sinks.opensearch import connect
from stratalog.sinks.opensearch_options import parse_opensearch_options
from stratalog.spark.progress import ProgressListener

EVERY_S = 5
AT_MOST = 100_000
PLACE = ("topic", "partition", "offset")


def parse_arguments(arguments: Sequence[str]) -> Namespace:
    """The command line."""
    parser = ArgumentParser(description="An access log's records into OpenSearch, as they come.")
    # argparse accepts --bootstrap, its name before, as an abbreviation.
    parser.add_argument("--bootstrap-server", required=True, metavar="HOST:PORT", help="the broker")
    parser.add_argument("--tier-url", metavar="URL", help="its bucket: history comes from there")
    parser.add_argument("--topic", default="access_log")
    parser.add_argument("--hosts", required=True, metavar="URL", help="OpenSearch")
    parser.add_argument("--index", default="access_log")
    parser.add_argument("--checkpoint", required=True, metavar="DIR")
    parser.add_argument(
        "--at-most", type=int, default=AT_MOST, metavar="N", help="records in a micro-batch, about"
    )
    parser.add_argument("--every", type=int, default=EVERY_S, metavar="S", help="a micro-batch")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--memory", default="768m", help="the JVM's heap")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of the sink (docs/opensearch.md)",
    )
    options = parser.parse_args(arguments)
    if wrong := [one for one in options.option if "=" not in one]:
        parser.error(f"--option {wrong[0]}: NAME=VALUE is expected")
    return options


def check(options: Namespace) -> None:
    """Check topic, bucket and index before Spark's slow start. Raises UserError, Unavailable."""
    log_ends(source(options.bootstrap_server, options.tier_url, options.topic))
    try:
        sink = parse_opensearch_options(sink_options(options))
    except ValueError as error:
        raise UserError(str(error)) from error
    with closing(connect(sink.hosts, sink.timeout_s)) as client:
        client.request("GET", "/")


def sink_options(options: Namespace) -> dict[str, str]:
    """Return the sink's options, those of `--option` last."""
    more = dict(one.split("=", 1) for one in options.option)
    return {"hosts": options.hosts, "index": options.index, **more}


def started(options: Namespace) -> Any:
    """Return the running query."""
    spark = (
        SparkSession.builder.master(options.master)
        .appName("access log into OpenSearch")
        .config("spark.driver.memory", options.memory)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.streams.addListener(  # for the console's page /pipelines
        ProgressListener({"kafka.bootstrap.servers": options.bootstrap_server})
    )
    given = {
        **source(options.bootstrap_server, options.tier_url, options.topic),
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(options.at_most),
        "columns": ",".join((*PLACE, "value")),
    }
    lines = spark.readStream.format("stratalog").options(**given).load()
    line = F.make_valid_utf8(F.col("value").cast("string"))
    message = F.when(F.col("bad"), line).alias("message")
    documents = with_columns(lines).select(*PLACE, *COLUMNS, "bad", "reason", message)
    return (
        documents.writeStream.format("stratalog_opensearch")
        .options(**sink_options(options))
        .option("checkpointLocation", options.checkpoint)
        .queryName("access_log into OpenSearch")
        .trigger(processingTime=f"{options.every} seconds")
        .start()
    )


def main(arguments: Sequence[str]) -> int:
    """Run until a signal; returns the exit status."""
    options = parse_arguments(arguments)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    asked: list[int] = []
    try:
        check(options)
    except (UserError, Unavailable) as error:
        sys.stderr.write(f"search_stream.py: {error}\n")
        return 2
    query = started(options)
    for number in (signal.SIGINT, signal.SIGTERM):  # after Spark, which takes SIGINT for itself
        signal.signal(number, lambda got, _: asked.append(got))
    printed = ""
    while not asked and query.isActive:
        query.awaitTermination(1)
        for progress in query.recentProgress:
            reached = progress["sources"][0]["endOffset"]
            if reached not in {printed, None}:
                printed = reached
                [topic] = json.loads(reached)["topics"].values()
                said = {"batch": progress["batchId"], "offsets": topic["partitions"]}
                sys.stdout.write(json.dumps(said) + "\n")
                sys.stdout.flush()
    failure = query.exception()
    query.stop()
    if failure is not None:
        sys.stderr.write(f"search_stream.py: {spark_failure(failure)}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
