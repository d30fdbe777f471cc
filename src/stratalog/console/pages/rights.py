"""Rights and limits of clients (ACLs, users, quotas), and the replicas that move.

In: the cluster's facts. Out: pages. Where a cluster refuses one of these, its page says why.
"""

from typing import Any, Final

from stratalog.client.acls import every_acl
from stratalog.client.cluster_admin import list_reassignments
from stratalog.client.quotas import describe_quotas
from stratalog.client.users import describe_users
from stratalog.console.cluster import reason_of
from stratalog.console.page import Context, Page, PageRequest
from stratalog.errors import Rejected
from stratalog.wire.ids import TopicPartition

__all__ = ["acls", "quotas", "reassignments"]

_ROWS_MAX: Final = 1_000


async def acls(context: Context, request: PageRequest) -> Page:
    """Return the page `/acls`: ACLs by resource, those with the text in principal or name, and SCRAM users."""
    client = await context.cluster.client()
    wanted = request.text("q").lower()
    data: dict[str, Any] = {"q": request.text("q"), "refused": "", "users_refused": ""}
    rows: list[dict[str, str]] = []
    try:
        found = await client.on_any(every_acl())
        rows = [acl.named() for acl in sorted(found)]
    except Rejected as error:
        data["refused"] = reason_of(error)
    matching = [
        row for row in rows if wanted in row["principal"].lower() or wanted in row["name"].lower()
    ]
    users: dict[str, dict[str, int]] = {}
    try:
        users = await client.on_any(describe_users())
    except Rejected as error:
        data["users_refused"] = reason_of(error)
    data |= {
        "count": len(rows),
        "matching": len(matching),
        "acls": matching[:_ROWS_MAX],
        "users": [
            {"user": user, "mechanisms": sorted(mechanisms)}
            for user, mechanisms in sorted(users.items())
        ],
    }
    return Page("acls.html", "ACLs", data)


async def quotas(context: Context, _request: PageRequest) -> Page:
    """Return the page `/quotas`: limits of users, client ids and addresses."""
    client = await context.cluster.client()
    refused, rows = "", []
    try:
        found = await client.on_any(describe_quotas(()))
    except Rejected as error:
        refused, found = reason_of(error), {}
    for entity, limits in found.items():
        named = {kind: name if name is not None else "default" for kind, name in entity}
        rows.append(
            {
                "user": named.get("user"),
                "client_id": named.get("client-id"),
                "ip": named.get("ip"),
                "limits": dict(sorted(limits.items())),
            }
        )
    rows.sort(key=lambda row: (row["user"] or "", row["client_id"] or "", row["ip"] or ""))
    data = {"refused": refused, "count": len(rows), "quotas": rows[:_ROWS_MAX]}
    return Page("quotas.html", "Quotas", data)


async def reassignments(context: Context, _request: PageRequest) -> Page:
    """Return the page `/reassignments`: replicas that move, and the bytes that the new ones have so far."""
    cluster = context.cluster
    client = await cluster.client()
    refused = ""
    try:
        moves = await client.on_controller(list_reassignments())
    except Rejected as error:
        refused, moves = reason_of(error), {}
    sizes = await _bytes_by_broker(context) if moves else {}
    rows = []
    for key, move in sorted(moves.items()):
        of_brokers = sizes.get(key, {})
        whole = max(of_brokers.values(), default=0)
        rows.append(
            {
                "topic": key.topic,
                "partition": key.partition,
                "replicas": list(move.replicas),
                "adding": list(move.adding),
                "removing": list(move.removing),
                "bytes": whole,
                "bytes_left": sum(max(0, whole - of_brokers.get(node, 0)) for node in move.adding),
            }
        )
    data = {"refused": refused, "count": len(rows), "moves": rows[:_ROWS_MAX]}
    return Page("reassignments.html", "Reassignments", data, refresh_s=5)


async def _bytes_by_broker(context: Context) -> dict[TopicPartition, dict[int, int]]:
    sizes: dict[TopicPartition, dict[int, int]] = {}
    for node_id, found in (await context.cluster.directories()).items():
        for directory in found if isinstance(found, list) else ():
            for one in directory.replicas:
                if not one.is_future:
                    sizes.setdefault(TopicPartition(one.topic, one.partition), {})[node_id] = (
                        one.size
                    )
    return sizes
