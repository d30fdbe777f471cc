"""Parse a frame of log lines into columns, by the rule of `combined.py`, inside the JVM.

In: a frame with a binary column `value`. Out: the same frame with the fields of each line, and whether and why it is
bad. The pipeline, the endless stream and the backfill all use it. Never here: Python functions that run per row,
sessions, actions.
"""

from typing import Any

from combined import FIELDS, LINE, REASON_LEFT, REASONS, SEPARATOR
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark program uses

PARTS = ("topic", "partition", "offset", "timestamp", "origin")
"""What a record is besides its line."""

COLUMNS = (
    "host",
    "user",
    "time",
    "request",
    "method",
    "path",
    "status",
    "bytes",
    "referer",
    "agent",
    "took_ms",
)


def good_lines(records: Any) -> Any:
    """Return one row per good line: the record's parts and the line's fields."""
    return with_columns(records).where("NOT bad").select(*PARTS, *COLUMNS)


def bad_lines(records: Any) -> Any:
    """Return bad lines unchanged, each with the reason."""
    return with_columns(records).where("bad").select("value", "reason", *PARTS)


def _text(value: Any) -> Any:
    return F.make_valid_utf8(value.cast("string"))


def _reason(value: Any) -> Any:
    """Return the reason for a bad line: the first part that is missing."""
    reason = F.lit(REASON_LEFT)
    for name, pattern in reversed(REASONS):
        reason = F.when(~_text(value).rlike(pattern), F.lit(name)).otherwise(reason)
    return reason


def _fields(value: Any) -> Any:
    """Return a binary column of lines as an array of `FIELDS`; an array of one where the line cannot be read.

    One pass of one regular expression per line: the line is rewritten as its fields between separators, then split.
    All of it runs inside the JVM. The separator cannot be in the text once it has been replaced.
    """
    text = F.replace(_text(value), F.lit(SEPARATOR), F.lit(" "))
    groups = SEPARATOR.join(f"${number}" for number in range(1, len(FIELDS) + 1))
    return F.split(F.regexp_replace(text, F.lit(LINE), F.lit(groups)), SEPARATOR)


def with_columns(lines: Any) -> Any:
    """Return `lines`, a frame with a binary column `value`, plus the fields of each line.

    Adds host, user, time, request, method, path (without the query), status, bytes, referer, agent, took_ms (null in
    lines without it), and `bad`, which is true where the line is bad by the rule; the others are then null but for
    `reason`. Columns with an underscore in front are intermediate; the caller leaves them out.

    Written with `select` alone. In a declarative pipeline `withColumn` and `drop` are analysed at once, against the
    catalog as an earlier update left it, so that the flow would no longer wait for the table it reads (Spark 4.2).
    """

    def field(name: str) -> Any:
        return F.when(F.col("time").isNotNull(), F.get("_fields", F.lit(FIELDS.index(name))))

    def present(name: str) -> Any:
        return F.nullif(F.nullif(field(name), F.lit("-")), F.lit(""))

    # Nothing but a line that matched as a whole has this many fields.
    time = F.when(F.size("_fields") == len(FIELDS), F.get("_fields", F.lit(FIELDS.index("time"))))
    moment = F.try_to_timestamp(time, F.lit("dd/MMM/yyyy:HH:mm:ss Z"))
    return (
        lines.select("*", _fields(F.col("value")).alias("_fields"))
        .select("*", moment.alias("time"))
        .select("*", field("request").alias("_request"))
        .select("*", F.substring_index("_request", " HTTP/", 1).alias("_call"))
        .select("*", F.substring_index("_call", " ", 1).alias("_method"))
        .select("*", F.expr("nullif(substring(_call, length(_method) + 2), '')").alias("_target"))
        .select(
            "*",
            F.col("time").isNull().alias("bad"),
            F.when(F.col("time").isNull(), _reason(F.col("value"))).alias("reason"),
            field("host").alias("host"),
            present("user").alias("user"),
            F.col("_request").alias("request"),
            F.when(F.col("_target").isNotNull(), F.col("_method")).alias("method"),
            F.substring_index("_target", "?", 1).alias("path"),
            field("status").cast("int").alias("status"),
            field("bytes").try_cast("bigint").alias("bytes"),
            present("referer").alias("referer"),
            present("agent").alias("agent"),
            _milliseconds(present("took")).alias("took_ms"),
        )
    )


def _milliseconds(took: Any) -> Any:
    """Microseconds where the number is whole, else seconds."""
    number = took.cast("double")
    return F.when(F.contains(took, F.lit(".")), number * 1000).otherwise(number / 1000)
