"""The overview: what the cluster is, and what is wrong with it now.

In: the cluster's facts. Out: a page. Each thing that is wrong has the page that shows more, and a remedy.
"""

from typing import Any

from stratalog.client.admin import LogDirectory
from stratalog.client.calls import ClusterInfo
from stratalog.client.cluster_admin import RegisteredBroker
from stratalog.console.cluster import RIGHTS
from stratalog.console.history import History
from stratalog.console.page import BUCKET_REMEDY, Context, Page, PageRequest, path_of

__all__ = ["overview"]

_TOPICS_MEASURED_MAX = 2_000
_FULL_SHARE = 0.9
_NAMED_MAX = 20


async def overview(context: Context, _request: PageRequest) -> Page:
    """Return the page `/`."""
    cluster = context.cluster
    info = await cluster.metadata()
    brokers = await cluster.brokers()
    directories = await cluster.directories()
    topics = [one for one in info.topics.values() if not one.error]
    measured = topics[:_TOPICS_MEASURED_MAX]
    spans = await cluster.spans(measured)
    sizes = await cluster.sizes()
    wrong = [
        *_of_brokers(brokers, directories),
        *_of_partitions(info),
        *await _of_bucket(context.history),
    ]
    data = {
        "cluster_id": info.cluster_id,
        "controller": info.controller_id,
        "brokers": len(brokers),
        "fenced": sum(one.is_fenced for one in brokers),
        "topics": len(topics),
        "internal_topics": sum(one.is_internal for one in topics),
        "partitions": sum(len(one.partitions) for one in topics),
        "records": sum(one.end - one.start for one in spans.values()),
        "records_are_partial": len(measured) < len(topics),
        "bytes_on_disk": sum(
            one.size
            for found in directories.values()
            for directory in (found if isinstance(found, list) else ())
            for one in directory.replicas
        ),
        "bytes_of_leaders": sum(sizes.values()),
        "records_per_second": cluster.rate(list(spans)),
        "wrong": wrong,
    }
    return Page("overview.html", "Overview", data, refresh_s=5)


def _of_brokers(
    brokers: list[RegisteredBroker], directories: dict[int, list[LogDirectory] | str]
) -> list[dict[str, Any]]:
    wrong = [
        _wrong(
            f"broker {one.node_id} is fenced: it leads nothing and serves no client",
            path_of("brokers"),
            f"start the broker at {one.host}:{one.port}, or see its log",
        )
        for one in brokers
        if one.is_fenced
    ]
    for node_id, found in directories.items():
        where = path_of("brokers")
        if isinstance(found, str):
            what = f"broker {node_id}: {found.removesuffix(f'; {RIGHTS}')}"
            wrong.append(_wrong(what, where, RIGHTS if RIGHTS in found else "see its log"))
            continue
        for one in found:
            if one.error:
                wrong.append(
                    _wrong(
                        f"broker {node_id}: log directory {one.path} is offline ({one.error.name})",
                        where,
                        "see the broker's log, repair the disk and restart the broker",
                    )
                )
            elif one.total_bytes > 0 and one.free_bytes < one.total_bytes * (1 - _FULL_SHARE):
                free = one.free_bytes / one.total_bytes
                wrong.append(
                    _wrong(
                        f"broker {node_id}: the disk of {one.path} has {free:.1%} left",
                        where,
                        "shorten retention, tier topics, or move replicas to another disk",
                    )
                )
    return wrong


def _of_partitions(info: ClusterInfo) -> list[dict[str, Any]]:
    offline, behind = [], []
    for topic in info.topics.values():
        for index, one in topic.partitions.items():
            if one.leader < 0:
                offline.append((topic.name, index))
            elif len(one.isr) < len(one.replicas):
                behind.append((topic.name, index))
    wrong = []
    for found, what, remedy in (
        (offline, "have no leader", "start the brokers that hold their replicas"),
        (
            behind,
            "have replicas out of sync",
            "start the missing brokers, or wait until they have caught up",
        ),
    ):
        if found:
            named = ", ".join(f"{topic}-{index}" for topic, index in found[:_NAMED_MAX])
            more = f" and {len(found) - _NAMED_MAX} more" if len(found) > _NAMED_MAX else ""
            wrong.append(
                _wrong(
                    f"{len(found)} partition(s) {what}: {named}{more}",
                    path_of("topics", found[0][0]),
                    remedy,
                )
            )
    return wrong


async def _of_bucket(history: History | None) -> list[dict[str, Any]]:
    problem = "" if history is None else await history.problem()
    if history is None or not problem:
        return []
    what = f"the console cannot read the bucket: {problem}"
    return [_wrong(what, path_of("tier"), BUCKET_REMEDY)]


def _wrong(what: str, where: str, remedy: str) -> dict[str, Any]:
    return {"what": what, "where": where, "remedy": remedy}
