"""Incarnations: the lives of a cluster. A takeover begins the next one and fences the one before.

In: a store. Out: small sealed JSON objects `<cluster-id>/cluster/incarnations/<number>`, each put if absent, and
whether a node is fenced. It never removes one.

The first life has the number 0 and no object. A takeover puts the next number; of several takeovers exactly one
succeeds. A node looks for its successor's number by path, so a stale list does no harm. It looks after its start,
before each version of the cluster's state, and after its first version of a partition's manifest. A takeover puts its
number first and lists topics afterwards. So it finds every manifest that its predecessor may consider confirmed, and
fences it by a version of a higher leader epoch.
"""

from collections.abc import Callable, Container
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from msgspec import Struct

from stratalog.errors import Fenced, Unavailable, UserError
from stratalog.ports import AlreadyExists, ObjectStore
from stratalog.tier.bucket.commit import load_latest, run
from stratalog.tier.bucket.identity import TierTopic, decode, delete_topic, encode, list_topics
from stratalog.tier.formats.paths import incarnation_path, partition_prefix

__all__ = [
    "Incarnation",
    "check_incarnation",
    "claim_incarnation",
    "mark_strays",
    "newest_incarnation",
]

_ATTEMPTS_MAX: Final = 4


class Incarnation(Struct, frozen=True, kw_only=True):
    """One life of a cluster. `write_id` identifies the claim."""

    format: int = 1
    cluster_id: str
    incarnation: int
    node_id: int
    write_id: str
    created_ms: int


def newest_incarnation(store: ObjectStore, cluster_id: str, newest: int = 0) -> int:
    """Return the newest life of the cluster; `newest` is one that exists. Raises Unavailable."""
    while _exists(store, incarnation_path(cluster_id, newest + 1)):
        newest += 1
    return newest


def check_incarnation(store: ObjectStore, cluster_id: str, mine: int) -> None:
    """Raise Fenced where a later life than `mine` has begun. Raises Unavailable, Corrupt."""
    path = incarnation_path(cluster_id, mine + 1)
    try:
        later = decode(store.get(path), Incarnation, path)
    except FileNotFoundError:
        return
    at = datetime.fromtimestamp(later.created_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    raise Fenced(
        f"cluster {cluster_id} was taken over at {at} by node {later.node_id}: its incarnation is "
        f"{later.incarnation}, this node's is {mine}"
    )


def claim_incarnation(
    store: ObjectStore, cluster_id: str, *, node_id: int, write_id: str, now_ms: int
) -> Incarnation:
    """Begin the cluster's next life. Raises UserError where another takeover just did; Unavailable, Corrupt.

    After Unavailable the claim may have succeeded: claim again, which takes the next number.
    """
    number = newest_incarnation(store, cluster_id) + 1
    path = incarnation_path(cluster_id, number)
    mine = Incarnation(
        cluster_id=cluster_id,
        incarnation=number,
        node_id=node_id,
        write_id=write_id,
        created_ms=now_ms,
    )
    for _ in range(_ATTEMPTS_MAX):
        try:
            store.put_if_absent(path, encode(mine))
        except AlreadyExists:
            # Perhaps this takeover's own object, whose answer was lost.
            found = decode(store.get(path), Incarnation, path)
            if found.write_id == write_id:
                return mine
            raise UserError(
                f"{store.url}: another takeover, by node {found.node_id}, has just begun incarnation {number} "
                f"of cluster {cluster_id}; nothing was changed"
            ) from None
        except Unavailable:
            continue
        return mine
    raise Unavailable(f"{path}: can be neither put nor read back")


def mark_strays(
    store: ObjectStore, cluster_id: str, existing_topics: Callable[[], Container[UUID]], now_ms: int
) -> list[TierTopic]:
    """Mark topics deleted that a fenced node registered too late for the takeover. Return them.

    Only the node that took the cluster over may call this, because it knew all topics at that time. `existing_topics`
    returns its topics, and is called after reading the registry. A topic with objects stays. Raises Unavailable,
    Corrupt.
    """
    registered = list_topics(store, cluster_id, probe=True)
    living = existing_topics()
    strays = []
    for topic in registered:
        if topic.topic_uuid in living:
            continue
        prefixes = [
            partition_prefix(cluster_id, topic.topic_uuid, n) for n in range(topic.partitions)
        ]
        tips = [run(store, load_latest(prefix)) for prefix in prefixes]
        if not any(tip is not None and any(tip.everything()) for tip in tips):
            delete_topic(store, cluster_id, topic.topic_uuid, now_ms)
            strays.append(topic)
    return strays


def _exists(store: ObjectStore, path: str) -> bool:
    try:
        store.size(path)
    except FileNotFoundError:
        return False
    return True
