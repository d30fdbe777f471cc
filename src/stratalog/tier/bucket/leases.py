"""Read leases: a query records its pinned manifest versions in the bucket, and their objects stay.

In: a store; pinned versions; steady time. Out: one small object per query (`<cluster>/cluster/leases/<id>`), put at
planning, renewed while the query runs, removed at its end; and, for the removal of objects, the oldest pinned
version.

No clock is compared with another machine's. A remover counts a lease as live until the lease has not changed for its
duration (LEASE_MS, or the lease's own value) by the remover's steady clock. So an abandoned lease ends that long
after it was first seen unchanged, and is removed. A list that is out of date by less than `remote.delete.grace.ms`
does no harm, because objects are given up only after the lease that protects them was put.

A reader without the right to write has no lease, and relies on the grace period alone.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from msgspec import UNSET, Struct, UnsetType

from stratalog.errors import Corrupt
from stratalog.ports import ObjectInfo, ObjectStore
from stratalog.tier.bucket.identity import decode, encode
from stratalog.tier.formats.paths import lease_path, leases_prefix

__all__ = [
    "LEASE_MS",
    "LEASE_MS_MAX",
    "Lease",
    "Leases",
    "list_leases",
    "put_lease",
    "release_lease",
]

LEASE_MS: Final = 60 * 60 * 1000
"""Duration of a lease without renewal, unless the lease has its own. Readers renew it after a third of that time."""
LEASE_MS_MAX: Final = 24 * 60 * 60 * 1000
"""The longest duration of a lease that is not renewed, whatever its object says."""


class Lease(Struct, frozen=True, kw_only=True):
    """The lease of one query: the pinned manifest version by topic id and partition (as text)."""

    format: int = 1
    cluster_id: str
    id: str
    holder: str
    versions: dict[str, dict[str, int]]
    lasts_ms: int | UnsetType = UNSET

    @property
    def lives_ms(self) -> int:
        """How long the lease is live after its put."""
        return LEASE_MS if self.lasts_ms is UNSET else min(self.lasts_ms, LEASE_MS_MAX)

    @property
    def path(self) -> str:
        """The lease's path."""
        return lease_path(self.cluster_id, self.id)


def put_lease(store: ObjectStore, lease: Lease) -> None:
    """Put or renew the lease. Raises the store's error where this process may not write."""
    store.put(lease.path, [encode(lease)])


def release_lease(store: ObjectStore, lease: Lease) -> None:
    """Remove the lease: the query has ended. Raises Unavailable."""
    store.delete([lease.path])


def list_leases(store: ObjectStore, cluster_id: str) -> Iterator[tuple[ObjectInfo, Lease | None]]:
    """Yield each lease's object, and the lease: None where its bytes are damaged. Raises Unavailable."""
    for info in store.list(leases_prefix(cluster_id)):
        with suppress(FileNotFoundError):  # released since the list
            yield info, _read(store, info.path)


def _read(store: ObjectStore, path: str) -> Lease | None:
    """Return the lease in an object, or None where its bytes are damaged. Raises FileNotFoundError, Unavailable."""
    try:
        return decode(store.get(path), Lease, path)
    except Corrupt:
        return None


class Leases:
    """The leases of one cluster, for the removal of objects. For any thread; raises Unavailable."""

    def __init__(self, store: ObjectStore, cluster_id: str) -> None:
        self._store = store
        self._cluster_id = cluster_id
        self._seen: dict[tuple[str, int], tuple[Lease | None, int]] = {}

    def pinned(self, topic_id: str, partition: int, steady_ms: int) -> int | None:
        """Return the oldest version of a partition's manifest that a live lease pins; None where none does."""
        number = str(partition)
        versions = [
            0 if lease is None else lease.versions[topic_id][number]
            for lease in self._live(steady_ms)
            if lease is None or number in lease.versions.get(topic_id, {})
        ]
        return min(versions, default=None)

    def holds_topic(self, topic_id: str, steady_ms: int) -> bool:
        """Return whether a live lease pins an object of a topic."""
        return any(lease is None or topic_id in lease.versions for lease in self._live(steady_ms))

    def _live(self, steady_ms: int) -> list[Lease | None]:
        """Return the live leases, with None for an unreadable one, which may pin any object; remove the others."""
        seen = {}
        ended = []
        for info in self._store.list(leases_prefix(self._cluster_id)):
            key = info.path, info.modified_ms
            lease, since = self._seen.get(key) or (self._read(info.path), steady_ms)
            if steady_ms - since < (LEASE_MS if lease is None else lease.lives_ms):
                seen[key] = lease, since
            else:
                ended.append(info.path)
        self._seen = seen
        if ended:
            self._store.delete(ended)
        return [lease for lease, _ in seen.values()]

    def _read(self, path: str) -> Lease | None:
        try:
            return _read(self._store, path)
        except FileNotFoundError:  # released since the list
            return Lease(cluster_id=self._cluster_id, id="", holder="", versions={})
