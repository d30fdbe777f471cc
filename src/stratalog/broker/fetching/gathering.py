"""Gather the records of one fetch: find each partition, check the fetch against it, and read.

In: a request, and the partitions of its session. Out: the records, the error or the diverging epoch of each partition,
in the order of the request. A read that takes time is a task. It never waits for more records, and builds no answer.

Kafka: `ReplicaManager.readFromLog`.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from stratalog.broker.coordination.cluster_view import ClusterView
from stratalog.broker.network.authorizer import Operation, Resource
from stratalog.broker.network.client_memory import ClientMemory
from stratalog.broker.network.dispatch import Call
from stratalog.broker.network.large import LargeRequests
from stratalog.broker.network.throttling import Throttling
from stratalog.broker.partitions.hosting import Hosting
from stratalog.broker.partitions.partition import EMPTY, HostedPartition
from stratalog.broker.partitions.purgatory import Purgatory, Watched
from stratalog.broker.replication.leading import Follower, Leading
from stratalog.broker.tier.reads import Reads
from stratalog.errors import ErrorCode, Rejected
from stratalog.log.reading import Slices
from stratalog.ports import Clock
from stratalog.replication.fetch_sessions import Fetch, FetchSessions, PartitionKey
from stratalog.replication.following import diverging_epoch
from stratalog.wire.messages.fetch import (
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    PartitionData,
)

__all__ = ["Brought", "Gathering", "Needs", "Preferred"]


class Preferred(NamedTuple):
    """The follower that a consumer had better read from (KIP-392)."""

    node_id: int


Brought = Slices | Rejected | EpochEndOffset | Preferred
"""A partition's records, its error, the point where the fetching replica's log diverges, or a nearer replica."""
_READ_COMMITTED: Final = 1
_FOLLOWERS_FROM: Final = 11
"""The first version of a consumer's Fetch that followers serve."""
_REPLICA_STATE_FROM: Final = 15


class Needs(NamedTuple):
    """The parts of the broker that a fetch works with."""

    client_memory: ClientMemory
    clock: Clock
    cluster: ClusterView
    fetch_bytes_max: int
    fetch_sessions: FetchSessions[FetchPartition]
    hosting: Hosting
    large: LargeRequests
    leading: Leading
    purgatory: Purgatory
    reads: Reads
    throttling: Throttling


class Gathering:
    """The records that one fetch gathers, in the order of the requested partitions, within its byte limits."""

    __slots__ = (
        "_any_replica",
        "_promised",
        "brought",
        "call",
        "changes",
        "failed",
        "fetch",
        "follower",
        "hosted",
        "max_bytes",
        "min_bytes",
        "pending",
        "rack",
        "read_committed",
        "size",
    )

    def __init__(self, call: Call[FetchRequest, Needs], fetch: Fetch[FetchPartition]) -> None:
        self.call = call
        self.fetch = fetch
        self.changes = fetch.changes
        request = call.body
        self.follower = _follower(call)
        """The broker that fetches; None for a consumer."""
        if self.changes is not None and self.follower is not None:
            self.follower.continues(self.changes)
        self._any_replica = self.follower is None and call.version >= _FOLLOWERS_FROM
        selects = self._any_replica and call.needs.leading.selects_by_rack
        self.rack = request.rack_id if selects else ""
        self.read_committed = request.isolation_level == _READ_COMMITTED
        allowed = call.needs.client_memory.fetch_bytes(call.needs.fetch_bytes_max)
        throttling = call.needs.throttling
        if throttling.is_on and self.follower is None:
            allowed = min(allowed, int(throttling.fetch_bytes(call.session)))
        self.max_bytes = max(min(request.max_bytes, allowed), 0)
        self.min_bytes = min(request.min_bytes, self.max_bytes)
        self._promised = 0  # bytes that pending reads may return
        self.pending: list[tuple[int, int, asyncio.Task[Brought]]] = []
        """Reads that take time: the place of each, the bytes that it may return, its task."""

    @property
    def requested(self) -> Sequence[tuple[PartitionKey, FetchPartition]]:
        """The partitions that this fetch looks at: in a follower's session, those that changed."""
        return self.fetch.requested

    @property
    def enough(self) -> bool:
        """Whether to answer now: enough bytes, an error, a diverging epoch, a nearer replica, or a client that does not
        wait.
        """
        return (
            self.size >= self.min_bytes
            or self.failed
            or (not self.hosted and self.changes is None)
            or self.call.body.max_wait_ms <= 0
        )

    def gather(self) -> None:
        """Read what is in memory; reads that must wait (a cold page, the bucket) are left in `pending`."""
        self._begin()
        for (topic, index), partition in self.requested:
            self._look(topic, index, partition)

    async def gather_in_slices(self) -> list[tuple[int, int]]:
        """Gather as `gather` does; return each partition's mark at the time of its read."""
        self._begin()
        marks = self.marks() if self.changes is not None else []
        async for (topic, index), partition in self.call.pace.each(self.requested):
            hosted = self._look(topic, index, partition)
            if hosted is not None and self.changes is None:
                marks.append(self._mark(hosted))
        return marks

    async def read_pending(self) -> None:
        """Wait for the pending reads, which all have begun, and put their results in place."""
        pending, self.pending = self.pending, []
        try:
            for place, room, reading in pending:
                self.brought[place] = brought = await reading
                self._promised -= room
                if isinstance(brought, Slices):
                    self.size += brought.size
                else:
                    self.failed = True
        finally:
            for _, _, reading in pending:
                reading.cancel()  # the client is gone: no read goes on without a use

    def marks(self) -> list[tuple[int, int]]:
        """Return marks that change with every event that wakes a waiting fetch."""
        if self.changes is not None:
            return [(self.changes.events, 0)]
        return [self._mark(hosted) for hosted in self.hosted if hosted is not None]

    def _mark(self, hosted: HostedPartition) -> tuple[int, int]:
        end = hosted.high_watermark if self.follower is None else hosted.log.log_end_offset
        return end, hosted.wakes

    def watched(self) -> Sequence[Watched]:
        """Return what wakes this fetch: a consumer's waits for the high watermark, a follower's for appends."""
        if self.changes is not None:
            return [self.changes]
        hosted = [one for one in self.hosted if one is not None]
        return hosted if self.follower is None else [one.waiting_followers() for one in hosted]

    def may_pass_over(
        self, key: PartitionKey, wanted: FetchPartition, found: PartitionData
    ) -> bool:
        """Return whether the follower's next fetch may pass over the partition, unless it changes or is named.

        The follower has everything then, and is in the ISR.
        """
        if found.error_code or found.records or found.diverging_epoch.epoch >= 0:
            return False
        try:
            hosted = self._find(*key)
        except Rejected:
            return False
        is_in_sync = self.follower is not None and self.follower.node_id in hosted.replica.isr
        return is_in_sync and wanted.fetch_offset == hosted.log.log_end_offset

    def _begin(self) -> None:
        self.fetch.look()
        self.size = 0
        self.failed = False
        self.hosted: list[HostedPartition | None] = []
        self.brought: list[Brought] = []

    def _look(
        self, topic: UUID | str, index: int, partition: FetchPartition
    ) -> HostedPartition | None:
        hosted = None
        brought: Brought | Awaitable[Slices] | None = None
        try:
            if self.call.authorizer is not None:
                self._authorize(topic)
            hosted = self._find(topic, index)
            if self._any_replica:
                hosted.check_readable(partition.current_leader_epoch)
            else:
                hosted.replica.check_leader(partition.current_leader_epoch)
            if partition.last_fetched_epoch >= 0:
                epoch, offset = partition.last_fetched_epoch, partition.fetch_offset
                brought = diverging_epoch(hosted.log, epoch, offset)
            if brought is None:
                if self.follower is not None:
                    brought = self._read_as_follower(hosted, partition, self.follower)
                else:
                    brought = self._read(hosted, partition, hosted.high_watermark)
        except Rejected as error:
            self.failed = True
            # The traceback would keep the error and the whole request alive until the garbage collector runs.
            brought = error.with_traceback(None)
        if isinstance(brought, Slices):
            if brought is not EMPTY:
                self.size += brought.size
        elif isinstance(brought, EpochEndOffset | Preferred):
            self.failed = True
        elif not isinstance(brought, Rejected):
            # All reads start at once: each of them may wait for a different drive, or for the bucket.
            room = self._room(partition)
            self._promised += room
            self.pending.append((len(self.brought), room, asyncio.create_task(_read(brought))))
            brought = EMPTY
        self.hosted.append(hosted)
        self.brought.append(brought)
        return hosted

    def _authorize(self, topic: UUID | str) -> None:
        """Raise Rejected unless the client may read the topic. A topic id without a topic is refused as unknown."""
        call = self.call
        if self.follower is not None:
            if not call.allows_cluster(Operation.CLUSTER_ACTION):
                code = ErrorCode.topic_authorization_failed
                raise Rejected(code, "CLUSTER_ACTION CLUSTER is not allowed")
            return
        if isinstance(topic, UUID):
            found = call.needs.cluster.image.topics_by_id.get(topic)
            if found is None:
                return
            topic = found.name
        call.authorize(Operation.READ, Resource.TOPIC, topic)

    def _find(self, topic: UUID | str, index: int) -> HostedPartition:
        hosting = self.call.needs.hosting
        if isinstance(topic, UUID):
            return hosting.get_by_id(topic, index)
        return hosting.get(topic, index)

    def _read_as_follower(
        self, hosted: HostedPartition, partition: FetchPartition, follower: Follower
    ) -> Slices | Preferred | Awaitable[Slices]:
        if self.changes is not None:
            hosted.waiting_followers().track(self.changes)
        follower.fetches(hosted, partition)
        return self._read(hosted, partition, follower.end_of(hosted))

    def _read(
        self, hosted: HostedPartition, partition: FetchPartition, end: int
    ) -> Slices | Preferred | Awaitable[Slices]:
        offset = partition.fetch_offset
        if self.rack and hosted.replica.leads:
            nearest = self.call.needs.leading.nearest(hosted, self.rack, offset)
            if nearest is not None:
                return Preferred(nearest)
        if self.read_committed:
            end = hosted.last_stable_offset
        if end <= offset <= hosted.log.log_end_offset and offset >= hosted.log.log_start_offset:
            return EMPTY
        first = self.size + self._promised == 0
        room, reads = self._room(partition), self.call.needs.reads
        if room <= 0 and not first:
            return EMPTY
        read = reads.read_committed if self.read_committed else reads.read
        # Decision 0040: a follower that gets a file's bytes uncopied costs more.
        from_file = self.call.sends_files and self.follower is None
        return read(hosted, offset, room, end, minimum_one_batch=first, from_file=from_file)

    def _room(self, partition: FetchPartition) -> int:
        """Return how many bytes this partition may still add to the answer."""
        left = self.max_bytes - self.size - self._promised
        return max(min(partition.partition_max_bytes, left), 0)


def is_follower(call: Call[FetchRequest, Needs]) -> bool:
    """Return whether a broker fetches, and no consumer."""
    return _replica(call)[0] >= 0


def _replica(call: Call[FetchRequest, Needs]) -> tuple[int, int]:
    """Return the fetching broker's id, -1 for a consumer, and its epoch, -1 where the version has none."""
    request = call.body
    if call.version < _REPLICA_STATE_FROM:
        return request.replica_id, -1
    return request.replica_state.replica_id, request.replica_state.replica_epoch


def _follower(call: Call[FetchRequest, Needs]) -> Follower | None:
    """Return the broker that fetches; None for a consumer."""
    node_id, broker_epoch = _replica(call)
    return None if node_id < 0 else call.needs.leading.follower(node_id, broker_epoch)


async def _read(slices: Awaitable[Slices]) -> Brought:
    try:
        return await slices
    except Rejected as error:
        return error.with_traceback(None)
