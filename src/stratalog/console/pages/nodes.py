"""The cluster's inside: its quorum, its transactions, its settings.

In: the cluster's facts. Out: pages. Where a cluster does not serve one of these, its page says so.
"""

from typing import Any, Final

from stratalog.client.calls import BROKER, describe_configs
from stratalog.client.cluster_admin import describe_quorum
from stratalog.client.differing import differing
from stratalog.client.transactions import describe_transaction, list_transactions
from stratalog.console.cluster import reason_of
from stratalog.console.page import Context, Page, PageRequest
from stratalog.console.pages.settings_rows import rows_of
from stratalog.errors import Rejected, Unavailable
from stratalog.wire.ids import topic_id_text

__all__ = ["quorum", "settings", "transactions"]

_DESCRIBED_MAX: Final = 100


async def quorum(context: Context, _request: PageRequest) -> Page:
    """Return the page `/quorum`."""
    client = await context.cluster.client()
    try:
        found = await client.on_any(describe_quorum())
    except Rejected as error:
        data: dict[str, Any] = {"refused": reason_of(error), "replicas": []}
        return Page("quorum.html", "Quorum", data)
    end = max((one.log_end_offset for one in found.replicas), default=0)
    data = {
        "refused": "",
        "leader": found.leader_id,
        "epoch": found.leader_epoch,
        "high_watermark": found.high_watermark,
        "replicas": [
            {
                "id": one.node_id,
                "directory": topic_id_text(one.directory_id),
                "is_voter": one.is_voter,
                "is_leader": one.node_id == found.leader_id and one.is_voter,
                "end": one.log_end_offset,
                "lag": max(0, end - one.log_end_offset) if one.log_end_offset >= 0 else None,
                "last_fetch_ms": one.last_fetch_ms,
                "last_caught_up_ms": one.last_caught_up_ms,
            }
            for one in sorted(found.replicas, key=lambda one: (not one.is_voter, one.node_id))
        ],
    }
    return Page("quorum.html", "Quorum", data, refresh_s=5)


async def transactions(context: Context, _request: PageRequest) -> Page:
    """Return the page `/transactions`: ids with an open transaction first."""
    cluster = context.cluster
    client = await cluster.client()
    listed, refused = [], []
    for node_id, answer in (await cluster.each(list_transactions())).items():
        if isinstance(answer, str):
            refused.append({"id": node_id, "error": answer})
        else:
            listed += [(one, node_id) for one in answer]
    listed.sort(key=lambda one: (not _is_open(one[0].state), one[0].transactional_id))
    rows = []
    for one, node_id in listed[:_DESCRIBED_MAX]:
        row: dict[str, Any] = {
            "id": one.transactional_id,
            "state": one.state,
            "is_open": _is_open(one.state),
            "producer_id": one.producer_id,
            "coordinator": node_id,
            "started_ms": -1,
            "timeout_ms": None,
            "open_seconds": None,
            "partitions": [],
        }
        try:
            found = await client.call(describe_transaction(one.transactional_id), node_id)
        except (Rejected, Unavailable):  # gone since, or its coordinator is
            rows.append(row)
            continue
        row["timeout_ms"] = found.timeout_ms
        row["partitions"] = sorted(str(key) for key in found.partitions)
        if found.started_ms >= 0 and _is_open(found.state):
            row["started_ms"] = found.started_ms
            row["open_seconds"] = max(0, context.now_ms - found.started_ms) / 1000
        rows.append(row)
    data = {"count": len(listed), "transactions": rows, "refused": refused}
    return Page("transactions.html", "Transactions", data, refresh_s=5)


def _is_open(state: str) -> bool:
    return state in {"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"}


async def settings(context: Context, request: PageRequest) -> Page:
    """Return the page `/settings`: the settings of every broker, and those that differ between brokers."""
    cluster = context.cluster
    client = await cluster.client()
    wanted = request.text("q").lower()
    values: dict[int, dict[str, Any]] = {}
    rows: dict[str, dict[str, Any]] = {}
    silent = []
    nodes = sorted((await cluster.metadata()).brokers)
    for node_id in nodes:
        try:
            # Each broker alone knows its properties file.
            call = describe_configs([(BROKER, str(node_id))], documentation=True)
            (found,) = await client.call(call, node_id)
            if found.error:
                raise Rejected(found.error, found.message or "")
        except (Rejected, Unavailable) as error:
            silent.append({"id": node_id, "error": reason_of(error)})
            continue
        for row in rows_of(found.entries):
            if wanted in row["name"].lower():
                rows.setdefault(row["name"], row)
                values.setdefault(node_id, {})[row["name"]] = row["value"]
    unequal = [
        {"name": name, "values": {str(node_id): value for node_id, value in of.items()}}
        for name, of in differing(values).items()
    ]
    data = {
        "q": request.text("q"),
        "brokers": nodes,
        "silent": silent,
        "differing": unequal,
        "settings": sorted(rows.values(), key=lambda row: (row["is_default"], row["name"])),
    }
    return Page("settings.html", "Settings", data)
