"""Records of a topic: the newest ones, or from the beginning, an offset, a time, or those of a key.

In: a topic, where to begin, a filter. Out: a page of rows, and where the pages before and after it begin. A page is
bounded in rows, bytes and time; it says so where a bound ended it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from stratalog.client.calls import EARLIEST_LOCAL, TopicInfo
from stratalog.console.cluster import Span
from stratalog.console.decoded import decoded_shown
from stratalog.console.page import Context, Page, PageRequest, missing, path_of
from stratalog.console.pages.positions import epoch_ms, offset_of, positions_of, written
from stratalog.console.reading import Found, Reading, Row, oldest_first
from stratalog.console.shown import FORMATS, shown
from stratalog.errors import UserError
from stratalog.wire.ids import TopicPartition
from stratalog.wire.murmur2 import partition_of_key
from stratalog.wire.records import Record

__all__ = ["messages"]

_FROM: Final = ("end", "beginning", "offset", "time", "key")
_ROWS_MAX: Final = 500
_BYTES_MAX: Final = 8 << 20
_SECONDS_MAX: Final = 5.0
_SHOWN_BYTES: Final = 2048
_WHOLE_BYTES: Final = 1 << 20
_PARTITIONS_MAX: Final = 64
_FILTERED_WINDOW: Final = 5_000
"""Records a partition of which the newest page looks at to find those that match."""


@dataclass(frozen=True, slots=True)
class Form:
    """The form of the page, read and checked."""

    start: str
    value: str
    partition: int | None
    contains: str
    key: str
    rows_max: int
    shown_as: str
    is_whole: bool
    at: Mapping[int, int]
    until: Mapping[int, int]

    @property
    def query(self) -> dict[str, Any]:
        """The form again, for links to other pages of it."""
        return {
            "from": self.start,
            "value": self.value,
            "partition": self.partition,
            "q": self.contains,
            "key": self.key,
            "limit": self.rows_max,
            "format": self.shown_as,
        }

    def matches(self) -> Callable[[Record], bool]:
        """Return the filter. Text is looked for in key, value and headers, byte by byte."""
        key = self.key.encode() if self.key else None
        contains = self.contains.encode()

        def match(record: Record) -> bool:
            if key is not None and record.key != key:
                return False
            return (
                not contains
                or contains in (record.value or b"")
                or contains in (record.key or b"")
                or any(
                    contains in name.encode() or contains in (value or b"")
                    for name, value in record.headers
                )
            )

        return match

    @property
    def is_filtered(self) -> bool:
        """Whether some records do not match."""
        return bool(self.key or self.contains)


def _form(request: PageRequest) -> Form:
    partition = request.text("partition")
    start = request.choice("from", _FROM)
    form = Form(
        start,
        request.text("value"),
        request.number("partition", 0, 0, 1 << 31) if partition else None,
        request.query.get("q", ""),
        request.query.get("key", ""),
        request.number("limit", 50, 1, _ROWS_MAX),
        request.choice("format", FORMATS),
        request.text("whole") == "yes",
        positions_of("at", request.text("at")),
        positions_of("until", request.text("until")),
    )
    if start == "key" and not form.key:
        raise UserError("key: it is empty; accepted: the whole key, as text")
    return form


async def messages(context: Context, request: PageRequest, name: str) -> Page:
    """Return the page `/topics/NAME/messages`."""
    form = _form(request)
    cluster = context.cluster
    topic = await cluster.topic(name)
    if topic is None:
        return missing(
            f"topic {name[:249]} does not exist", "see the topics: it may have been deleted"
        )
    chosen = _partitions(topic, form)
    only = {index: one for index, one in topic.partitions.items() if index in chosen}
    some = TopicInfo(topic.name, topic.topic_id, topic.error, topic.is_internal, only)
    found_spans = await cluster.spans([some])
    spans = {key.partition: span for key, span in found_spans.items()}
    if not spans:
        raise UserError(f"no partition of {name} has a leader that answers: see the brokers' page")
    local = await cluster.offsets([some], EARLIEST_LOCAL)
    local_starts = {key.partition: max(offset, 0) for key, offset in local.items()}
    async with cluster.own_client() as client:
        reading = Reading(
            name,
            client,
            context.history,
            context.decoding,
            local_starts,
            form.matches(),
            _BYTES_MAX,
            _SECONDS_MAX,
        )
        if form.start == "end" and not form.at:
            data = await _newest(reading, form, spans)
        else:
            data = await _forward(reading, form, await _starts(context, some, form, spans), spans)
    shown_rows = await _of_rows(context, name, data.pop("rows"), form)
    data |= {
        "records": shown_rows,
        "has_registry": context.registry is not None,
        "name": name,
        "partitions": len(topic.partitions),
        "partitions_read": len(chosen),
        "partitions_silent": len(chosen) - len(spans),
        "form": {**form.query, "partition": "" if form.partition is None else form.partition},
    }
    return Page("messages.html", f"Records of {name}", data)


def _partitions(topic: TopicInfo, form: Form) -> list[int]:
    existing = sorted(topic.partitions)
    if form.partition is not None:
        if form.partition not in topic.partitions:
            raise UserError(
                f"topic {topic.name} has no partition {form.partition}; it has {len(existing)}"
            )
        return [form.partition]
    if form.start == "key":
        return [partition_of_key(form.key.encode(), len(existing))]
    return existing[:_PARTITIONS_MAX]


async def _starts(
    context: Context, topic: TopicInfo, form: Form, spans: Mapping[int, Span]
) -> dict[int, int]:
    """Return the first offset to look at in each partition, within its range."""
    wanted = {index: span.start for index, span in spans.items()}
    if form.at:
        wanted |= {index: offset for index, offset in form.at.items() if index in spans}
    elif form.start == "offset":
        wanted = dict.fromkeys(spans, offset_of("offset", form.value))
    elif form.start == "time":
        found = await context.cluster.offsets([topic], epoch_ms(form.value))
        for index, span in spans.items():
            offset = found.get(TopicPartition(topic.name, index), -1)
            wanted[index] = offset if offset >= 0 else span.end
    return {
        index: min(max(offset, spans[index].start), spans[index].end)
        for index, offset in wanted.items()
    }


async def _forward(
    reading: Reading, form: Form, starts: Mapping[int, int], spans: Mapping[int, Span]
) -> dict[str, Any]:
    ends = {index: span.end for index, span in spans.items()}
    found = await reading.read(starts, ends, form.rows_max)
    ordered = sorted(found.rows, key=oldest_first)
    kept, dropped = ordered[: form.rows_max], ordered[form.rows_max :]
    after = dict(found.positions)
    for row in reversed(dropped):
        after[row.partition] = min(after[row.partition], row.record.offset)
    is_more = any(offset < ends[index] for index, offset in after.items())
    return {
        "rows": kept,
        **_of_read(found),
        "order": "oldest first",
        "next": _link(reading.topic, form, at=after) if is_more else None,
        "previous": None,
        "follow": _link(reading.topic, form, at=after),
    }


async def _newest(reading: Reading, form: Form, spans: Mapping[int, Span]) -> dict[str, Any]:
    """Read the newest records below `until`, or below the ends."""
    ends = {
        index: min(max(form.until.get(index, span.end), span.start), span.end)
        for index, span in spans.items()
    }
    window = max(form.rows_max, _FILTERED_WINDOW if form.is_filtered else 0)
    starts = {index: max(spans[index].start, end - window) for index, end in ends.items()}
    found = await reading.read(starts, ends, window)
    ordered = sorted(found.rows, key=oldest_first, reverse=True)
    kept, dropped = ordered[: form.rows_max], ordered[form.rows_max :]
    before = dict(starts)
    for row in dropped:
        before[row.partition] = max(before[row.partition], row.record.offset + 1)
    is_more = any(offset > spans[index].start for index, offset in before.items())
    return {
        "rows": kept,
        **_of_read(found),
        "order": "newest first",
        "next": _link(reading.topic, form, until=before) if is_more else None,
        "previous": _link(reading.topic, form) if form.until else None,
        "follow": _link(reading.topic, form, at={index: span.end for index, span in spans.items()}),
    }


def _link(
    topic: str,
    form: Form,
    at: Mapping[int, int] | None = None,
    until: Mapping[int, int] | None = None,
) -> str:
    more = {"at": written(at or {}), "until": written(until or {})}
    return path_of("topics", topic, "messages", query={**form.query, **more})


def _of_read(found: Found) -> dict[str, Any]:
    return {
        "looked": found.looked,
        "read_bytes": found.read_bytes,
        "ended_by": found.ended_by,
        "bucket_error": found.bucket_error,
    }


async def _of_rows(
    context: Context, topic: str, rows: list[Row], form: Form
) -> list[dict[str, Any]]:
    """Return what to show of each row; hex shows the bytes as they are, without the registry."""
    bytes_max = _WHOLE_BYTES if form.is_whole else _SHOWN_BYTES
    found: list[dict[str, Any]] = [
        {
            "partition": row.partition,
            "offset": row.record.offset,
            "timestamp": row.record.timestamp,
            "key": shown(row.record.key, form.shown_as, bytes_max),
            "value": shown(row.record.value, form.shown_as, bytes_max),
            "headers": [
                {"name": name, "value": shown(value, "text", bytes_max)}
                for name, value in row.record.headers
            ],
            "from": row.source,
            "whole": path_of("topics", topic, "messages", query=_whole(row, form)),
        }
        for row in rows
    ]
    if context.registry is not None and form.shown_as != "hex":
        for one, (key, value) in zip(found, await context.registry.decode(rows), strict=True):
            one["key"] = decoded_shown(key, one["key"], bytes_max)
            one["value"] = decoded_shown(value, one["value"], bytes_max)
    return found


def _whole(row: Row, form: Form) -> dict[str, Any]:
    """Return the query of the page that shows one record whole."""
    return {
        "from": "offset",
        "value": row.record.offset,
        "partition": row.partition,
        "limit": 1,
        "format": form.shown_as,
        "whole": "yes",
    }
