"""Brokers: what each leads, holds and has room for; the settings of one.

In: the cluster's facts. Out: pages. It never changes anything.
"""

from collections import Counter
from typing import Any

from stratalog.client.admin import LogDirectory
from stratalog.client.calls import BROKER, describe_configs
from stratalog.console.page import Context, Page, PageRequest, missing
from stratalog.console.pages.settings_rows import rows_of
from stratalog.errors import Rejected

__all__ = ["broker", "brokers"]


async def brokers(context: Context, _request: PageRequest) -> Page:
    """Return the page `/brokers`."""
    cluster = context.cluster
    info = await cluster.metadata()
    directories = await cluster.directories()
    leads: Counter[int] = Counter()
    holds: Counter[int] = Counter()
    behind: Counter[int] = Counter()
    for topic in info.topics.values():
        for one in topic.partitions.values():
            leads[one.leader] += 1
            holds.update(one.replicas)
            behind.update(set(one.replicas) - set(one.isr))
    rows = []
    for found in await cluster.brokers():
        answer = directories.get(found.node_id, "")
        rows.append(
            {
                "id": found.node_id,
                "host": found.host,
                "port": found.port,
                "rack": found.rack,
                "is_fenced": found.is_fenced,
                "leaders": leads[found.node_id],
                "replicas": holds[found.node_id],
                "out_of_sync": behind[found.node_id],
                "error": answer if isinstance(answer, str) else "",
                "directories": [_directory(one) for one in answer]
                if isinstance(answer, list)
                else [],
            }
        )
    return Page("brokers.html", "Brokers", {"brokers": rows}, refresh_s=5)


def _directory(found: LogDirectory) -> dict[str, Any]:
    return {
        "path": found.path,
        "error": found.error.name.upper() if found.error else "",
        "total_bytes": found.total_bytes if found.total_bytes >= 0 else None,
        "free_bytes": found.free_bytes if found.free_bytes >= 0 else None,
        "log_bytes": sum(one.size for one in found.replicas),
        "replicas": len(found.replicas),
        "moving": sum(one.is_future for one in found.replicas),
        "is_cordoned": found.is_cordoned,
    }


async def broker(context: Context, request: PageRequest, node_id: str) -> Page:
    """Return the page `/brokers/ID`: the broker's settings."""
    brokers_by_id = {str(one.node_id): one for one in await context.cluster.brokers()}
    if node_id not in brokers_by_id:
        return missing(f"the cluster has no broker {node_id[:40]}", "see the brokers' page")
    call = describe_configs([(BROKER, node_id)], documentation=True)
    (found,) = await context.cluster.on_broker(call, int(node_id))
    if found.error:
        raise Rejected(found.error, found.message or f"broker {node_id}: {found.error.name}")
    wanted = request.text("q").lower()
    rows = [row for row in rows_of(found.entries) if wanted in row["name"].lower()]
    data = {"id": int(node_id), "q": request.text("q"), "settings": rows}
    return Page("broker.html", f"Broker {node_id}", data)
