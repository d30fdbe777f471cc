"""A query's read lease: put when it is planned, renewed by its tasks, removed at its end where somebody sees that.

In: planned tasks and the manifests that they come from. Out: the tasks with their lease; batches, while it is kept. A
query that may not write to the bucket reads without one, and is told so once.

A streaming query's goes when it stops. Spark tells nobody when a batch query has ended: its lease ends by itself
(`tier/leases.py`). Whether a task renews is told by what its own machine's clock says of the plan's time, so the clocks
of a query's machines must agree to within two thirds of LEASE_MS.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from logging import getLogger
from typing import Final
from uuid import UUID

import pyarrow as pa

from stratalog.adapters.system import SystemClock, SystemEntropy
from stratalog.errors import Unavailable
from stratalog.ports import Clock, ObjectStore
from stratalog.table.plan import BucketTask, PlannedLease, Task
from stratalog.tier.leases import LEASE_MS, Lease, put_lease, release_lease
from stratalog.tier.manifest import Manifest
from stratalog.wire.ids import topic_id_text

RENEW_MS = LEASE_MS // 3


class Leasing:
    """The lease of one query; a streaming query keeps it from batch to batch."""

    def __init__(
        self, store: ObjectStore, cluster_id: str, holder: str, clock: Clock | None = None
    ) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        lease_id = topic_id_text(SystemEntropy().uuid())
        self._empty = Lease(cluster_id=cluster_id, id=lease_id, holder=holder, versions={})
        self._put: PlannedLease | None = None

    def leased(
        self, tasks: Sequence[Task], manifests: Mapping[tuple[UUID, int], Manifest]
    ) -> list[Task]:
        """The tasks, and a lease that holds what they read of the bucket; it replaces that of the batch before."""
        touched = {
            (t.wanted.topic_id, t.wanted.partition) for t in tasks if isinstance(t, BucketTask)
        }
        if not touched:
            return list(tasks)
        versions: dict[str, dict[str, int]] = {}
        for topic_id, partition in sorted(touched):
            version = manifests[topic_id, partition].version
            versions.setdefault(topic_id_text(topic_id), {})[str(partition)] = version
        if not self._holds(versions):
            self._put = self._planned(versions)
        lease = self._put
        return [replace(t, lease=lease) if isinstance(t, BucketTask) else t for t in tasks]

    def release(self) -> None:
        """The query has ended."""
        if self._put is not None:
            _release(self._store, self._put.lease)
            self._put = None

    def _holds(self, versions: Mapping[str, Mapping[str, int]]) -> bool:
        """Whether the lease that is there is young, and pins these or older ones."""
        put = self._put
        return (
            put is not None
            and 0 <= self._clock.now_ms() - put.put_ms < RENEW_MS
            and all(
                put.lease.versions.get(topic, {}).get(partition, version + 1) <= version
                for topic, partitions in versions.items()
                for partition, version in partitions.items()
            )
        )

    def _planned(self, versions: dict[str, dict[str, int]]) -> PlannedLease | None:
        planned = PlannedLease(
            Lease(
                cluster_id=self._empty.cluster_id,
                id=self._empty.id,
                holder=self._empty.holder,
                versions=versions,
            ),
            self._clock.now_ms(),
        )
        try:
            put_lease(self._store, planned.lease)
        except (Unavailable, OSError) as error:
            _tell(self._store.url, str(error))
            return None
        return planned


_told: Final[set[str]] = set()


def _tell(url: str, reason: str) -> None:
    """Once for each bucket in a process."""
    if url not in _told:
        _told.add(url)
        getLogger("stratalog.spark").warning(
            "no read lease in %s: a query that runs longer than remote.delete.grace.ms may find its segments removed "
            "(%s)",
            url,
            reason,
        )


def kept(
    batches: Iterator[pa.RecordBatch],
    planned: PlannedLease | None,
    store: ObjectStore,
    clock: Clock | None = None,
) -> Iterator[pa.RecordBatch]:
    """The batches; the lease is renewed while they are read, each third of its time."""
    if planned is None:
        yield from batches
        return
    clock = clock or SystemClock()
    age = max(0, clock.now_ms() - planned.put_ms)
    due = clock.steady_ms() + max(0, RENEW_MS - age)
    while True:
        if clock.steady_ms() >= due:
            _renew(store, planned)
            due = clock.steady_ms() + RENEW_MS
        batch = next(batches, None)
        if batch is None:
            return
        yield batch


def _renew(store: ObjectStore, planned: PlannedLease) -> None:
    try:
        put_lease(store, planned.lease)
    except (Unavailable, OSError) as error:
        getLogger("stratalog.spark").info("read lease not renewed: %s", error)


def released(tasks: Sequence[Task], store: ObjectStore) -> None:
    """The query has ended."""
    leases = {
        t.lease.lease.id: t.lease.lease for t in tasks if isinstance(t, BucketTask) and t.lease
    }
    for lease in leases.values():
        _release(store, lease)


def _release(store: ObjectStore, lease: Lease) -> None:
    try:
        release_lease(store, lease)
    except (Unavailable, OSError) as error:  # it ends by itself
        getLogger("stratalog.spark").info("read lease not removed: %s", error)
