"""Streaming queries of Spark: their rows, their lag behind the log, their last error.

In: the newest records of the progress topic, log ends, first unread records. Out: a page, and its numbers for
Prometheus. It asks no Spark, so it shows queries of any cluster of Spark, and those that ended.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from stratalog.console.charts import Point, chart
from stratalog.console.cluster import Span
from stratalog.console.page import Context, Page, PageRequest
from stratalog.console.reading import Reading, Row
from stratalog.console.unread import Unread, age_seconds, first_times
from stratalog.table.offsets import Positions
from stratalog.table.progress import PROGRESS_TOPIC, QUERY_METRICS, positions_after
from stratalog.wire.ids import TopicPartition
from stratalog.wire.records import Record

__all__ = ["pipelines", "query_samples"]

_RECORDS_MAX: Final = 2_000
_BYTES_MAX: Final = 8 << 20
_SECONDS_MAX: Final = 4.0
_POINTS_MAX: Final = 120
_SILENT_MS: Final = 60_000
"""A query without a record for so long is silent: Spark reports every few seconds, also without new data."""
_ERROR_MAX: Final = 2_000
_NUMBER_MAX: Final = 1e300
"""A larger number, infinity among them, is none that Spark measured."""


async def pipelines(context: Context, _request: PageRequest) -> Page:
    """Return the page `/pipelines`: running queries first, then by the time of their last record."""
    topic = await context.cluster.topic(PROGRESS_TOPIC)
    data: dict[str, Any] = {"topic": PROGRESS_TOPIC, "exists": topic is not None, "queries": []}
    if topic is not None:
        spans = await context.cluster.spans([topic])
        rows = await _newest(context, {key.partition: span for key, span in spans.items()})
        found = await context.decoding.submit(lambda: _by_query(rows))
        ends = await _ends(context, found)
        made = [_query(context, records, ends) for records in found]
        data["queries"] = sorted(made, key=lambda one: (one["state"] != "running", -one["at_ms"]))
    return Page("pipelines.html", "Pipelines", data, refresh_s=5)


def query_samples(data: Mapping[str, Any]) -> str:
    """Return the numbers of the page's queries in Prometheus' text format, by the names of `QUERY_METRICS`."""
    lines = []
    for name, (field, meaning) in QUERY_METRICS.items():
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} gauge"]
        for query in data["queries"]:
            value = int(query["state"] == "running") if field == "state" else query[field]
            if value is not None:
                labels = f'query="{_label(query["id"])}",name="{_label(query["name"])}"'
                lines.append(f"{name}{{{labels}}} {value}")
    return "\n".join(lines) + "\n"


def _label(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


async def _newest(context: Context, spans: dict[int, Span]) -> list[Row]:
    async with context.cluster.own_client() as client:
        reading = Reading(
            PROGRESS_TOPIC,
            client,
            context.history,
            context.decoding,
            {},
            lambda _: True,
            _BYTES_MAX,
            _SECONDS_MAX,
        )
        starts = {index: max(one.start, one.end - _RECORDS_MAX) for index, one in spans.items()}
        ends = {index: one.end for index, one in spans.items()}
        return (await reading.read(starts, ends, _RECORDS_MAX)).rows


Reported = tuple[int, dict[str, Any]]
"""A record's time (epoch ms) and its value."""


def _by_query(rows: Sequence[Row]) -> list[list[Reported]]:
    """Return each query's newest records, oldest first. A record that is none of progress is left out."""
    raw: dict[bytes, list[Record]] = {}
    for row in rows:
        if row.record.key is not None and row.record.value is not None:
            raw.setdefault(row.record.key, []).append(row.record)
    found = []
    for records in raw.values():
        kept = []
        for one in records[-_POINTS_MAX:]:
            try:
                value = json.loads(one.value or b"")
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict) and isinstance(value.get("event"), str):
                kept.append((one.timestamp, value))
        if kept:
            found.append(kept)
    return found


async def _ends(context: Context, found: Sequence[Sequence[Reported]]) -> "Ends":
    """Return the log ends of all topics that the queries read."""
    topics = (await context.cluster.metadata()).topics
    ids = {name: one.topic_id for name, one in topics.items()}
    names = {one.topic_id: name for name, one in topics.items()}
    sources = [source for records in found for source in _sources(records[-1][1])]
    read = [one for source in sources if (one := positions_after(source, ids)) is not None]
    wanted = {one for positions in read for one in positions.topics}
    spans = await context.cluster.spans([topics[names[one]] for one in wanted if one in names])
    ends = Ends(ids, names, spans)
    unread = {one for positions in read for one in ends.unread(positions)}
    ends.times = await first_times(context.cluster, unread) if unread else {}
    return ends


class Ends:
    """Log ends, what names topics have, and the times of records that are not read."""

    def __init__(
        self, ids: dict[str, UUID], names: dict[UUID, str], spans: dict[TopicPartition, Span]
    ) -> None:
        self._ids = ids
        self._names = names
        self._spans = spans
        self.times: dict[Unread, int] = {}

    def _offsets(self, positions: Positions) -> Iterator[Unread]:
        """Yield each partition that has a log end, with the offset that a query reads next."""
        for topic_id, topic in positions.topics.items():
            for index, offset in topic.partitions.items():
                key = TopicPartition(self._names.get(topic_id, ""), index)
                if key in self._spans:
                    yield key, max(offset, self._spans[key].start)

    def unread(self, positions: Positions) -> Iterator[Unread]:
        """Yield the first unread record of each partition that has one."""
        return (one for one in self._offsets(positions) if one[1] < self._spans[one[0]].end)

    def source(self, source: dict[str, Any], now_ms: int) -> dict[str, Any]:
        """Return the row of a query's source: its topics, and its lag where they are this cluster's."""
        row: dict[str, Any] = {
            "what": str(source.get("description", ""))[:200],
            "topics": [],
            "lag": None,
            "lag_seconds": None,
        }
        positions = positions_after(source, self._ids)
        if positions is None:
            return row
        row["topics"] = sorted(topic.name for topic in positions.topics.values())
        lags = [max(0, self._spans[key].end - offset) for key, offset in self._offsets(positions)]
        if lags:
            ages = [age_seconds(now_ms, self.times.get(one)) for one in self.unread(positions)]
            dated = [age for age in ages if age is not None]
            row["lag"] = sum(lags)
            row["lag_seconds"] = max(dated, default=None if ages else 0.0)
        return row


def _sources(record: dict[str, Any]) -> list[dict[str, Any]]:
    found = _progress(record).get("sources")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _progress(record: dict[str, Any]) -> dict[str, Any]:
    found = record.get("progress")
    return found if isinstance(found, dict) else {}


def _query(context: Context, records: Sequence[Reported], ends: Ends) -> dict[str, Any]:
    at_ms, newest = records[-1]
    progress = _progress(newest)
    sources = [ends.source(one, context.now_ms) for one in _sources(newest)]
    lags = [one["lag"] for one in sources if one["lag"] is not None]
    ages = [one["lag_seconds"] for one in sources if one["lag_seconds"] is not None]
    error = str(newest.get("error") or "")
    sink = progress.get("sink")
    rows_out = _number(sink.get("numOutputRows")) if isinstance(sink, dict) else None
    return {
        "id": str(newest.get("query", ""))[:100],
        "run_id": str(newest.get("run_id", ""))[:100],
        "name": str(newest.get("name") or "")[:200],
        "state": _state(newest["event"], error, context.now_ms - at_ms),
        "error": error[:_ERROR_MAX],
        "at_ms": at_ms,
        "batch": _number(progress.get("batchId")),
        "batch_seconds": _seconds(progress.get("batchDuration")),
        "rows_in": _number(progress.get("numInputRows")),
        "rows_in_per_second": _number(progress.get("inputRowsPerSecond")),
        "rows_done_per_second": _number(progress.get("processedRowsPerSecond")),
        "rows_out": rows_out if rows_out is None or rows_out >= 0 else None,
        "sink": str(sink.get("description", ""))[:200] if isinstance(sink, dict) else "",
        "sources": sources,
        "lag": sum(lags) if lags else None,
        "lag_seconds": max(ages, default=None),
        "chart": chart("Rows processed", "rows/s", {"": _points(records)}),
    }


def _state(event: str, error: str, age_ms: int) -> str:
    if event == "terminated":
        return "failed" if error else "stopped"
    return "running" if age_ms <= _SILENT_MS else "silent"


def _points(records: Sequence[Reported]) -> list[Point]:
    """Return rows a second of each batch, at the time of its trigger."""
    points: dict[int, float] = {}
    for at_ms, record in records:
        rate = _number(_progress(record).get("processedRowsPerSecond"))
        points[_moment(_progress(record).get("timestamp"), at_ms)] = rate or 0.0
    return sorted(points.items())


def _moment(text: object, otherwise: int) -> int:
    try:
        return int(datetime.fromisoformat(str(text)).timestamp() * 1000)
    except ValueError:
        return otherwise


def _number(value: object) -> Any:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return value if -_NUMBER_MAX < value < _NUMBER_MAX else None


def _seconds(value: object) -> float | None:
    number = _number(value)
    return None if number is None else number / 1000
