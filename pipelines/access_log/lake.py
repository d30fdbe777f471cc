"""Keep a topic's lines in a Delta table by a continuous stream, and let new code take over with all of history.

    python pipelines/access_log/lake.py DIR --bootstrap-server HOST:PORT --tier-url URL
    python pipelines/access_log/lake.py NEW --bootstrap-server HOST:PORT --tier-url URL --backfill

In: a topic of log lines. Out: Delta tables DIR/lines and DIR/bad_lines, read by the rule of `parse.py` as the pipeline
reads them; DIR/_state records the progress. The first command follows the topic. The second, with new code beside the
first, reads history up to where the log ends now (the switch) in one go, then follows the topic from exactly there.
Readers of DIR then move to NEW, and a person ends the first command afterwards. Neither command waits for the other.

Every record is in the tables once, however often a command is killed and run again: each commit has a name and a number
that Delta refuses a second time (`txnAppId`, `txnVersion`). Never here: the meaning of lines.
"""

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import join
from typing import Any

from parse import bad_lines, good_lines
from sinks.delta import spark_conf
from where import log_ends, source, spark_failure

from stratalog.adapters.system import SystemEntropy
from stratalog.cli.main import explanation
from stratalog.cli.pipeline import spark_environment
from stratalog.errors import Corrupt, Rejected, Unavailable, UserError

TABLES = {"lines": good_lines, "bad_lines": bad_lines}


def parse_arguments(arguments: Sequence[str]) -> Namespace:
    """Parse the options; end the program with one line for wrong ones."""
    parser = ArgumentParser(prog="lake.py", description="A topic of log lines as Delta tables.")
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--bootstrap-server", metavar="HOST:PORT", help="where the broker is")
    parser.add_argument("--tier-url", metavar="URL", help="where the bucket is")
    parser.add_argument("--topic", default="access_log")
    parser.add_argument(
        "--backfill", action="store_true", help="history in one go, then the stream from there"
    )
    parser.add_argument("--every", default="1 second", metavar="INTERVAL", help="how often to look")
    parser.add_argument("--once", action="store_true", help="end where the log ends now")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--memory", default="1g", help="heap of Spark's driver")
    options = parser.parse_args(arguments)
    if ":/" in str(options.directory):
        parser.error(f"{options.directory}: a directory of this machine is needed, not a URL")
    if not (options.bootstrap_server or options.tier_url):
        parser.error("one of --bootstrap-server and --tier-url is needed, or both")
    return options


def source_of(options: Namespace) -> dict[str, str]:
    """Return the source's options."""
    return source(options.bootstrap_server, options.tier_url, options.topic)


class State:
    """The content of DIR/_state: the run's id, the switch (the end of the backfill), and whether the backfill is done.

    It is written before each step that it describes, so that a repeated command continues with the same switch.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / "_state" / "state.json"
        self.checkpoint = directory / "_state" / "checkpoint"
        self.said: dict[str, Any] = {}
        if self.path.exists():
            self.said = json.loads(self.path.read_text(encoding="utf-8"))
        elif any((directory / name).exists() for name in TABLES):
            raise UserError(f"{directory}: there are tables but no _state; name a new directory")

    def say(self, **more: object) -> None:
        """Add fields to the file, atomically."""
        self.said |= more
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(self.said), encoding="utf-8")
        new.replace(self.path)

    def query_id(self) -> str:
        """Return the streaming query's own id, which belongs to its checkpoint."""
        metadata = (self.checkpoint / "metadata").read_text(encoding="utf-8")
        query_id: str = json.loads(metadata)["id"]
        return query_id


def write(records: Any, directory: Path, writer: str, version: int) -> None:
    """Append the lines of `records` to the tables, exactly once for each writer's `version`."""
    for name, read in TABLES.items():
        (
            read(records)
            .write.format("delta")
            .mode("append")
            .option("mergeSchema", "true")  # new code may add columns
            .option("txnAppId", f"{writer}/{name}")
            .option("txnVersion", str(version))
            .save(str(directory / name))
        )


def backfill(spark: Any, options: Namespace, state: State) -> None:
    """Write history up to the switch, as one commit for each table."""
    if "switch" not in state.said:
        state.say(
            id=str(SystemEntropy().uuid()), switch=log_ends(source_of(options)), backfilled=False
        )
    if state.said["backfilled"]:
        return
    records = (
        spark.read.format("stratalog")
        .options(**source_of(options), includeOrigin="true", startingOffsets="earliest")
        .option("endingOffsets", json.dumps(state.said["switch"]))
        .load()
    )
    write(records, options.directory, state.said["id"], 0)
    state.say(backfilled=True)


def follow(spark: Any, options: Namespace, state: State) -> Any:
    """Start the query: from its checkpoint, else from the switch, else from the first record."""
    switch = state.said.get("switch")
    state.say(following=True)

    def take(records: Any, number: int) -> None:
        records.persist()  # one read for both tables
        write(records, options.directory, state.query_id(), number)
        records.unpersist()

    when: Mapping[str, Any] = (
        {"availableNow": True} if options.once else {"processingTime": options.every}
    )
    return (
        spark.readStream.format("stratalog")
        .options(**source_of(options), includeOrigin="true")
        .option("startingOffsets", "earliest" if switch is None else json.dumps(switch))
        .load()
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(state.checkpoint))
        .trigger(**when)
        .start()
    )


def session(options: Namespace) -> Any:
    """Return a Spark session that knows Delta, in this process's own environment."""
    environment = spark_environment(options.directory / "_state", master=options.master)
    del environment["SPARK_REMOTE"]
    conf = {
        "spark.driver.memory": options.memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.daemon.module": "stratalog.spark.worker_daemon",
        **spark_conf(),
    }
    words = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    submit = join(["--master", options.master, *words, "pyspark-shell"])
    os.environ.update(environment, PYSPARK_SUBMIT_ARGS=submit)
    from pyspark.sql import SparkSession  # noqa: PLC0415 - it reads that environment

    return SparkSession.builder.appName("lake").getOrCreate()


def run(options: Namespace) -> None:
    """Run until a signal, or with --once until the log's end."""
    options.directory = options.directory.resolve()
    state = State(options.directory)
    if options.backfill and "following" in state.said and "switch" not in state.said:
        raise UserError(f"{options.directory}: a stream has begun there; backfill into a new one")
    log_ends(source_of(options))  # errors of the store show at once
    spark = session(options)
    from pyspark.errors import PySparkException  # noqa: PLC0415 - as in session

    try:
        if options.backfill or "switch" in state.said:
            backfill(spark, options, state)
            sys.stdout.write(json.dumps({"switch": state.said["switch"]}) + "\n")
            sys.stdout.flush()
        follow(spark, options, state).awaitTermination()
    except PySparkException as error:
        raise UserError(spark_failure(error)) from error
    finally:
        spark.stop()


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit status."""
    options = parse_arguments(arguments)
    try:
        run(options)
    except KeyboardInterrupt:
        return 130
    except (UserError, Unavailable, Rejected, Corrupt, OSError) as error:
        explained = explanation(error)
        if explained is None:
            raise
        sys.stderr.write(f"lake.py: {explained[0]}\n")
        return explained[1]
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
