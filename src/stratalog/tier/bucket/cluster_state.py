"""The cluster's state in the bucket, besides records: topics, settings, committed offsets.

In: values; a store. Out: numbered versions of one sealed JSON object, and the newest of them. It never decides when a
version is due, and never touches a manifest.

Each incarnation's versions have a folder of their own, so that a fenced cluster's last versions do not mix with its
successor's. A version is put if absent under the next number, so of several brokers one wins; the others build theirs
on the winner's. The highest number counts. The newest few are kept, so that a damaged one has its predecessor.
"""

from typing import Final

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from stratalog.errors import Corrupt
from stratalog.ports import AlreadyExists, ObjectStore
from stratalog.tier.bucket.identity import decode, encode
from stratalog.tier.formats.paths import manifest_version, state_path, states_prefix

__all__ = [
    "ClusterState",
    "StateOffset",
    "StatePartition",
    "StateTopic",
    "newest_state",
    "put_state",
    "state_version",
]

KEPT_STATES: Final = 8


class StatePartition(Struct, frozen=True, array_like=True):
    """A partition's log start and end on its leader; -1 where unknown."""

    leader_epoch: int
    log_start_offset: int
    end_offset: int


class StateTopic(Struct, frozen=True, kw_only=True):
    """A topic. `topic_id` is in 22 characters; `configs` are its own; partitions are in order, from 0."""

    name: str
    topic_id: str
    configs: dict[str, str] = {}
    partitions: tuple[StatePartition, ...]


class StateOffset(Struct, frozen=True, array_like=True):
    """A committed offset. Times are epoch ms, -1: none; `topic_id` is in 22 characters."""

    topic: str
    topic_id: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int


class ClusterState(Struct, frozen=True, kw_only=True):
    """One version of it, as of `written_ms`.

    `brokers` are dynamic settings by node id, "" for every broker's. `groups` are committed offsets by group, without
    members, which join again after a restore. `metadata_offset`: topics and settings are as of this offset of the
    metadata log.
    """

    format: int = 1
    cluster_id: str
    incarnation: int
    version: int = 0
    node_id: int
    written_ms: int
    next_producer_id: int = 0
    brokers: dict[str, dict[str, str]] = {}
    topics: tuple[StateTopic, ...] = ()
    groups: dict[str, tuple[StateOffset, ...]] = {}
    metadata_offset: int | UnsetType = UNSET


def state_version(store: ObjectStore, cluster_id: str, incarnation: int, at_least: int = 0) -> int:
    """Return the highest version of an incarnation; 0 for none. `at_least` exists, or did. Raises Unavailable."""
    found = store.list(states_prefix(cluster_id, incarnation))
    version = max((manifest_version(info.path) for info in found), default=0)
    version = max(version, at_least)
    while _get(store, state_path(cluster_id, incarnation, version + 1)) is not None:
        version += 1  # the list was out of date
    return version


def put_state(store: ObjectStore, state: ClusterState, after: int) -> bool:
    """Put the version above `after`, the newest one; return False where another writer has put that version.

    Old versions are removed. After Unavailable the put may have succeeded, which does not matter for the next version.
    """
    version = after + 1
    path = state_path(state.cluster_id, state.incarnation, version)
    try:
        store.put_if_absent(path, encode(replace(state, version=version)))
    except AlreadyExists:
        return False
    # A few more than one, because an earlier removal may have failed.
    gone = range(max(1, version - 2 * KEPT_STATES), max(1, version - KEPT_STATES + 1))
    if gone:
        store.delete([state_path(state.cluster_id, state.incarnation, one) for one in gone])
    return True


def newest_state(
    store: ObjectStore, cluster_id: str, incarnation: int
) -> tuple[ClusterState | None, list[str]]:
    """Return the newest sound version, of this incarnation or the last earlier one that has any, and the damaged ones.

    Raises Unavailable.
    """
    damaged: list[str] = []
    for life in range(incarnation, -1, -1):
        version = state_version(store, cluster_id, life)
        for number in range(version, max(0, version - 2 * KEPT_STATES), -1):
            path = state_path(cluster_id, life, number)
            data = _get(store, path)
            if data is None:
                continue
            try:
                return decode(data, ClusterState, path), damaged
            except Corrupt as corrupt:
                damaged.append(str(corrupt))
    return None, damaged


def _get(store: ObjectStore, path: str) -> bytes | None:
    try:
        return store.get(path)
    except FileNotFoundError:
        return None
