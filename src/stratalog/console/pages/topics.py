"""Topics: a list that can be searched and sorted, and one topic with everything about it.

In: the cluster's facts, the bucket's where there is one. Out: pages. It never changes anything.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from stratalog.client.calls import EARLIEST_LOCAL, LATEST_TIERED, TOPIC, TopicInfo
from stratalog.console.cluster import Span
from stratalog.console.page import Context, Page, PageRequest, missing
from stratalog.console.pages.settings_rows import rows_of
from stratalog.errors import Corrupt, Rejected, Unavailable, UserError
from stratalog.wire.ids import TopicPartition, topic_id_text

__all__ = ["skew_of", "tiered_bytes", "topic", "topics"]

_ROWS: Final = 100
_SORTS: Final = ("name", "size", "records", "rate", "partitions", "skew")
_MEASURED_MAX: Final = 20_000
"""Topics that are measured to sort by records, rate or skew; with more, sort by name or size."""


async def topics(context: Context, request: PageRequest) -> Page:
    """Return the page `/topics`. Only the topics that it shows are measured, where their order does not need all."""
    cluster = context.cluster
    info = await cluster.metadata()
    wanted, sort = request.text("q"), request.choice("sort", _SORTS)
    with_internal = request.choice("internal", ("no", "yes")) == "yes"
    found = [
        one
        for one in info.topics.values()
        if wanted.lower() in one.name.lower() and (with_internal or not one.is_internal)
    ]
    found.sort(key=lambda one: one.name)
    sizes = await cluster.sizes()
    pages = max(1, -(-len(found) // _ROWS))
    number = request.number("page", 1, 1, 1_000_000)
    first = (min(number, pages) - 1) * _ROWS
    measured_first = sort in {"records", "rate", "skew"} and len(found) <= _MEASURED_MAX
    if not measured_first and sort in {"size", "partitions"}:
        found.sort(
            key=lambda one: (
                -len(one.partitions)
                if sort == "partitions"
                else -sum(sizes.get(key, 0) for key in _keys(one))
            )
        )
    shown = found if measured_first else found[first : first + _ROWS]
    spans = await cluster.spans(shown)
    rows = [_row(context, one, spans, sizes) for one in shown]
    if measured_first:
        column = {"rate": "records_per_second"}.get(sort, sort)
        rows.sort(key=lambda row: -(row[column] or 0))
        rows = rows[first : first + _ROWS]
    data = {
        "q": wanted,
        "sort": sort,
        "internal": "yes" if with_internal else "no",
        "page": min(number, pages),
        "pages": pages,
        "count": len(found),
        "topics": rows,
    }
    return Page("topics.html", "Topics", data, refresh_s=5)


def _keys(topic: TopicInfo) -> list[TopicPartition]:
    return [TopicPartition(topic.name, index) for index in sorted(topic.partitions)]


def _row(
    context: Context,
    topic: TopicInfo,
    spans: Mapping[TopicPartition, Span],
    sizes: Mapping[TopicPartition, int],
) -> dict[str, Any]:
    keys = _keys(topic)
    records = [spans[key].end - spans[key].start for key in keys if key in spans]
    return {
        "name": topic.name,
        "is_internal": topic.is_internal,
        "partitions": len(keys),
        "replicas": max((len(one.replicas) for one in topic.partitions.values()), default=0),
        "offline": sum(one.leader < 0 for one in topic.partitions.values()),
        "out_of_sync": sum(len(one.isr) < len(one.replicas) for one in topic.partitions.values()),
        "records": sum(records) if records else None,
        "records_per_second": context.cluster.rate(keys),
        "size": sum(sizes.get(key, 0) for key in keys),
        "skew": skew_of(records),
    }


def skew_of(numbers: Sequence[int]) -> float:
    """Return the largest number over the average: 1 is even, also where there is nothing."""
    total = sum(numbers)
    return round(max(numbers) * len(numbers) / total, 2) if total else 1.0


async def topic(context: Context, _request: PageRequest, name: str) -> Page:
    """Return the page `/topics/NAME`."""
    cluster = context.cluster
    found = await cluster.topic(name)
    if found is None:
        return missing(
            f"topic {name[:249]} does not exist", "see the topics: it may have been deleted"
        )
    spans = await cluster.spans([found])
    local = await cluster.offsets([found], EARLIEST_LOCAL)
    tiered = await cluster.offsets([found], LATEST_TIERED)
    sizes = await cluster.sizes()
    in_bucket, bucket_error = await tiered_bytes(context, name)
    rows: list[dict[str, Any]] = []
    for key in _keys(found):
        one, span = found.partitions[key.partition], spans.get(key)
        rows.append(
            {
                "partition": key.partition,
                "leader": one.leader if one.leader >= 0 else None,
                "leader_epoch": one.leader_epoch,
                "replicas": list(one.replicas),
                "isr": list(one.isr),
                "start": span.start if span else None,
                "local_start": local.get(key),
                "tiered_last": tiered[key] if tiered.get(key, -1) >= 0 else None,
                "end": span.end if span else None,
                "records": span.end - span.start if span else None,
                "size": sizes.get(key, 0),
                "tiered_bytes": in_bucket.get(key.partition) if in_bucket is not None else None,
                "records_per_second": cluster.rate([key]),
            }
        )
    client = await cluster.client()
    (configs,) = await client.describe_configs([(TOPIC, name)], documentation=True)
    if configs.error:
        raise Rejected(configs.error, configs.message or f"topic {name}: {configs.error.name}")
    data = {
        "name": name,
        "id": topic_id_text(found.topic_id),
        "is_internal": found.is_internal,
        "partitions": rows,
        "records": sum(row["records"] or 0 for row in rows),
        "records_per_second": cluster.rate(_keys(found)),
        "size": sum(row["size"] for row in rows),
        "tiered_bytes": sum(in_bucket.values()) if in_bucket is not None else None,
        "bucket_error": bucket_error,
        "skew": skew_of([row["records"] or 0 for row in rows]),
        "settings": rows_of(configs.entries),
        "is_tiered": any(row["tiered_last"] is not None for row in rows),
    }
    return Page("topic.html", name, data, refresh_s=5)


async def tiered_bytes(context: Context, name: str) -> tuple[dict[int, int] | None, str]:
    """Return a topic's bytes in the bucket by partition, and why they are unknown; None without a bucket."""
    if context.history is None:
        return None, ""
    try:
        rows, _ = await context.history.topics()
    except (Unavailable, Corrupt, UserError, OSError) as error:
        return None, context.history.failure(error)
    return next((row.bytes_of for row in rows if row.name == name), {}), ""
