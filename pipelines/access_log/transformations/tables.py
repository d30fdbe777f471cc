# ruff: noqa: D103 - a table is described by its comment, where Spark keeps it
"""The access log as tables: raw, parsed and bad lines, and views of them.

In: a topic of log lines, history from its bucket and the tail from its broker. Out: three streaming tables, which add
only new records at each update, and materialized views, which Spark recomputes from them. Never here: sessions, paths,
or anything that runs: Spark's pipeline runner decides when.
"""

import json
from typing import Any

from parse import bad_lines, good_lines
from pyspark import pipelines as dp
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark program uses
from topic import records, session

LATE = "1 HOUR"
"""A line is late if its record is younger than the line's time by more than this."""


@dp.table(
    comment="Every record of the topic as it came, and whether the bucket or a broker served it"
)
def raw() -> Any:
    return records()


@dp.table(comment="One row per good line")
def parsed() -> Any:
    return good_lines(session().readStream.table("raw"))


@dp.table(
    name="bad_lines",
    comment="Lines whose host, time, request or status cannot be read, as they came, and why",
)
def kept_bad_lines() -> Any:
    return bad_lines(session().readStream.table("raw"))


if session().conf.get("stratalog.sink.format", ""):
    dp.create_sink(
        "sink",
        session().conf.get("stratalog.sink.format"),
        json.loads(session().conf.get("stratalog.sink.options", "{}")),
    )

    @dp.append_flow(target="sink")
    def into_sink() -> Any:
        return session().readStream.table("parsed")


def requests_and_errors() -> list[Any]:
    """Return the counts of every view."""
    return [
        F.count("*").alias("requests"),
        F.count_if(F.col("status") >= 400).alias("errors"),
        F.sum("bytes").alias("bytes"),
    ]


@dp.materialized_view(comment="Records by where they were read: `bucket` or `broker`")
def by_origin() -> Any:
    return session().read.table("raw").groupBy("origin").agg(F.count("*").alias("records"))


@dp.materialized_view(comment="Requests by HTTP status and by where they were read")
def by_status() -> Any:
    return session().read.table("parsed").groupBy("status", "origin").agg(*requests_and_errors())


@dp.materialized_view(
    comment="Requests by the hour, UTC, that their lines name, however late they came; `late` is how many did"
)
def by_hour() -> Any:
    hour = F.date_trunc("hour", "time").alias("hour")
    late = F.count_if(F.expr(f"timestamp - time > INTERVAL {LATE}")).alias("late")
    return session().read.table("parsed").groupBy(hour).agg(*requests_and_errors(), late)


@dp.materialized_view(
    comment="Requests by path, without the query; null where the request names none"
)
def by_path() -> Any:
    return session().read.table("parsed").groupBy("path").agg(*requests_and_errors())


@dp.materialized_view(comment="Requests by client address")
def by_client() -> Any:
    return session().read.table("parsed").groupBy("host").agg(*requests_and_errors())
