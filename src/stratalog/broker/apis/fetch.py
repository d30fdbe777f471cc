"""Fetch (key 1), versions 4-18.

v4 isolation level. v5 log start offset. v7 sessions (KIP-227). v9 leader epoch checks. v11 rack, preferred replica. v12
flexible, last fetched epoch. v13 topic ids. v15 replica state. v16 node endpoints. v17 replica directory id.
v18 a follower's high watermark (KIP-1166), which no broker asks with here.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from stratalog.broker.api import Api, Call
from stratalog.broker.partition import EMPTY, HostedPartition
from stratalog.broker.purgatory import FetchWait, Shared
from stratalog.errors import ErrorCode, Rejected
from stratalog.log.partition_log import Slices
from stratalog.ports import Buffer
from stratalog.replication.fetch_sessions import NO_SESSION, Fetch
from stratalog.wire.fetch import (
    EncodedResponse,
    EncodedTopics,
    FetchedPartition,
    FetchedTopic,
    encode_topics,
)
from stratalog.wire.fetch_request import FetchRequest, PartitionKey, RequestedPartition

_Read = Slices | Rejected
_READ_COMMITTED: Final = 1
_TOPIC_IDS_FROM: Final = 13
_RESPONSE_BYTES_MAX: Final = 8 << 20
"""Whatever a client allows: what is answered at once is read on the event loop, and held until the client took it."""
_SHARED_PARTITIONS_MAX: Final = 16
"""Who fetches more is not likely to stand where another stands in each of them."""


def handle(call: Call) -> Any:
    """Answer at once where enough is at hand, else wait for `min_bytes` or `max_wait`."""
    request: FetchRequest = call.body
    broker = call.broker
    try:
        fetch = broker.fetch_sessions.begin(
            request.session_id,
            request.session_epoch,
            request.wanted,
            request.forgotten,
            by_id=call.version >= _TOPIC_IDS_FROM,
            now_ms=broker.clock.steady_ms(),
        )
    except Rejected as error:
        nothing = encode_topics((), call.version)
        return EncodedResponse(0, error.code, NO_SESSION, nothing)
    found = _Collection(call, fetch)
    found.gather()
    if found.pending:
        return found.finish(found.marks())
    if found.enough:
        return found.response(found.found())
    return found.wait()


class _Found(NamedTuple):
    """What there was for one fetch: for each partition, what it brought of which, and all of it on the wire."""

    partitions: list[FetchedPartition]
    filled: list[tuple[HostedPartition, int, int]]
    """Partition, bytes, records."""
    topics: EncodedTopics


class _Collection:
    """What one fetch gathers, partition by partition in the order asked, within its byte limits."""

    __slots__ = (
        "_call",
        "_failed",
        "_fetch",
        "_filled",
        "_found",
        "_hosted",
        "_max_bytes",
        "_min_bytes",
        "_promised",
        "_read_committed",
        "_reading",
        "_size",
        "pending",
    )

    def __init__(self, call: Call, fetch: Fetch[RequestedPartition]) -> None:
        self._call = call
        self._fetch = fetch
        request: FetchRequest = call.body
        self._read_committed = request.isolation_level == _READ_COMMITTED
        allowed = call.broker.client_memory.fetch_bytes(_RESPONSE_BYTES_MAX)
        self._max_bytes = max(min(request.max_bytes, allowed), 0)
        self._min_bytes = min(request.min_bytes, self._max_bytes)
        self._promised = 0  # what pending reads may bring
        self.pending: list[tuple[int, int, HostedPartition, asyncio.Task[_Read]]] = []

    @property
    def enough(self) -> bool:
        """Whether the answer should leave now: bytes enough, an error to tell, or a client that does not wait."""
        return (
            self._size >= self._min_bytes
            or self._failed
            or not self._hosted
            or self._call.body.max_wait <= 0
        )

    def gather(self) -> None:
        """Find what is at hand; reads that must wait (a cold page, the bucket) are left in `pending`."""
        self._size = 0
        self._failed = False
        self._found: list[FetchedPartition] = []
        self._hosted: list[HostedPartition] = []
        self._filled: list[tuple[HostedPartition, int, int]] = []
        for place, (key, partition) in enumerate(self._fetch.asked):
            answer, room, slices = self._read(key, partition)
            self._found.append(answer)
            if not isinstance(slices, Slices):
                # All at once: each may wait for a drive or a bucket of its own.
                self._promised += room
                reading = asyncio.create_task(_read(slices))
                self.pending.append((place, room, self._hosted[-1], reading))
            elif slices.buffers:
                self._fill(self._hosted[-1], slices)

    def marks(self) -> list[tuple[int, int]]:
        """Changes with everything that a waiting fetch would be woken for."""
        return [(hosted.high_watermark, hosted.wakes) for hosted in self._hosted]

    async def finish(self, marks: list[tuple[int, int]]) -> EncodedResponse:
        """Answer after pending reads, and where they give too little, once more has come since `marks`."""
        await self._read_pending()
        if self.enough:
            return self.response(self.found())
        wait = self.wait()
        if marks != self.marks():
            wait.wake()
        answer: EncodedResponse = await wait
        return answer

    def wait(self) -> FetchWait:
        """The answer, once what is missing has come or `max_wait` is over."""
        purgatory = self._call.broker.purgatory
        wait = FetchWait(purgatory, self._min_bytes - self._size, self._hosted, self._look_again)
        purgatory.hold(wait, self._call.body.max_wait)
        return wait

    def _look_again(self, wait: FetchWait, shared: Shared) -> None:
        """Answer with what there is now."""
        asked = self._fetch.asked
        key = (asked, self._max_bytes, self._read_committed, self._call.version)
        is_shared = len(asked) <= _SHARED_PARTITIONS_MAX
        found: _Found | None = shared.get(key) if is_shared else None
        if found is None:
            self.gather()
            if self.pending:
                self._reading = asyncio.create_task(self._answer_later(wait))
                return
            found = self.found()
            if is_shared:
                shared[key] = found
        wait.set_result(self.response(found))

    async def _answer_later(self, wait: FetchWait) -> None:
        try:
            await self._read_pending()
            answer = self.response(self.found())
        except BaseException as error:  # noqa: BLE001 - carried to the connection
            if not wait.done():
                wait.set_exception(error)
        else:
            if not wait.done():
                wait.set_result(answer)

    def found(self) -> _Found:
        """All that was gathered."""
        topics = self._encoded(range(len(self._found)))
        return _Found(self._found, self._filled, topics)

    def response(self, found: _Found) -> EncodedResponse:
        """The answer with all that was found, in a session with what is news of it."""
        for hosted, size, records in found.filled:
            hosted.figures.bytes_out += size
            hosted.figures.messages_out += records
        now_ms = self._call.broker.clock.steady_ms()
        session_id, places, error = self._fetch.answer(found.partitions, now_ms)
        topics = found.topics
        if len(places) < len(found.partitions):
            self._found = found.partitions
            topics = self._encoded(places)
        return EncodedResponse(0, error, session_id, topics)

    def _encoded(self, places: Sequence[int]) -> EncodedTopics:
        by_topic: dict[UUID | str, list[FetchedPartition]] = {}
        for place in places:
            (topic, _), _ = self._fetch.asked[place]
            by_topic.setdefault(topic, []).append(self._found[place])
        topics = [
            FetchedTopic("", topic, partitions)
            if isinstance(topic, UUID)
            else FetchedTopic(topic, None, partitions)
            for topic, partitions in by_topic.items()
        ]
        return encode_topics(topics, self._call.version)

    async def _read_pending(self) -> None:
        pending, self.pending = self.pending, []
        for place, room, hosted, reading in pending:
            found = await reading
            self._promised -= room
            if not isinstance(found, Slices):
                self._found[place] = self._refused(self._found[place].index, found)
            elif found.buffers:
                self._found[place] = self._found[place]._replace(records=found.buffers)
                self._fill(hosted, found)

    def _fill(self, hosted: HostedPartition, slices: Slices) -> None:
        size = slices.size
        self._filled.append((hosted, size, slices.next_offset - slices.first_offset))
        self._size += size

    def _read(
        self, key: PartitionKey, partition: RequestedPartition
    ) -> tuple[FetchedPartition, int, Slices | Awaitable[Slices]]:
        """The partition's answer so far, what it may bring, and what it brings."""
        room = min(partition.partition_max_bytes, self._max_bytes - self._size - self._promised)
        room = max(room, 0)
        try:
            hosted = self._find(*key)
            hosted.replica.check_leader(partition.current_leader_epoch)
            self._hosted.append(hosted)
            slices = self._slices(hosted, partition.fetch_offset, room)
        except Rejected as error:
            return self._refused(partition.partition, error), 0, EMPTY
        records = slices.buffers if type(slices) is Slices else ()
        return self._answer(hosted, records), room, slices

    def _find(self, topic: UUID | str, index: int) -> HostedPartition:
        hosting = self._call.broker.hosting
        if isinstance(topic, UUID):
            return hosting.get_by_id(topic, index)
        return hosting.get(topic, index)

    def _slices(
        self, hosted: HostedPartition, offset: int, room: int
    ) -> Slices | Awaitable[Slices]:
        end = hosted.last_stable_offset if self._read_committed else hosted.high_watermark
        first = self._size + self._promised == 0
        if room <= 0 and not first:
            return EMPTY
        if hosted.log.log_start_offset <= offset <= hosted.log.log_end_offset and offset >= end:
            return EMPTY
        return self._call.broker.read(hosted, offset, room, end, minimum_one_batch=first)

    def _answer(self, hosted: HostedPartition, records: Sequence[Buffer]) -> FetchedPartition:
        return FetchedPartition(
            hosted.identity.index,
            ErrorCode.none,
            hosted.high_watermark,
            hosted.last_stable_offset,
            hosted.log.log_start_offset,
            [] if self._read_committed else None,
            -1,
            records,
        )

    def _refused(self, index: int, error: Rejected) -> FetchedPartition:
        self._failed = True
        return FetchedPartition(
            index=index,
            error_code=error.code,
            high_watermark=-1,
            last_stable_offset=-1,
            log_start_offset=-1,
            aborted=[] if self._read_committed else None,
            records=(),
        )


async def _read(slices: Awaitable[Slices]) -> _Read:
    try:
        return await slices
    except Rejected as error:
        return error


API = Api("Fetch", 1, (4, 18), handle)
