"""Group visits into sessions: a visitor's requests with at most a gap between one and the next.

In: a frame of good log lines, streaming or not, as `access_log/parse.py` returns them with topic, partition and offset.
Out: a row per session. The same function serves both: a stream returns a session once it is closed, a batch returns
all. Never here: tables, actions, Python functions that run per row.

A visitor is an address and an agent: behind one address there are often several people. A session is closed when the
watermark (the latest time seen, less `DELAY`) has reached its last request plus the gap. A later line is missing in the
stream's sessions; a batch over history has it.
"""

from typing import Any

from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark program uses

VISITOR = ("host", "agent")
VISITS = (*VISITOR, "time", "path", "status", "bytes", "topic", "partition", "offset")
"""The columns that are needed."""

SESSIONS = (*VISITOR, "start", "end", "seconds", "requests", "errors", "bytes", "entry", "exit")
"""The columns that result."""

GAP = "30 minutes"
DELAY = "1 hour"


def sessions(visits: Any, gap: str = GAP) -> Any:
    """One row per visitor and session: `start` and `end` (times of the first and last request), `seconds` between
    them, `requests`, `errors` (status 400 and up), `bytes`, `entry` and `exit` (path of the first and last request,
    null where the request names none). Of requests in the same second the offset says which was first.

    A stream brings its watermark on `time` along. Requests a whole gap apart belong to two sessions (Spark:
    `session_window`, whose end is exclusive).
    """
    order = F.struct("time", "topic", "partition", "offset")
    return (
        visits.groupBy(*VISITOR, F.session_window("time", gap).alias("_window"))
        .agg(
            F.min("time").alias("start"),
            F.max("time").alias("end"),
            F.count("*").alias("requests"),
            F.count_if(F.col("status") >= 400).alias("errors"),
            F.sum("bytes").alias("bytes"),
            F.min_by("path", order).alias("entry"),
            F.max_by("path", order).alias("exit"),
        )
        .select("*", F.timestamp_diff("SECOND", "start", "end").alias("seconds"))
        .select(*SESSIONS)
    )


def closed(history: Any, visits: Any, gap: str = GAP, delay: str = DELAY) -> Any:
    """Return the sessions of a batch that a stream over the same visits has closed by now.

    It names its columns: in a declarative pipeline, Spark would resolve a request for them at once, against a catalog
    without the tables.
    """
    watermark = visits.agg((F.max("time") - F.expr(f"INTERVAL {delay}")).alias("_watermark"))
    ended = (F.col("end") + F.expr(f"INTERVAL {gap}")) <= F.col("_watermark")
    return history.crossJoin(watermark).where(ended).select(*SESSIONS)
