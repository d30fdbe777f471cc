"""History in the bucket: bytes by topic, segments on a time axis, manifests, the result of a verification.

In: manifests, a price. Out: pages. It reads the bucket itself, so it shows what would be there without any broker.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from stratalog.client.calls import BROKER, describe_configs
from stratalog.console.history import History, SegmentRow
from stratalog.console.page import BUCKET_REMEDY, Context, Page, PageRequest, failed, path_of
from stratalog.errors import Corrupt, Rejected, Unavailable, UserError

__all__ = ["tier", "verification"]

_LANES_MAX: Final = 64
_SEGMENTS_MAX: Final = 400
_WIDTH: Final = 1000
_NARROWEST: Final = 2.0
_ROWS_MAX: Final = 200


async def tier(context: Context, request: PageRequest) -> Page:
    """Return the page `/tier`, of all topics or of one (`topic`)."""
    history = context.history
    if history is None:
        return Page("tier.html", "Tier", {"url": None, "configured": await _configured(context)})
    name = request.text("topic")
    try:
        topics, is_partial = await history.topics()
        found = await history.partitions(name, _SEGMENTS_MAX) if name else {}
    except (Unavailable, Corrupt, UserError, OSError) as error:
        return failed(503, history.failure(error), BUCKET_REMEDY)
    total = sum(one.size for one in topics)
    prices = context.prices
    data = {
        "url": history.url,
        "topics": [
            {
                "name": one.name,
                "segments": one.segments,
                "records": one.records,
                "bytes": one.size,
                "month": None if prices is None else prices.month(one.size),
                "share": round(one.size / total, 4) if total else 0.0,
                "min_timestamp": one.min_timestamp,
                "max_timestamp": one.max_timestamp,
            }
            for one in sorted(topics, key=lambda one: -one.size)
        ],
        "bytes": total,
        "cost": None if prices is None else {**asdict(prices), "month": prices.month(total)},
        "records": sum(one.records for one in topics),
        "segments": sum(one.segments for one in topics),
        "is_partial": is_partial,
        "topic": name,
        "axis": _axis({index: rows for index, (_, rows) in found.items()}),
        "manifests": [
            {"partition": index, **asdict(manifest)}
            for index, (manifest, _) in sorted(found.items())[:_LANES_MAX]
        ],
        "verification": _verification(history),
    }
    return Page("tier.html", "Tier", data, refresh_s=5)


async def _configured(context: Context) -> str | None:
    """Return the bucket that the brokers use, to say how to start the console with it; None where they have none."""
    node_id = min((await context.cluster.metadata()).brokers, default=0)
    try:
        call = describe_configs([(BROKER, str(node_id))])
        (found,) = await context.cluster.on_broker(call, node_id)
    except Rejected:
        return None
    value = {entry.name: entry.value for entry in found.entries}.get("tier.url")
    return value or None


def _axis(lanes: dict[int, list[SegmentRow]]) -> dict[str, Any] | None:
    """Return a picture: a lane a partition, a box a segment, from its first time to its last."""
    shown = dict(sorted(lanes.items())[:_LANES_MAX])
    rows = [row for one in shown.values() for row in one if row.min_timestamp >= 0]
    if not rows:
        return None
    first = min(row.min_timestamp for row in rows)
    last = max([first + 1, *(row.max_timestamp for row in rows)])
    return {
        "first": first,
        "last": last,
        "left_out": len(lanes) - len(shown),
        "lanes": [
            {
                "partition": index,
                "count": sum(row.segments for row in one),
                "boxes": _boxes(one, first, last),
                "segments": [asdict(row) for row in one[-_ROWS_MAX:]],
            }
            for index, one in shown.items()
        ],
    }


def _boxes(rows: Sequence[SegmentRow], first: int, last: int) -> list[dict[str, Any]]:
    scale = _WIDTH / (last - first)
    boxes = []
    for row in rows:
        if row.min_timestamp < 0:
            continue
        left = (row.min_timestamp - first) * scale
        width = max((row.max_timestamp - row.min_timestamp) * scale, _NARROWEST)
        boxes.append(
            {
                "x": round(min(left, _WIDTH - width), 1),
                "width": round(width, 1),
                "segments": row.segments,
                "offsets": f"{row.first} to {row.last}",
                "bytes": row.size,
            }
        )
    return boxes


def _verification(history: History) -> dict[str, Any] | None:
    found = history.verification
    if found is None:
        return None
    return {
        "began_ms": found.began_ms,
        "ended_ms": found.ended_ms,
        "bytes_done": found.bytes_done,
        "bytes_total": found.bytes_total,
        "failure": found.failure,
        "is_sound": found.ended_ms is not None and not found.failure and not found.problems,
        "checked": asdict(found.checked),
        "problems": [one._asdict() for one in found.problems],
        "problems_count": found.problems_count,
    }


async def verification(context: Context, request: PageRequest) -> Page:
    """Begin a verification (`POST /tier/verify`), and go back to the bucket's page."""
    if not request.is_post or context.history is None:
        return failed(405, "a verification begins with the button of the bucket's page")
    context.history.verify()
    return Page("tier.html", "Tier", {}, redirect=path_of("tier"))
