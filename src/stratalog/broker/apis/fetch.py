"""Fetch (key 1), versions 4-17.

v4 isolation level. v5 log start offset. v7 sessions (KIP-227): every answer here is sessionless, which clients
take as it is. v9 leader epoch checks. v11 rack, preferred replica. v12 flexible, last fetched epoch. v13 topic ids.
v15 replica state. v16 node endpoints. v17 replica directory id.
"""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any
from uuid import UUID

from stratalog.broker.api import Api, Call
from stratalog.broker.partition import EMPTY, FetchWait, HostedPartition
from stratalog.errors import ErrorCode, Rejected
from stratalog.log.partition_log import Slices, Tiered
from stratalog.wire.fetch import FetchedPartition, FetchedTopic, FetchResponse

_READ_COMMITTED = 1
_NO_ID = UUID(int=0)
_TOPIC_IDS_FROM = 13
_RESPONSE_BYTES_MAX = 55 << 20  # Kafka's fetch.max.bytes of a broker


def handle(call: Call) -> Any:
    """Answer at once where enough is at hand, else wait for `min_bytes` or `max_wait`."""
    request = call.body
    if request.session_id != 0 and request.session_epoch not in (-1, 0):
        return FetchResponse(
            throttle_time_ms=0,
            error_code=ErrorCode.fetch_session_id_not_found,
            session_id=0,
            topics=[],
        )
    found = _Collection(call)
    found.start()
    if not found.pending and (found.enough or found.max_wait_ms <= 0):
        return found.response()
    return found.finish()


class _Collection:
    """What one fetch gathers, partition by partition in the order asked, within its byte limits."""

    def __init__(self, call: Call) -> None:
        self._call = call
        request = call.body
        self._read_committed = request.isolation_level == _READ_COMMITTED
        self._max_bytes = min(request.max_bytes, _RESPONSE_BYTES_MAX)
        self._min_bytes = min(request.min_bytes, self._max_bytes)
        self.max_wait_ms = call.broker.milliseconds(request.max_wait)
        self.size = 0
        self.pending: list[tuple[list[FetchedPartition], int, Awaitable[Slices]]] = []
        self._failed = False
        self._topics: list[tuple[Any, list[FetchedPartition]]] = []
        self._hosted: list[HostedPartition] = []
        self._marks: list[int] = []  # high watermarks when gathered: has anything come since?

    @property
    def enough(self) -> bool:
        """Whether the answer should leave now: bytes enough, or an error to tell."""
        return self.size >= self._min_bytes or self._failed or not self._hosted

    def start(self) -> None:
        """Gather what is at hand; reads that must wait (a cold page, the bucket) are left in `pending`."""
        self.size, self._failed, self._topics, self._hosted, self._marks = 0, False, [], [], []
        for topic in self._call.body.topics:
            partitions: list[FetchedPartition] = []
            self._topics.append((topic, partitions))
            for partition in topic.partitions:
                answer, slices = self._read(topic, partition)
                partitions.append(answer)
                if isinstance(slices, Slices):
                    self._fill(partitions, len(partitions) - 1, slices)
                else:
                    self.pending.append((partitions, len(partitions) - 1, slices))

    async def finish(self) -> FetchResponse:
        """Wait for pending reads, and where they give too little, for more to come; then answer."""
        await self._read_pending()
        if self.enough or self.max_wait_ms <= 0:
            return self.response()
        waiting = FetchWait(self._min_bytes - self.size)
        watched = self._hosted
        for hosted in watched:
            hosted.watching.add(waiting)
        try:
            if self._marks == [hosted.high_watermark for hosted in watched]:
                await asyncio.wait((waiting.done,), timeout=self.max_wait_ms / 1000)
        finally:
            for hosted in watched:
                hosted.watching.discard(waiting)
        self.start()
        await self._read_pending()
        return self.response()

    def response(self) -> FetchResponse:
        """The answer with all that was gathered."""
        by_id = self._call.version >= _TOPIC_IDS_FROM
        topics = [
            FetchedTopic(
                name="" if by_id else topic.topic,
                topic_id=(topic.topic_id or _NO_ID) if by_id else None,
                partitions=partitions,
            )
            for topic, partitions in self._topics
        ]
        return FetchResponse(
            throttle_time_ms=0, error_code=ErrorCode.none, session_id=0, topics=topics
        )

    async def _read_pending(self) -> None:
        pending, self.pending = self.pending, []
        for partitions, place, slices in pending:
            try:
                self._fill(partitions, place, await slices)
            except Rejected as error:
                partitions[place] = self._refused(partitions[place].index, error)

    def _fill(self, partitions: list[FetchedPartition], place: int, slices: Slices) -> None:
        if slices.buffers:
            partitions[place] = replace(partitions[place], records=slices.buffers)
            self.size += slices.size

    def _read(
        self, topic: Any, partition: Any
    ) -> tuple[FetchedPartition, Slices | Awaitable[Slices]]:
        try:
            hosted = self._find(topic, partition.partition)
            hosted.replica.check_leader(getattr(partition, "current_leader_epoch", -1))
            self._hosted.append(hosted)
            self._marks.append(hosted.high_watermark)
            offset = partition.fetch_offset
            end = hosted.last_stable_offset if self._read_committed else hosted.high_watermark
            room = min(partition.partition_max_bytes, self._max_bytes - self.size)
            slices = self._slices(hosted, offset, end, room)
        except Rejected as error:
            return self._refused(partition.partition, error), EMPTY
        return self._answer(hosted), slices

    def _find(self, topic: Any, index: int) -> HostedPartition:
        hosting = self._call.broker.hosting
        if self._call.version >= _TOPIC_IDS_FROM:
            return hosting.get_by_id(topic.topic_id or _NO_ID, index)
        return hosting.get(topic.topic, index)

    def _slices(
        self, hosted: HostedPartition, offset: int, end: int, room: int
    ) -> Slices | Awaitable[Slices]:
        first = self.size == 0
        if room <= 0 and not first:
            return EMPTY
        if hosted.log.log_start_offset <= offset <= hosted.log.log_end_offset and offset >= end:
            return EMPTY
        try:
            return hosted.read(offset, max(room, 0), end_offset=end, minimum_one_batch=first)
        except Tiered:
            return self._call.broker.read_tiered(hosted, offset, max(room, 0), end)

    def _answer(self, hosted: HostedPartition) -> FetchedPartition:
        return FetchedPartition(
            index=hosted.identity.index,
            error_code=ErrorCode.none,
            high_watermark=hosted.high_watermark,
            last_stable_offset=hosted.last_stable_offset,
            log_start_offset=hosted.log.log_start_offset,
            aborted=[] if self._read_committed else None,
            records=(),
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


API = Api("Fetch", 1, (4, 17), handle)
