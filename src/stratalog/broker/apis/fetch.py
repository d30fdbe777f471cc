"""Fetch (key 1), versions 4-18.

v4 isolation level. v5 log start offset. v7 sessions (KIP-227). v9 leader epoch checks. v11 rack, preferred replica. v12
flexible, last fetched epoch. v13 topic ids. v15 replica state. v16 node endpoints. v17 replica directory id.
v18 a follower's high watermark (KIP-1166), which no broker asks with here.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, Final
from uuid import UUID

from stratalog.broker.api import Api, Call
from stratalog.broker.partition import EMPTY, FetchWait, HostedPartition
from stratalog.errors import ErrorCode, Rejected
from stratalog.log.partition_log import Slices
from stratalog.ports import Buffer
from stratalog.replication.fetch_sessions import NO_SESSION, Fetch, Key
from stratalog.wire.fetch import FetchedPartition, FetchedTopic, FetchResponse
from stratalog.wire.fetch_request import FetchRequest, RequestedPartition

_Read = Slices | Rejected
_READ_COMMITTED: Final = 1
_TOPIC_IDS_FROM: Final = 13
_RESPONSE_BYTES_MAX: Final = 8 << 20
"""Whatever a client allows: what is answered at once is read on the event loop, and held until the client took it."""


def handle(call: Call) -> Any:
    """Answer at once where enough is at hand, else wait for `min_bytes` or `max_wait`."""
    try:
        fetch = _begin(call)
    except Rejected as error:
        return _response(error.code, NO_SESSION, [])
    found = _Collection(call, fetch)
    found.start()
    if not found.pending and (found.enough or found.max_wait_ms <= 0):
        return found.response()
    return found.finish()


def _begin(call: Call) -> Fetch[RequestedPartition]:
    """What the fetch is about: all that it names, and in a session all that was named before."""
    request: FetchRequest = call.body
    by_id = call.version >= _TOPIC_IDS_FROM
    return call.broker.fetch_sessions.begin(
        request.session_id,
        request.session_epoch,
        {
            (topic.topic_id if by_id else topic.topic, partition.partition): partition
            for topic in request.topics
            for partition in topic.partitions
        },
        [
            (topic.topic_id if by_id else topic.topic, index)
            for topic in request.forgotten_topics_data
            for index in topic.partitions
        ],
        by_id=by_id,
        now_ms=call.broker.clock.steady_ms(),
    )


class _Collection:
    """What one fetch gathers, partition by partition in the order asked, within its byte limits."""

    def __init__(self, call: Call, fetch: Fetch[RequestedPartition]) -> None:
        self._call = call
        self._fetch = fetch
        request: FetchRequest = call.body
        self._read_committed = request.isolation_level == _READ_COMMITTED
        allowed = call.broker.client_memory.fetch_bytes(_RESPONSE_BYTES_MAX)
        self._max_bytes = max(min(request.max_bytes, allowed), 0)
        self._min_bytes = min(request.min_bytes, self._max_bytes)
        self.max_wait_ms = request.max_wait
        self.size = 0
        self._promised = 0  # what pending reads may bring
        self.pending: list[tuple[int, int, HostedPartition, asyncio.Task[_Read]]] = []
        self._filled: list[tuple[HostedPartition, int, Slices]] = []
        self._failed = False
        self._found: list[FetchedPartition] = []
        self._hosted: list[HostedPartition] = []
        self._marks: list[tuple[int, int]] = []  # when gathered: has anything come since?

    @property
    def enough(self) -> bool:
        """Whether the answer should leave now: bytes enough, or an error to tell."""
        return self.size >= self._min_bytes or self._failed or not self._hosted

    def start(self) -> None:
        """Gather what is at hand; reads that must wait (a cold page, the bucket) are left in `pending`."""
        self.size, self._failed, self._found, self._hosted, self._marks = 0, False, [], [], []
        self._filled = []
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

    async def finish(self) -> FetchResponse:
        """Wait for pending reads, and where they give too little, for more to come; then answer."""
        await self._read_pending()
        if self.enough or self.max_wait_ms <= 0:
            return self.response()
        waiting = FetchWait(self._min_bytes - self.size)
        watched = self._hosted
        for hosted in watched:
            hosted.watching.add(waiting)
        timer = None
        try:
            if self._marks == [_mark(hosted) for hosted in watched]:
                loop = asyncio.get_running_loop()
                timer = loop.call_later(self.max_wait_ms / 1000, waiting.wake)
                await waiting.done
        finally:
            if timer is not None:
                timer.cancel()
            for hosted in watched:
                hosted.watching.discard(waiting)
        self.start()
        await self._read_pending()
        return self.response()

    def response(self) -> FetchResponse:
        """The answer with all that was gathered, in a session with what is news of it."""
        for hosted, size, slices in self._filled:
            hosted.figures.bytes_out += size
            hosted.figures.messages_out += slices.next_offset - slices.first_offset
        answered = self._fetch.answer(self._found, self._call.broker.clock.steady_ms())
        by_topic: dict[UUID | str, list[FetchedPartition]] = {}
        for place in answered.places:
            (topic, _), _ = self._fetch.asked[place]
            by_topic.setdefault(topic, []).append(self._found[place])
        topics = [
            FetchedTopic("", topic, partitions)
            if isinstance(topic, UUID)
            else FetchedTopic(topic, None, partitions)
            for topic, partitions in by_topic.items()
        ]
        return _response(answered.error, answered.session_id, topics)

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
        self._filled.append((hosted, size, slices))
        self.size += size

    def _read(
        self, key: Key, partition: RequestedPartition
    ) -> tuple[FetchedPartition, int, Slices | Awaitable[Slices]]:
        """The partition's answer so far, what it may bring, and what it brings."""
        room = min(partition.partition_max_bytes, self._max_bytes - self.size - self._promised)
        room = max(room, 0)
        try:
            hosted = self._find(*key)
            hosted.replica.check_leader(partition.current_leader_epoch)
            self._hosted.append(hosted)
            self._marks.append(_mark(hosted))
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
        first = self.size + self._promised == 0
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


def _response(error: ErrorCode, session_id: int, topics: list[FetchedTopic]) -> FetchResponse:
    return FetchResponse(throttle_time_ms=0, error_code=error, session_id=session_id, topics=topics)


def _mark(hosted: HostedPartition) -> tuple[int, int]:
    """Changes with everything that a waiting fetch would be woken for."""
    return hosted.high_watermark, hosted.wakes


API = Api("Fetch", 1, (4, 18), handle)
