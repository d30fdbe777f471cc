"""Streaming queries of Spark: their rows, their lag behind the log, their last error.

In: the newest records of the progress topic, log ends. Out: a page. It asks no Spark, so it shows queries of any
cluster of Spark, and those that ended.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from stratalog.console.charts import Point, chart
from stratalog.console.cluster import Span
from stratalog.console.page import Context, Page, PageRequest
from stratalog.console.reading import Reading, Row
from stratalog.table.progress import PROGRESS_TOPIC, positions_after
from stratalog.wire.ids import TopicPartition
from stratalog.wire.records import Record

__all__ = ["pipelines"]

_RECORDS_MAX: Final = 2_000
_BYTES_MAX: Final = 8 << 20
_SECONDS_MAX: Final = 4.0
_POINTS_MAX: Final = 120
_SILENT_MS: Final = 60_000
"""A query without a record for so long is silent: Spark reports every few seconds, also without new data."""
_ERROR_MAX: Final = 2_000


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
    wanted = set()
    for records in found:
        for source in _sources(records[-1][1]):
            positions = positions_after(source, ids)
            wanted |= set(positions.topics) if positions is not None else set()
    read = [topics[names[one]] for one in wanted if one in names]
    return Ends(ids, names, await context.cluster.spans(read))


class Ends:
    """Log ends, and what names topics have."""

    def __init__(
        self, ids: dict[str, UUID], names: dict[UUID, str], spans: dict[TopicPartition, Span]
    ) -> None:
        self._ids = ids
        self._names = names
        self._spans = spans

    def source(self, source: dict[str, Any]) -> dict[str, Any]:
        """Return the row of a query's source: its topics, and its lag where they are this cluster's."""
        row: dict[str, Any] = {
            "what": str(source.get("description", ""))[:200],
            "topics": [],
            "lag": None,
        }
        positions = positions_after(source, self._ids)
        if positions is None:
            return row
        row["topics"] = sorted(topic.name for topic in positions.topics.values())
        lags = [
            max(0, self._spans[key].end - max(offset, self._spans[key].start))
            for topic_id, topic in positions.topics.items()
            for index, offset in topic.partitions.items()
            if (key := TopicPartition(self._names.get(topic_id, ""), index)) in self._spans
        ]
        row["lag"] = sum(lags) if lags else None
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
    sources = [ends.source(one) for one in _sources(newest)]
    lags = [one["lag"] for one in sources if one["lag"] is not None]
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
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _seconds(value: object) -> float | None:
    number = _number(value)
    return None if number is None else number / 1000
