r"""A web server's combined log format, read by one rule in two places.

In: a log line, as bytes (the loader, in Python) or as a Spark column. Out: the moment it names, or its columns.
Never here: files, sockets, Spark sessions. A line is never dropped: what cannot be read is marked as bad.

The rule: a line is good if its host, time, request and status can be read; whatever else is missing or odd is
null or taken as it stands. The format is Apache's `LogFormat "%h %l %u %t \"%r\" %>s %b \"%{Referer}i\"
\"%{User-agent}i\"" combined`; bytes may be `-`, quotes inside quotes may be escaped or not, bytes that are no
UTF-8 are shown as U+FFFD, and a request may be anything that was between the quotes.
"""

import re
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache
from typing import Any

from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark program uses

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
TIME = rf"\d\d/(?:{'|'.join(MONTHS)})/\d{{4}}:\d\d:\d\d:\d\d [+-]\d{{4}}"

# Possessive quantifiers keep Java's matcher from recursing on long fields and from trying again in vain. The request
# is tried as properly escaped first, and as whatever ends at a quote followed by a status second.
LINE = (
    r"(?s)\A(\S++) (\S++) (.*?) ?\[(" + TIME + r')\] "'
    r'((?:[^"\\]++|\\.)*+(?=" [1-9]\d\d(?: |\z))|.*?(?=" [1-9]\d\d(?: |\z)))" ([1-9]\d\d)'
    r'(?: (\S++))?(?: "((?:[^"\\]++|\\.)*+)" "(.*)")?.*\z'
)
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
)
FIELDS = ("host", "ident", "user", "time", "request", "status", "bytes", "referer", "agent")
SEPARATOR = "\x1f"

_MOMENT = re.compile(rb"\[(" + TIME.encode() + rb")\]")
_OFFSET_MAX = timedelta(hours=18)  # what Java's ZoneOffset allows
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@lru_cache(maxsize=4096)
def _epoch_ms(text: bytes) -> int | None:
    """Milliseconds since 1970 of `17/May/2015:10:05:03 +0000`, or None where no calendar has that moment."""
    offset = timedelta(hours=int(text[22:24]), minutes=int(text[24:26]))
    if offset > _OFFSET_MAX or int(text[24:26]) > 59:
        return None
    month = MONTHS.index(text[3:6].decode()) + 1
    zone = timezone(-offset if text[21:22] == b"-" else offset)
    try:
        moment = datetime(
            int(text[7:11]),
            month,
            int(text[0:2]),
            int(text[12:14]),
            int(text[15:17]),
            int(text[18:20]),
            tzinfo=zone,
        )
    except ValueError:
        return None
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def line_time_ms(line: bytes) -> int | None:
    """The moment that a line names, in milliseconds since 1970; None where it names none."""
    found = _MOMENT.search(line)
    return None if found is None else _epoch_ms(found[1])


def _fields(value: Any) -> Any:
    """A binary column of lines as an array of `FIELDS`; an array of one where the line cannot be read.

    One pass of one regular expression per line: the line is rewritten as its fields between separators, then split.
    All of it runs inside the JVM. The separator cannot be in the text once it has been replaced.
    """
    text = F.replace(F.make_valid_utf8(value.cast("string")), F.lit(SEPARATOR), F.lit(" "))
    groups = SEPARATOR.join(f"${number}" for number in range(1, len(FIELDS) + 1))
    return F.split(F.regexp_replace(text, F.lit(LINE), F.lit(groups)), SEPARATOR)


def with_columns(lines: Any) -> Any:
    """`lines`, a frame with a binary column `value`, plus what each line says.

    Adds host, user, time, request, method, path (without the query), status, bytes, referer, agent, and `bad`, which
    is true where the line is bad by the rule above; the others are then null. Columns with an underscore in front are
    steps on the way, for the caller to leave out.

    Written with `select` alone. In a declarative pipeline `withColumn` and `drop` are analysed at once, against the
    catalog as an earlier update left it, so that the flow would no longer wait for the table it reads (Spark 4.2).
    """
    whole = F.size("_fields") == len(FIELDS)

    def field(name: str) -> Any:
        return F.when(whole, F.get("_fields", F.lit(FIELDS.index(name))))

    def present(name: str) -> Any:
        return F.nullif(F.nullif(field(name), F.lit("-")), F.lit(""))

    moment = F.try_to_timestamp(field("time"), F.lit("dd/MMM/yyyy:HH:mm:ss Z"))
    return (
        lines.select("*", _fields(F.col("value")).alias("_fields"))
        .select("*", moment.alias("time"), field("request").alias("_request"))
        .select("*", F.substring_index("_request", " HTTP/", 1).alias("_call"))
        .select("*", F.substring_index("_call", " ", 1).alias("_method"))
        .select("*", F.expr("nullif(substring(_call, length(_method) + 2), '')").alias("_target"))
        .select(
            "*",
            F.col("time").isNull().alias("bad"),
            field("host").alias("host"),
            present("user").alias("user"),
            field("request").alias("request"),
            F.when(F.col("_target").isNotNull(), F.col("_method")).alias("method"),
            F.substring_index("_target", "?", 1).alias("path"),
            field("status").cast("int").alias("status"),
            field("bytes").try_cast("bigint").alias("bytes"),
            present("referer").alias("referer"),
            present("agent").alias("agent"),
        )
    )
