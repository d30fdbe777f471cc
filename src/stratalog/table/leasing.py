"""Keep a query's read lease: put it at planning, renew it in tasks, remove it at a known end.

In: planned tasks and the manifests that they come from. Out: the tasks with their lease; batches, with renewals of the
lease in between. A query without the right to write to the bucket reads without a lease, and logs one warning.

A streaming query's lease is removed when the query stops. Spark does not report the end of a batch query, so its lease
expires (`Leases`). No code of this project runs before a query's first task, or while tasks compute for long, so a
lease lives long enough for that. A task decides by its own machine's wall clock and the time of the plan whether the
lease is due for renewal. So the clocks of a query's machines must agree to within two thirds of a lease's time.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from logging import getLogger
from platform import node
from typing import Final, TypeVar

from msgspec import UNSET
from msgspec.structs import replace as replaced

from stratalog.adapters.repeating import repeating
from stratalog.adapters.system import SystemClock, SystemEntropy
from stratalog.errors import Unavailable
from stratalog.ports import Clock, ObjectStore
from stratalog.table.plan import BucketTask, PlannedLease, Task
from stratalog.tier.bucket.leases import LEASE_MS, Lease, put_lease, release_lease
from stratalog.tier.formats.manifest import Manifest
from stratalog.wire.ids import TopicIdPartition, topic_id_text

T = TypeVar("T")


class Leasing:
    """The lease of one query. It expires `lease_ms` after its last renewal; a stream keeps its lease from batch to
    batch.

    `holder` is the query's client id; the lease also names this machine.
    """

    def __init__(
        self,
        store: ObjectStore,
        cluster_id: str,
        holder: str,
        lease_ms: int = LEASE_MS,
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        self._empty = Lease(
            cluster_id=cluster_id,
            id=topic_id_text(SystemEntropy().uuid()),
            holder=f"{holder} on {node()}",
            versions={},
            lasts_ms=UNSET if lease_ms == LEASE_MS else lease_ms,
        )
        self._put: PlannedLease | None = None

    def leased(
        self,
        tasks: Sequence[Task],
        manifests: Mapping[TopicIdPartition, Manifest],
    ) -> list[Task]:
        """Return the tasks with a lease on the objects that they read; it replaces the lease of the batch before."""
        touched = {
            TopicIdPartition(t.wanted.topic_id, t.wanted.partition)
            for t in tasks
            if isinstance(t, BucketTask)
        }
        if not touched:
            return list(tasks)
        versions: dict[str, dict[str, int]] = {}
        for key in sorted(touched):
            version = manifests[key].version
            versions.setdefault(topic_id_text(key.topic_id), {})[str(key.partition)] = version
        if not self._holds(versions):
            self._put = self._planned(versions)
        lease = self._put
        return [replace(t, lease=lease) if isinstance(t, BucketTask) else t for t in tasks]

    def release(self) -> None:
        """Remove the lease: the query has ended."""
        if self._put is not None:
            _release(self._store, self._put.lease)
            self._put = None

    def _holds(self, versions: Mapping[str, Mapping[str, int]]) -> bool:
        """Return whether the present lease is young, and pins these versions or older ones."""
        put = self._put
        return (
            put is not None
            and 0 <= self._clock.now_ms() - put.put_ms < put.lease.lives_ms // 3
            and all(
                put.lease.versions.get(topic, {}).get(partition, version + 1) <= version
                for topic, partitions in versions.items()
                for partition, version in partitions.items()
            )
        )

    def _planned(self, versions: dict[str, dict[str, int]]) -> PlannedLease | None:
        planned = PlannedLease(replaced(self._empty, versions=versions), self._clock.now_ms())
        try:
            put_lease(self._store, planned.lease)
        except (Unavailable, OSError) as error:
            _log_failure(self._store.url, str(error))
            return None
        return planned


_warned_urls: Final[set[str]] = set()


def _log_failure(url: str, reason: str) -> None:
    """Log a failure once for each bucket in a process."""
    if url not in _warned_urls:
        _warned_urls.add(url)
        getLogger("stratalog.spark").warning(
            "no read lease in %s: a query that runs longer than remote.delete.grace.ms may find its segments removed "
            "(%s)",
            url,
            reason,
        )


def kept(
    batches: Iterator[T],
    planned: PlannedLease | None,
    store: ObjectStore,
    clock: Clock | None = None,
) -> Iterator[T]:
    """Yield the batches; renew the lease meanwhile, after each third of its time.

    A thread renews it, because the consumer may compute on one batch for longer than the lease lives.
    """
    if planned is None:
        yield from batches
        return
    renew_ms = planned.lease.lives_ms // 3
    age_ms = max(0, (clock or SystemClock()).now_ms() - planned.put_ms)
    first_ms = max(0, renew_ms - age_ms)
    with repeating(partial(_renew, store, planned.lease), first_ms / 1000, renew_ms / 1000):
        yield from batches


def _renew(store: ObjectStore, lease: Lease) -> None:
    try:
        put_lease(store, lease)
    except (Unavailable, OSError) as error:
        getLogger("stratalog.spark").info("read lease not renewed: %s", error)


def released(tasks: Sequence[Task], store: ObjectStore) -> None:
    """Remove the lease: the query has ended."""
    leases = {
        t.lease.lease.id: t.lease.lease for t in tasks if isinstance(t, BucketTask) and t.lease
    }
    for lease in leases.values():
        _release(store, lease)


def _release(store: ObjectStore, lease: Lease) -> None:
    try:
        release_lease(store, lease)
    except (Unavailable, OSError) as error:  # the lease expires by itself
        getLogger("stratalog.spark").info("read lease not removed: %s", error)
