"""Fetch (key 1), versions 4-18.

v4 isolation level. v5 log start offset. v7 sessions (KIP-227). v9 leader epoch checks. v11 rack, preferred replica. v12
flexible, last fetched epoch. v13 topic ids. v15 replica state. v16 node endpoints. v17 replica directory id.
v18 a follower's high watermark (KIP-1166).

A consumer reads up to the high watermark. A follower reads up to the log end, and its offsets say what it has.
"""

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID

from stratalog.broker.coordination.cluster_view import ClusterView
from stratalog.broker.coordination.led_elsewhere import LedElsewhere
from stratalog.broker.network.authorizer import Operation, Resource
from stratalog.broker.network.client_memory import ClientMemory
from stratalog.broker.network.dispatch import Call
from stratalog.broker.network.large import LargeRequests
from stratalog.broker.network.session import Principal
from stratalog.broker.partitions.hosting import Hosting
from stratalog.broker.partitions.partition import EMPTY, HostedPartition
from stratalog.broker.partitions.purgatory import FetchWait, Purgatory, Shared, Watched
from stratalog.broker.replication.leading import Follower, Leading
from stratalog.broker.tier.reads import Reads
from stratalog.errors import ErrorCode, Rejected
from stratalog.log.reading import Slices
from stratalog.ports import Buffer, Clock
from stratalog.replication.fetch_sessions import NO_SESSION, Fetch, FetchSessions, PartitionKey
from stratalog.replication.following import diverging_epoch
from stratalog.wire.fetch import EncodedResponse, EncodedTopics, encode_topics
from stratalog.wire.ids import TopicIdPartition, TopicPartition
from stratalog.wire.messages.fetch import (
    NO_EPOCH_END_OFFSET,
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    PartitionData,
)

_Read = Slices | Rejected | EpochEndOffset
"""A partition's records, its error, or the point where the fetching replica's log diverges."""
_Filled = tuple[HostedPartition, int, int]
"""A partition that had records for a fetch: their bytes and their number."""
_READ_COMMITTED: Final = 1
_TOPIC_IDS_FROM: Final = 13
_REPLICA_STATE_FROM: Final = 15
_SHARED_PARTITIONS_MAX: Final = 16
"""A fetch of more partitions hardly ever has the same offsets as another one."""
_AT_ONCE: Final = 200
"""Partitions per slice."""


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

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


def handle(call: Call[FetchRequest, Needs]) -> EncodedResponse | Awaitable[EncodedResponse]:
    """Answer at once if enough is in memory, else wait for `min_bytes` or `max_wait_ms`."""
    request, needs = call.body, call.needs
    by_id = call.version >= _TOPIC_IDS_FROM
    try:
        fetch = needs.fetch_sessions.begin(
            request.session_id,
            request.session_epoch,
            _wanted(request, by_id=by_id),
            _forgotten(request, by_id=by_id),
            by_id=by_id,
            now_ms=needs.clock.steady_ms(),
        )
    except Rejected as error:
        nothing = encode_topics((), call.version)
        return EncodedResponse(error.code, NO_SESSION, nothing)
    found = _Collection(call, fetch)
    if len(fetch.requested) > _AT_ONCE:
        return found.in_slices()
    found.gather()
    if found.pending:
        return found.finish(found.marks())
    if found.enough:
        return found.response(found.found())
    return found.wait()


def _wanted(
    request: FetchRequest, *, by_id: bool
) -> tuple[tuple[PartitionKey, FetchPartition], ...]:
    """Return each partition that the request names, once, with its last entry in the request."""
    wanted: dict[PartitionKey, FetchPartition] = {}
    for topic in request.topics:
        topic_id, name = topic.topic_id, topic.topic
        for one in topic.partitions:
            index = one.partition
            # Written inline: a function call for each partition costs as much as the key itself.
            key = TopicIdPartition(topic_id, index) if by_id else TopicPartition(name, index)
            wanted[key] = one
    return tuple(wanted.items())


def _forgotten(request: FetchRequest, *, by_id: bool) -> Iterator[PartitionKey]:
    """Yield the partitions that leave the session. The session limits their number."""
    for topic in request.forgotten_topics_data:
        topic_id, name = topic.topic_id, topic.topic
        for index in topic.partitions:
            yield TopicIdPartition(topic_id, index) if by_id else TopicPartition(name, index)


class _Found(NamedTuple):
    """The result of one fetch: each partition's answer, the partitions that had records, and the encoded topics."""

    partitions: list[PartitionData]
    filled: list[_Filled]
    topics: EncodedTopics


class _Collection:
    """The records that one fetch gathers, in the order of the requested partitions, within its byte limits."""

    __slots__ = (
        "_brought",
        "_call",
        "_elsewhere",
        "_failed",
        "_fetch",
        "_follower",
        "_hosted",
        "_max_bytes",
        "_min_bytes",
        "_promised",
        "_read_committed",
        "_reading",
        "_size",
        "pending",
    )

    def __init__(self, call: Call[FetchRequest, Needs], fetch: Fetch[FetchPartition]) -> None:
        self._call = call
        self._fetch = fetch
        request = call.body
        self._follower = _follower(call)
        self._read_committed = request.isolation_level == _READ_COMMITTED
        allowed = call.needs.client_memory.fetch_bytes(call.needs.fetch_bytes_max)
        self._max_bytes = max(min(request.max_bytes, allowed), 0)
        self._min_bytes = min(request.min_bytes, self._max_bytes)
        self._elsewhere: LedElsewhere | None = None
        self._promised = 0  # bytes that pending reads may return
        self.pending: list[tuple[int, int, asyncio.Task[_Read]]] = []

    @property
    def enough(self) -> bool:
        """Whether to answer now: enough bytes, an error, a diverging epoch, or a client that does not wait."""
        return (
            self._size >= self._min_bytes
            or self._failed
            or not self._hosted
            or self._call.body.max_wait_ms <= 0
        )

    def gather(self) -> None:
        """Read what is in memory; reads that must wait (a cold page, the bucket) are left in `pending`."""
        self._begin()
        for (topic, index), partition in self._fetch.requested:
            self._look(topic, index, partition)

    async def _gather_in_slices(self) -> list[tuple[int, int]]:
        """Gather as `gather` does; return each partition's mark at the time of its read."""
        self._begin()
        marks = []
        async for (topic, index), partition in self._call.pace.each(self._fetch.requested):
            hosted = self._look(topic, index, partition)
            if hosted is not None:
                marks.append(self._mark(hosted))
        return marks

    def _begin(self) -> None:
        self._size = 0
        self._failed = False
        self._hosted: list[HostedPartition | None] = []
        self._brought: list[_Read] = []

    def _look(
        self, topic: UUID | str, index: int, partition: FetchPartition
    ) -> HostedPartition | None:
        hosted = None
        brought: _Read | Awaitable[Slices] | None = None
        try:
            if self._call.authorizer is not None:
                self._authorize(topic)
            hosted = self._find(topic, index)
            hosted.replica.check_leader(partition.current_leader_epoch)
            if partition.last_fetched_epoch >= 0:
                epoch, offset = partition.last_fetched_epoch, partition.fetch_offset
                brought = diverging_epoch(hosted.log, epoch, offset)
            if brought is None:
                if self._follower is not None:
                    brought = self._read_as_follower(hosted, partition, self._follower)
                else:
                    brought = self._read(hosted, partition, hosted.high_watermark)
        except Rejected as error:
            self._failed = True
            # The traceback would keep the error and the whole request alive until the garbage collector runs.
            brought = error.with_traceback(None)
        if isinstance(brought, Slices):
            if brought is not EMPTY:
                self._size += brought.size
        elif isinstance(brought, EpochEndOffset):
            self._failed = True
        elif not isinstance(brought, Rejected):
            # All reads start at once: each of them may wait for a different drive, or for the bucket.
            room = self._room(partition)
            self._promised += room
            self.pending.append((len(self._brought), room, asyncio.create_task(_read(brought))))
            brought = EMPTY
        self._hosted.append(hosted)
        self._brought.append(brought)
        return hosted

    def marks(self) -> list[tuple[int, int]]:
        """Return marks that change with every event that wakes a waiting fetch."""
        return [self._mark(hosted) for hosted in self._hosted if hosted is not None]

    def _mark(self, hosted: HostedPartition) -> tuple[int, int]:
        end = hosted.high_watermark if self._follower is None else hosted.log.log_end_offset
        return end, hosted.wakes

    def _watched(self) -> Sequence[Watched]:
        hosted = [one for one in self._hosted if one is not None]
        return hosted if self._follower is None else [one.waiting_followers() for one in hosted]

    async def in_slices(self) -> EncodedResponse:
        """Answer as `handle` does, for so many partitions that other connections must get turns meanwhile."""
        marks = await self._gather_in_slices()
        await self._read_pending()
        if self.enough:
            return self.response(await self._found_in_slices())
        return await self._when_more(marks)

    async def finish(self, marks: list[tuple[int, int]]) -> EncodedResponse:
        """Answer after the pending reads; if they bring too little, wait for records later than `marks`."""
        await self._read_pending()
        if self.enough:
            return self.response(self.found())
        return await self._when_more(marks)

    async def _when_more(self, marks: list[tuple[int, int]]) -> EncodedResponse:
        wait = self.wait()
        if marks != self.marks():
            wait.wake()
        answer: EncodedResponse = await wait
        return answer

    def wait(self) -> FetchWait:
        """Return the answer as a future: done once the missing bytes have come or `max_wait_ms` is over."""
        purgatory = self._call.needs.purgatory
        if self._follower is not None:
            self._follower.is_noted = True
        missing = self._min_bytes - self._size
        wait = FetchWait(purgatory, missing, self._watched(), self._look_again)
        purgatory.hold(wait, self._call.body.max_wait_ms)
        return wait

    def _look_again(self, wait: FetchWait, shared: Shared) -> None:
        """Answer with the records that the partitions have now."""
        requested = self._fetch.requested
        if len(requested) > _AT_ONCE:
            work = self._look_again_in_slices()
            self._reading = asyncio.create_task(self._answer_later(wait, work))
            return
        kind = self._read_committed, self._follower is None, self._call.version, self._reader()
        key = (requested, self._max_bytes, kind)
        is_shared = len(requested) <= _SHARED_PARTITIONS_MAX
        found: _Found | None = shared.get(key) if is_shared else None
        if found is None:
            self.gather()
            if self.pending:
                work = self._read_and_answer()
                self._reading = asyncio.create_task(self._answer_later(wait, work))
                return
            found = self.found()
            if is_shared:
                shared[key] = found
        wait.set_result(self.response(found))

    def _reader(self) -> tuple[Principal, str] | None:
        """Return the principal whose rights the answer depends on; None where each client may read everything."""
        call = self._call
        if call.authorizer is None:
            return None
        return call.session.principal, call.session.host

    async def _read_and_answer(self) -> EncodedResponse:
        await self._read_pending()
        return self.response(self.found())

    async def _look_again_in_slices(self) -> EncodedResponse:
        await self._gather_in_slices()
        await self._read_pending()
        return self.response(await self._found_in_slices())

    async def _answer_later(self, wait: FetchWait, work: Awaitable[EncodedResponse]) -> None:
        try:
            answer = await work
        except BaseException as error:  # noqa: BLE001 - carried to the connection
            if not wait.done():
                wait.set_exception(error)
        else:
            if not wait.done():
                wait.set_result(answer)

    def found(self) -> _Found:
        """Return everything gathered so far."""
        filled: list[_Filled] = []
        gathered = zip(self._fetch.requested, self._hosted, self._brought, strict=True)
        partitions = [self._partition(*one, filled) for one in gathered]
        return _Found(partitions, filled, self._encoded(partitions, range(len(partitions))))

    async def _found_in_slices(self) -> _Found:
        """Return what `found` returns; the thread for large requests encodes it."""
        filled: list[_Filled] = []
        gathered = zip(self._fetch.requested, self._hosted, self._brought, strict=True)
        partitions = [self._partition(*one, filled) async for one in self._call.pace.each(gathered)]
        encode = partial(self._encoded, partitions, range(len(partitions)))
        return _Found(partitions, filled, await self._call.needs.large.run(encode))

    def _partition(
        self,
        requested: tuple[PartitionKey, FetchPartition],
        hosted: HostedPartition | None,
        brought: _Read,
        filled: list[_Filled],
    ) -> PartitionData:
        """Return the answer for one partition; where records were found, note it in `filled`."""
        if isinstance(brought, Rejected):
            return self._refused(requested[0], brought)
        assert hosted is not None, "a partition that was read is hosted"
        if isinstance(brought, EpochEndOffset):
            return self._answer(hosted, (), brought)
        if brought.buffers:
            filled.append((hosted, brought.size, brought.next_offset - brought.first_offset))
        return self._answer(hosted, brought.buffers, aborted=brought.aborted or ())

    def response(self, found: _Found) -> EncodedResponse:
        """Return the answer: everything found, or in an incremental session only the partitions that changed."""
        if self._follower is not None:
            for hosted, size, _ in found.filled:
                self._follower.sent(hosted, size)
        for hosted, size, records in found.filled if self._follower is None else ():
            hosted.metrics.bytes_out += size
            hosted.metrics.messages_out += records
        now_ms = self._call.needs.clock.steady_ms()
        session_id, places, error = self._fetch.answer(found.partitions, now_ms)
        topics = found.topics
        if len(places) < len(found.partitions):
            topics = self._encoded(found.partitions, places)
        return EncodedResponse(error, session_id, topics)

    def _encoded(self, found: Sequence[PartitionData], places: Sequence[int]) -> EncodedTopics:
        by_topic: dict[UUID | str, list[PartitionData]] = {}
        for place in places:
            (topic, _), _ = self._fetch.requested[place]
            by_topic.setdefault(topic, []).append(found[place])
        topics = [
            FetchableTopicResponse(topic_id=topic, partitions=partitions)
            if isinstance(topic, UUID)
            else FetchableTopicResponse(topic=topic, partitions=partitions)
            for topic, partitions in by_topic.items()
        ]
        leaders = () if self._elsewhere is None else self._elsewhere.addresses()
        return encode_topics(topics, self._call.version, leaders)

    async def _read_pending(self) -> None:
        pending, self.pending = self.pending, []
        for place, room, reading in pending:
            self._brought[place] = brought = await reading
            self._promised -= room
            if isinstance(brought, Slices):
                self._size += brought.size
            else:
                self._failed = True

    def _authorize(self, topic: UUID | str) -> None:
        """Raise Rejected unless the client may read the topic. A topic id without a topic is refused as unknown."""
        call = self._call
        if self._follower is not None:
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
        hosting = self._call.needs.hosting
        if isinstance(topic, UUID):
            return hosting.get_by_id(topic, index)
        return hosting.get(topic, index)

    def _read_as_follower(
        self, hosted: HostedPartition, partition: FetchPartition, follower: Follower
    ) -> Slices | Awaitable[Slices]:
        self._failed |= follower.fetches(hosted, partition)
        return self._read(hosted, partition, follower.end_of(hosted))

    def _read(
        self, hosted: HostedPartition, partition: FetchPartition, end: int
    ) -> Slices | Awaitable[Slices]:
        offset = partition.fetch_offset
        if self._read_committed:
            end = hosted.last_stable_offset
        if end <= offset <= hosted.log.log_end_offset and offset >= hosted.log.log_start_offset:
            return EMPTY
        first = self._size + self._promised == 0
        room, reads = self._room(partition), self._call.needs.reads
        if room <= 0 and not first:
            return EMPTY
        read = reads.read_committed if self._read_committed else reads.read
        return read(hosted, offset, room, end, minimum_one_batch=first)

    def _room(self, partition: FetchPartition) -> int:
        """Return how many bytes this partition may still add to the answer."""
        left = self._max_bytes - self._size - self._promised
        return max(min(partition.partition_max_bytes, left), 0)

    def _answer(
        self,
        hosted: HostedPartition,
        records: Sequence[Buffer],
        diverging: EpochEndOffset = NO_EPOCH_END_OFFSET,
        aborted: Sequence[tuple[int, int]] = (),
    ) -> PartitionData:
        return PartitionData(
            partition_index=hosted.name.partition,
            error_code=0,
            high_watermark=hosted.high_watermark,
            last_stable_offset=hosted.last_stable_offset,
            log_start_offset=hosted.log.log_start_offset,
            diverging_epoch=diverging,
            aborted_transactions=_listed(aborted) if self._read_committed else None,
            records=records,
        )

    def _refused(self, key: PartitionKey, error: Rejected) -> PartitionData:
        if self._elsewhere is None:
            call = self._call
            self._elsewhere = LedElsewhere(
                call.needs.cluster, call.session.listener.name, call.version
            )
        return PartitionData(
            partition_index=key.partition,
            error_code=error.code,
            high_watermark=-1,
            last_stable_offset=-1,
            log_start_offset=-1,
            current_leader=self._elsewhere.leader_of(error.code, *key),
            aborted_transactions=[] if self._read_committed else None,
            records=(),
        )


def _listed(aborted: Sequence[tuple[int, int]]) -> list[AbortedTransaction]:
    return [AbortedTransaction(producer_id=one, first_offset=at) for one, at in aborted]


def _follower(call: Call[FetchRequest, Needs]) -> Follower | None:
    """Return the broker that fetches; None for a consumer."""
    request = call.body
    if call.version < _REPLICA_STATE_FROM:
        node_id, broker_epoch = request.replica_id, -1
    else:
        node_id, broker_epoch = (
            request.replica_state.replica_id,
            request.replica_state.replica_epoch,
        )
    return None if node_id < 0 else call.needs.leading.follower(node_id, broker_epoch)


async def _read(slices: Awaitable[Slices]) -> _Read:
    try:
        return await slices
    except Rejected as error:
        return error.with_traceback(None)
