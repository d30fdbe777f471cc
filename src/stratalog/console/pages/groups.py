"""Consumer groups: their members, their lag in records and seconds, and the time until retention deletes their records.

In: committed offsets, log ends, the first unread records, retention. Out: pages. It never joins a group.
"""

from contextlib import suppress
from math import isinf
from typing import Any, Final

from stratalog.client.admin import (
    DescribedGroup,
    ListedGroup,
    Offsets,
    describe_group,
    fetch_offsets,
    list_groups,
)
from stratalog.client.aio import Client
from stratalog.client.calls import TOPIC
from stratalog.console.cluster import Span
from stratalog.console.page import Context, Page, PageRequest, missing
from stratalog.console.unread import age_seconds, first_times
from stratalog.errors import ErrorCode, Rejected, Unavailable
from stratalog.wire.ids import TopicPartition

__all__ = ["existing_group", "group", "groups"]

_ROWS: Final = 50
_TOPICS_MAX: Final = 50


async def groups(context: Context, request: PageRequest) -> Page:
    """Return the page `/groups`. Only the groups that it shows are measured."""
    cluster = context.cluster
    wanted = request.text("q")
    found: dict[str, tuple[ListedGroup, int]] = {}
    silent = []
    for node_id, answer in (await cluster.each(list_groups())).items():
        if isinstance(answer, str):
            silent.append({"id": node_id, "error": answer})
            continue
        found |= {one.group_id: (one, node_id) for one in answer if wanted in one.group_id}
    names = sorted(found)
    pages = max(1, -(-len(names) // _ROWS))
    number = min(request.number("page", 1, 1, 1_000_000), pages)
    shown = names[(number - 1) * _ROWS : number * _ROWS]
    client = await cluster.client()
    offsets: dict[str, Offsets] = {}
    for name in shown:
        with suppress(Unavailable, Rejected):
            offsets[name] = await client.call(fetch_offsets(name), found[name][1])
    spans = await _spans(context, {key for one in offsets.values() for key in one})
    rows = []
    for name in shown:
        listed, node_id = found[name]
        committed = offsets.get(name)
        lags = [
            max(0, spans[key].end - offset)
            for key, offset in (committed or {}).items()
            if key in spans
        ]
        rows.append(
            {
                "name": name,
                "state": listed.state,
                "type": listed.protocol_type,
                "coordinator": node_id,
                "topics": sorted({key.topic for key in committed or ()}),
                "partitions": len(committed or ()),
                "lag": None if committed is None else sum(lags),
            }
        )
    data = {
        "q": wanted,
        "page": number,
        "pages": pages,
        "count": len(names),
        "groups": rows,
        "silent": silent,
    }
    return Page("groups.html", "Groups", data, refresh_s=5)


async def _spans(context: Context, keys: set[TopicPartition]) -> dict[TopicPartition, Span]:
    topics = (await context.cluster.metadata()).topics
    return await context.cluster.spans(
        [topics[name] for name in {key.topic for key in keys} if name in topics]
    )


async def existing_group(client: Client, name: str) -> DescribedGroup | None:
    """Return a group as its coordinator describes it; None where there is none. Raises Rejected."""
    found = await client.on_coordinator(name, describe_group(name))
    if found.error is ErrorCode.group_id_not_found or found.state == "Dead":
        return None
    if found.error:
        raise Rejected(found.error, f"group {name}: {found.error.name}")
    return found


async def group(context: Context, _request: PageRequest, name: str) -> Page:
    """Return the page `/groups/NAME`."""
    client = await context.cluster.client()
    found = await existing_group(client, name)
    if found is None:
        return missing(
            f"group {name[:249]} does not exist", "see the groups: it may have been deleted"
        )
    rows = await _rows(context, client, found)
    headrooms = [one["headroom_seconds"] for one in rows if one["headroom_seconds"] is not None]
    data = {
        "name": name,
        "state": found.state,
        "protocol": found.protocol,
        "members": [
            {
                "id": one.member_id,
                "instance": one.instance_id,
                "client": one.client_id,
                "host": one.host,
                "partitions": len(one.assigned),
            }
            for one in found.members
        ],
        "lag": sum(row["lag"] or 0 for row in rows),
        "lag_seconds": max((row["lag_seconds"] or 0.0 for row in rows), default=0.0),
        "headroom_seconds": min(headrooms, default=None),
        "deleted_unread": sum(row["deleted_unread"] for row in rows),
        "partitions": rows,
    }
    return Page("group.html", name, data, refresh_s=5)


async def _rows(context: Context, client: Client, found: DescribedGroup) -> list[dict[str, Any]]:
    """Return a row for each partition that the group has an offset for, or reads."""
    committed = await client.on_coordinator(found.group_id, fetch_offsets(found.group_id))
    readers = {key: member for member in found.members for key in member.assigned}
    spans = await _spans(context, committed.keys() | readers.keys())
    unread = {
        key: max(offset, spans[key].start)
        for key, offset in committed.items()
        if key in spans and offset < spans[key].end
    }
    times = await first_times(context.cluster, unread.items())
    retention = await _retention_ms(client, sorted({key.topic for key in unread})[:_TOPICS_MAX])
    now_ms = context.now_ms
    rows = []
    for key in sorted(spans.keys() & (committed.keys() | readers.keys())):
        span, offset, reader = spans[key], committed.get(key), readers.get(key)
        time_ms, kept_ms = times.get((key, unread.get(key, -1))), retention.get(key.topic)
        is_behind = key in unread
        read_all_s = None if offset is None else 0.0
        row: dict[str, Any] = {
            "topic": key.topic,
            "partition": key.partition,
            "offset": offset,
            "start": span.start,
            "end": span.end,
            "lag": None if offset is None else max(0, span.end - offset),
            "lag_seconds": age_seconds(now_ms, time_ms) if is_behind else read_all_s,
            "deleted_unread": max(0, span.start - offset) if offset is not None else 0,
            "headroom_records": max(0, offset - span.start) if offset is not None else None,
            "headroom_seconds": _headroom_s(now_ms, time_ms, kept_ms) if is_behind else None,
            "member": None if reader is None else reader.instance_id or reader.member_id,
            "host": None if reader is None else reader.host,
        }
        rows.append(row)
    return rows


async def _retention_ms(client: Client, names: list[str]) -> dict[str, float]:
    """Return each topic's retention.ms; infinite where time deletes nothing."""
    found = {}
    for one in await client.describe_configs([(TOPIC, name) for name in names]) if names else ():
        values = {entry.name: entry.value for entry in one.entries}
        kept_ms = int(values.get("retention.ms") or -1)
        deletes = "delete" in (values.get("cleanup.policy") or "delete")
        found[one.name] = kept_ms if deletes and kept_ms >= 0 else float("inf")
    return found


def _headroom_s(now_ms: int, time_ms: int | None, kept_ms: float | None) -> float | None:
    """Return seconds until retention deletes the first unread record; None where it never does or cannot be known."""
    if time_ms is None or time_ms < 0 or kept_ms is None or isinf(kept_ms):
        return None
    return max(0.0, time_ms + kept_ms - now_ms) / 1000
