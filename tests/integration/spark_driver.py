"""A Spark driver for tests: a command a line on stdin (JSON), an answer a line on stdout (JSON).

In: {"do": name, …arguments}; Spark's configuration as arguments, NAME=VALUE. Out: {"result": …} or {"error": text};
{"ready": true} first. It is its own process, so that a test can kill it, and no JVM runs in the
test's process.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

CONF = {
    "spark.master": "local[2]",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",  # a test's driver runs for seconds
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.authenticate.socketTimeout": "120s",  # a loaded machine must not fail the test
}

SUMMARY = """
    SELECT partition, origin, count(*) AS records, min(offset) AS first, max(offset) AS last,
           count(DISTINCT offset) AS distinct_offsets,
           sum(CASE WHEN CAST(key AS STRING) = concat('key-', offset)
                     AND CAST(value AS STRING) LIKE concat('value-', offset, '.%') THEN 0 ELSE 1 END) AS wrong
    FROM found GROUP BY partition, origin ORDER BY partition, first
"""


def summary(found: DataFrame) -> list[dict[str, Any]]:
    """Return counts by partition and origin; `wrong` counts records that do not match their offset."""
    found.createOrReplaceTempView("found")
    return [row.asDict() for row in found.sparkSession.sql(SUMMARY).collect()]


def with_origin(found: DataFrame) -> DataFrame:
    """Add the column `origin`, which rows of Spark's own Kafka source lack."""
    return found if "origin" in found.columns else found.withColumn("origin", lit("kafka"))


def batch(
    spark: SparkSession, options: dict[str, str], source: str = "stratalog"
) -> list[dict[str, Any]]:
    return summary(with_origin(spark.read.format(source).options(**options).load()))


def explained(spark: SparkSession, options: dict[str, str]) -> str:
    """Return all plans of a batch, as `explain` prints them."""
    found = spark.read.format("stratalog").options(**options).load()
    return str(found._jdf.queryExecution().toString())


def gated(spark: SparkSession, options: dict[str, str], gate: str) -> list[dict[str, Any]]:
    """Run a batch whose tasks read their first rows, make a file below `gate`, and wait until `gate`/go exists."""

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, rows in enumerate(batches):
            if number == 0:
                context = TaskContext.get()
                assert context is not None
                (Path(gate) / f"begun-{context.partitionId()}").touch()
                deadline = monotonic() + 300
                while not (Path(gate) / "go").exists():
                    assert monotonic() < deadline, "the test does not open the gate"
                    sleep(0.05)
            yield rows

    found = spark.read.format("stratalog").options(**options).load()
    return summary(found.mapInArrow(wait, found.schema))


def pruned(spark: SparkSession, options: dict[str, str], where: str) -> dict[str, Any]:
    """Return the rows that pass a condition and the number of tasks, in a session that allows pushdown."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        found = spark.read.format("stratalog").options(**options).load().where(where)
        return {"tasks": found.rdd.getNumPartitions(), "rows": summary(found)}
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def stream(
    spark: SparkSession,
    options: dict[str, str],
    checkpoint: str,
    sink: str,
    *,
    wait: bool,
    source: str = "stratalog",
    table: str | None = None,
) -> dict[str, Any] | None:
    """Append a stream to parquet files: all present records (returning the last progress), or without end.

    `table`: read this table of the catalog, not `source`.
    """
    reader = spark.readStream.format(source).options(**options)
    found = with_origin(reader.load() if table is None else reader.table(table))
    writer = found.writeStream.format("parquet").option("checkpointLocation", checkpoint)
    writer = (
        writer.trigger(availableNow=True) if wait else writer.trigger(processingTime="0 seconds")
    )
    query = writer.start(sink)
    if not wait:
        return None
    query.awaitTermination()
    progress = query.lastProgress
    assert progress is not None
    every = [one["sources"][0] for one in query.recentProgress]
    return {"batches": len(every), "source": progress["sources"][0], "progress": every}


def fails_once(mark: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the rows unchanged; in the first attempt task four fails, once two others have ended (of `local[2]`)."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 3 and not Path(mark).exists():
            Path(mark).touch()
            raise OSError("the first attempt fails")
        yield from batches

    return rows


def fails_in_the_middle(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the rows unchanged; each task's first attempt fails at its fourth batch."""
    context = TaskContext.get()
    assert context is not None
    for number, rows in enumerate(batches):
        if context.attemptNumber() == 0 and number == 3:
            raise OSError("the first attempt fails")
        yield rows


def waits_in_the_middle(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the rows unchanged; the first attempt of task 0 waits at its fourth batch, and Spark starts another."""
    context = TaskContext.get()
    assert context is not None
    for number, rows in enumerate(batches):
        if context.partitionId() == 0 and context.attemptNumber() == 0 and number == 3:
            sleep(240)
        yield rows


def copy_once(
    spark: SparkSession,
    options: dict[str, str],
    sink: dict[str, str],
    checkpoint: str,
    source: str = "stratalog",
    *,
    waits: bool = False,
) -> None:
    """Copy a topic's keys and values as a stream of the present records, in small writes; every task fails once.

    `waits`: no task fails, and task 0 is slow once in each batch.
    """
    if source != "stratalog":
        from tests.integration.killing_sink import KillingSource

        spark.dataSource.register(KillingSource)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    found = spark.readStream.format("stratalog").options(**options).load().select("key", "value")
    fault = waits_in_the_middle if waits else fails_in_the_middle
    rows = found.mapInArrow(fault, found.schema)
    writer = rows.writeStream.format(source).option("checkpointLocation", checkpoint)
    writer.options(**sink).trigger(availableNow=True).start().awaitTermination()


def count(spark: SparkSession, options: dict[str, str]) -> dict[str, int]:
    """Return how many rows and how many different keys a topic has."""
    found = spark.read.format("stratalog").options(**options).load()
    (row,) = found.selectExpr("count(*) AS rows", "count(DISTINCT key) AS keys").collect()
    return dict(row.asDict())


def copy(
    spark: SparkSession,
    options: dict[str, str],
    sink: dict[str, str],
    checkpoint: str | None,
    mark: str | None = None,
) -> None:
    """Copy a topic's keys and values to another, in one job or as a stream of the present records. With `mark`, the
    first attempt of the stream fails.
    """
    if checkpoint is None:
        found = spark.read.format("stratalog").options(**options).load()
        written = found.select("key", "value", "partition").write.format("stratalog")
        written.mode("append").options(**sink).save()
        return
    found = spark.readStream.format("stratalog").options(**options).load()
    copied = found.select("key", "value", "partition")
    if mark is not None:
        copied = copied.mapInArrow(fails_once(mark), copied.schema)
    writer = copied.writeStream.format("stratalog")
    writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    writer.options(**sink).start().awaitTermination()


def index(spark: SparkSession, sink: dict[str, str], rows: int, mode: str = "append") -> None:
    """Write rows that contain their own id to OpenSearch, in a job of two tasks."""
    frame = spark.range(rows).selectExpr(
        "'t' AS topic",
        "int(id % 3) AS partition",
        "id AS offset",
        "IF(id % 10 = 0, 404, 200) AS status",
        "timestamp_seconds(id) AS time",
        "named_struct('name', concat('agent-', id)) AS agent",
    )
    written = frame.repartition(2).write.format("stratalog_opensearch").mode(mode)
    written.options(**sink).save()


def write_headers(spark: SparkSession, options: dict[str, str]) -> list[dict[str, Any]]:
    """Count the rows and the different rows that each write (job or query, batch) sent, by the sink's header."""
    found = spark.read.format("stratalog").options(includeHeaders="true", **options).load()
    found.createOrReplaceTempView("sent")
    rows = spark.sql("""
        SELECT write[0] AS run, write[1] AS batch, count(*) AS records, count(DISTINCT write) AS different
        FROM (SELECT split(CAST(element_at(headers, -1).value AS STRING), '/') AS write FROM sent)
        GROUP BY run, batch ORDER BY batch, run
    """)
    return [row.asDict() for row in rows.collect()]


def once(spark: SparkSession, options: dict[str, str], program: str) -> dict[str, int]:
    """Run a program that makes `once` from a topic's rows; count its rows and its different rows."""
    found = spark.read.format("stratalog").options(includeHeaders="true", **options).load()
    known: dict[str, Any] = {"rows": found}
    exec(program, known)
    left: DataFrame = known["once"]
    assert left.columns == found.columns
    different = left.select("partition", "key", "value").distinct().count()
    return {"written": found.count(), "left": left.count(), "different": different}


def sql(spark: SparkSession, statements: list[str]) -> list[list[Any]]:
    """Run SQL statements; return the rows of the last one."""
    for statement in statements[:-1]:
        spark.sql(statement)
    return [list(row) for row in spark.sql(statements[-1]).collect()]


def read_back(spark: SparkSession, sink: str) -> list[dict[str, Any]]:
    return summary(spark.read.parquet(sink))


def where(spark: SparkSession) -> list[str]:
    """Return the address of the driver's UI, and the application's id in its API."""
    context = spark.sparkContext
    assert context.uiWebUrl is not None, "a driver without a UI"
    return [context.uiWebUrl, context.applicationId]


def reported(spark: SparkSession, options: dict[str, str], checkpoint: str, *, fails: bool) -> None:
    """Run a query of a topic without end (`count`), or one that fails (`broken`); a listener reports both."""
    from stratalog.spark.progress import ProgressListener

    servers = {"kafka.bootstrap.servers": options["kafka.bootstrap.servers"]}
    spark.streams.addListener(ProgressListener(servers))
    if fails:
        rows = spark.readStream.format("rate").option("rowsPerSecond", "10").load()
        found = rows.selectExpr("raise_error('a broken <row>') AS value")
    else:
        found = spark.readStream.format("stratalog").options(**options).load()
    writer = found.writeStream.format("noop").option("checkpointLocation", checkpoint)
    query = writer.queryName("broken" if fails else "count").start()
    if fails:
        with suppress(PySparkException):
            query.awaitTermination()


def take_kafka_token(spark: SparkSession, cluster: str) -> str:
    """Let Spark's Kafka connector create a delegation token, keep it as its driver does, and return its id."""
    jvm: Any = spark._jvm
    conf = spark.sparkContext._jsc.sc().conf()  # type: ignore[union-attr]
    of = jvm.org.apache.spark.kafka010.KafkaTokenSparkConf.getClusterConfig(conf, cluster)
    token = jvm.org.apache.spark.kafka010.KafkaTokenUtil.obtainToken(conf, of)._1()
    jvm.org.apache.hadoop.security.UserGroupInformation.getCurrentUser().addToken(
        token.getService(), token
    )
    return bytes(token.getIdentifier()).decode()


COMMANDS: dict[str, Callable[..., Any]] = {
    "batch": batch,
    "explained": explained,
    "gated": gated,
    "pruned": pruned,
    "stream": stream,
    "copy": copy,
    "copy_once": copy_once,
    "count": count,
    "index": index,
    "write_headers": write_headers,
    "once": once,
    "sql": sql,
    "read_back": read_back,
    "where": where,
    "reported": reported,
    "take_kafka_token": take_kafka_token,
}


def main() -> None:
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    builder = SparkSession.builder
    for name, value in (given if "spark.remote" in given else CONF | given).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    if "spark.remote" not in given:
        spark.sparkContext.setLogLevel("WARN")
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        answer: dict[str, Any]
        try:
            answer = {"result": COMMANDS[command.pop("do")](spark, **command)}
        except (PySparkException, Py4JError) as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
