"""Count requests by key and hour, and flag hours: the Spark code around `baseline.py`.

In: a frame of good log lines, streaming or not, as `access_log/parse.py` returns them. Out: a row per flag. Never here:
the rule for flags, tables, actions.

Hours are counted inside the JVM; Python sees one row per key and hour. A stream counts an hour once the watermark has
passed its end, so each key's hours arrive in order, whatever the batches; a later line counts in no hour. A batch has
every hour, including those that are not over.
"""

from collections.abc import Iterable, Iterator
from dataclasses import astuple
from typing import Any

from baseline import Baseline, Rule, fold
from pyspark.sql import Row
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark program uses
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

REQUESTS = ("time", "host", "path", "status")
"""The columns that are needed."""

_FLAGGED = Row("kind", "key", "hour", "what", "requests", "errors", "expected", "score")
HOUR_MS = 3_600_000

STATE = "hour LONG, hours LONG, mean DOUBLE, variance DOUBLE, requests DOUBLE, errors DOUBLE"
FLAG = "hour LONG, what STRING, requests LONG, errors LONG, expected DOUBLE, score DOUBLE"


def hours(lines: Any) -> Any:
    """Requests and errors (status 400 and up) of each key in each hour that has some: `kind` (`client` or `path`),
    `key`, `hour` (hours since 1970), `window`, `requests`, `errors`. A stream brings its watermark on `time` along.
    """
    keys = F.array(
        F.struct(F.lit("client").alias("kind"), F.col("host").alias("key")),
        F.struct(F.lit("path").alias("kind"), F.col("path").alias("key")),
    )
    hour = F.floor(F.unix_seconds(F.col("window.start")) / 3600)
    return (
        lines.select("time", "status", F.inline(keys))
        .where(F.col("key").isNotNull())
        .groupBy("kind", "key", F.window("time", "1 hour"))
        .agg(F.count("*").alias("requests"), F.count_if(F.col("status") >= 400).alias("errors"))
        .select("*", hour.alias("hour"))
    )


def flagged_in_stream(hourly: Any, rule: Rule) -> Any:
    """Return the flags of a stream of hours: `kind`, `key`, `hour` (when it began), `what`, `requests`, `errors`,
    `expected`, `score` (see `baseline.Flag`).

    Baselines are kept in the stream's state.
    """
    found = hourly.groupBy("kind", "key").transformWithState(
        Flagging(rule), f"kind STRING, key STRING, {FLAG}", "Append", "EventTime"
    )
    return _with_times(found)


def flagged_in_history(hourly: Any, rule: Rule) -> Any:
    """Return the flags of a batch of hours, as `flagged_in_stream`."""
    in_order = F.array_sort(F.collect_list(F.struct("hour", "requests", "errors")))
    found = hourly.groupBy("kind", "key").agg(in_order.alias("_hours"))
    flags = F.udf(lambda rows: _judged(None, rows, rule)[1], f"ARRAY<STRUCT<{FLAG}>>")("_hours")
    return _with_times(found.select("kind", "key", F.inline(flags)))


def _judged(
    baseline: Baseline | None, rows: Iterable[Row], rule: Rule
) -> tuple[Baseline | None, list[tuple[Any, ...]]]:
    """Return a key's next hours, in order: its baseline after them, and their flags as `FLAG` has them."""
    found: list[tuple[Any, ...]] = []
    for row in rows:
        baseline, flags = fold(baseline, row.hour, row.requests, row.errors, rule)
        found += (
            (row.hour, flag.what, row.requests, row.errors, flag.expected, flag.score)
            for flag in flags
        )
    return baseline, found


def _with_times(found: Any) -> Any:
    began = F.timestamp_seconds(F.col("hour") * 3600).alias("hour")
    return found.select("kind", "key", began, "what", "requests", "errors", "expected", "score")


class Flagging(StatefulProcessor):
    """A key's baseline, kept in Spark's state store between batches and restarts, and dropped after a long silence."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("baseline", STATE)

    def handleInputRows(  # noqa: N802 - Spark's name
        self, key: tuple[str, str], rows: Iterator[Row], _timers: Any
    ) -> Iterator[Row]:
        kept = self._state.get()
        before = None if kept is None else Baseline(*kept)
        in_order = sorted(rows, key=lambda row: row.hour)
        baseline, found = _judged(before, in_order, self._rule)
        assert baseline is not None, "Spark calls with rows"
        self._state.update(astuple(baseline))
        self._handle.registerTimer(self._forgotten_ms(baseline))
        for flag in found:
            yield _FLAGGED(*key, *flag)

    def handleExpiredTimer(  # noqa: N802 - Spark's name
        self, _key: tuple[str, str], _timers: Any, expired: Any
    ) -> Iterator[Row]:
        """Drop a baseline that `fold` would not use again."""
        kept = self._state.get()
        if kept is not None and self._forgotten_ms(Baseline(*kept)) <= expired.getExpiryTimeInMs():
            self._state.clear()
        yield from ()

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def _forgotten_ms(self, baseline: Baseline) -> int:
        """Return the end of the last hour for which this baseline can count."""
        return (baseline.hour + self._rule.forget_hours + 1) * HOUR_MS
