"""`ports.Door` in Python, over any transport of the event loop: for the simulation, and beside the compiled one.

In: connections' bytes, partitions, answers. Out: rows, once for each turn of the loop in which any arrived. It reads by
the codecs and checks that the handlers use. The limits are those of the crate in `door/`.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from stratalog.errors import Corrupt, Rejected
from stratalog.ports import Answers, Buffer, FetchRow, RowGroup
from stratalog.wire.apis import PRODUCE
from stratalog.wire.batch import HEADER_SIZE, BatchHeader, check_produced
from stratalog.wire.budget import DecodeBudget
from stratalog.wire.envelope import Received, decode_request, encode_response
from stratalog.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from stratalog.wire.records import read_records
from stratalog.wire.validation import NO_DEMANDS, check_records

FRAME_BYTES_MAX: Final = 16 << 10
_FRAMES_MAX: Final = 32
_READ_BYTES: Final = 64 << 10
_VERSIONS: Final = {PRODUCE: (3, 13)}
_TOPIC_IDS_FROM: Final = 13
_LENGTH: Final = 4
_FETCH: Final = b"\0\1"
_FETCH_BYTES_MAX: Final = 1 << 10


class Request(NamedTuple):
    """A row of one frame."""

    received: Received
    topic: TopicProduceData
    partition: PartitionProduceData
    batch: bytes
    header: BatchHeader
    least: int
    keyed: bool


def parse(frame: memoryview) -> Request | None:
    """Return the row in a frame; None where a handler must serve it."""
    try:
        received = decode_request(frame, _VERSIONS, DecodeBudget(1 << 20))
        request = received.body
        topics = request.topic_data
        if request.transactional_id is not None or len(topics) != 1:
            return None
        if len(topics[0].partition_data) != 1:
            return None
        partition = topics[0].partition_data[0]
        if partition.records is None:
            return None
        headers = check_produced(partition.records, max_batch_bytes=FRAME_BYTES_MAX)
        header = headers[0]
        if len(headers) != 1 or header.attributes:
            return None
        batch = bytes(partition.records)
        if check_records(batch[HEADER_SIZE:], header, NO_DEMANDS) != header.max_timestamp:
            return None
        records = list(read_records(memoryview(batch)))
    except (Rejected, Corrupt):
        return None
    times = [one.timestamp for one in records if one.timestamp != -1]
    least = min(times, default=-1)
    if least < -1:
        return None
    keyed = all(one.key is not None for one in records)
    return Request(received, topics[0], partition, batch, header, least, keyed)


class _Borrowed(asyncio.BufferedProtocol):
    """The protocol of a borrowed connection: it passes on all events but received bytes."""

    def __init__(
        self, door: "PythonDoor", transport: asyncio.Transport, client_id: str, number: int
    ) -> None:
        self.number = number
        self.transport = transport
        self.client_id = client_id
        self.owner = transport.get_protocol()
        self.rest = b""
        self.waiting = 0
        """The size of the fetch that `rest` begins with, until it is answered."""
        self.is_over = False
        self._door = door
        self._buffer = bytearray(_READ_BYTES)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.rest += self._buffer[:nbytes]
        if not self.waiting:
            self.transport.pause_reading()
        self._door.arrived(self)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.owner.pause_writing()

    def resume_writing(self) -> None:
        self.owner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self.owner.connection_lost(exc)


class PythonDoor:
    """See `ports.Door`."""

    def __init__(self) -> None:
        self.rows = 0
        """How many rows there were."""
        self.fetches = 0
        """How many fetches waited here."""
        self._borrowed: dict[int, _Borrowed] = {}
        self._number = 0
        self._handles: dict[tuple[str | UUID, int], int] = {}
        self._partitions: dict[int, tuple[str, UUID, int]] = {}
        self._queue: deque[_Borrowed] = deque()
        self._is_due = False
        self._turn_fetches: list[FetchRow] = []
        self._turn_rows: list[tuple[_Borrowed, int, Request, bytes]] = []
        self._order: list[int] = []
        self._answers: dict[int, tuple[int, int, int, int]] = {}

    @property
    def bytes_held(self) -> int:
        return sum(len(one.rest) for one in self._borrowed.values())

    def open(
        self,
        decide: Callable[[Sequence[RowGroup]], Collection[int]],
        fetch: Callable[[Sequence[FetchRow]], None],
        returned: Callable[[int], None],
    ) -> None:
        self._decide, self._fetch, self._return = decide, fetch, returned

    def close(self) -> None:
        self._queue.clear()

    def host(self, topic: str, topic_id: UUID, index: int) -> int:
        handle = self._number = self._number + 1
        self._handles[topic, index] = self._handles[topic_id, index] = handle
        self._partitions[handle] = topic, topic_id, index
        return handle

    def drop(self, handle: int) -> None:
        topic, topic_id, index = self._partitions.pop(handle)
        for key in ((topic, index), (topic_id, index)):
            if self._handles.get(key) == handle:
                del self._handles[key]

    def is_row(self, frame: memoryview) -> bool:
        return parse(frame) is not None

    def borrow(self, transport: asyncio.Transport, client_id: str) -> int:
        self._number += 1
        one = _Borrowed(self, transport, client_id, self._number)
        self._borrowed[one.number] = one
        transport.set_protocol(one)
        transport.resume_reading()
        return one.number

    def give_back(self, connection: int) -> tuple[list[Buffer], bytes]:
        one = self._borrowed.pop(connection)
        one.transport.set_protocol(one.owner)
        if not one.transport.is_closing():
            one.transport.resume_reading()
        return [], one.rest

    def answer(self, first: int, answers: Answers) -> None:
        for place, answer in enumerate(answers, first):
            self._answers[place] = answer

    def refuse(self, place: int) -> None:
        first = self._order[place]
        one = self._turn_rows[first][0]
        frames = [row[3] for row in self._turn_rows[first:] if row[0] is one]
        one.rest = b"".join(frames) + one.rest
        one.is_over = True

    def deliver(self, connections: Sequence[int], frame: bytes) -> None:
        for number in connections:
            one = self._borrowed.get(number)
            if one is None or not one.waiting:
                continue
            correlation = one.rest[_LENGTH + 4 : _LENGTH + 8]
            one.rest, one.waiting = one.rest[one.waiting :], 0
            one.transport.writelines((frame[:_LENGTH], correlation, frame[_LENGTH + 4 :]))
            if one.rest and not one.is_over:
                one.transport.pause_reading()
                self.arrived(one)

    def arrived(self, one: _Borrowed) -> None:
        """Look at the bytes of a connection at the end of this turn."""
        if one not in self._queue:
            self._queue.append(one)
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._is_due = False
        self._turn_rows, self._turn_fetches, self._answers = [], [], {}
        queue, self._queue = list(self._queue), deque()
        for one in queue:
            if one.number in self._borrowed:
                self._read(one)
        returned = {one.number: None for one in queue if one.is_over}
        self.rows += len(self._turn_rows)
        if self._turn_rows:
            held = self._decide(self._groups())
            returned |= dict.fromkeys(held)
            self._send()
        for number in returned:
            if number in self._borrowed:
                self._return(number)
        self.fetches += len(self._turn_fetches)
        if self._turn_fetches:
            self._fetch(self._turn_fetches)

    def _read(self, one: _Borrowed) -> None:
        if one.waiting:
            one.is_over = True
            return
        handle = -1
        for _ in range(_FRAMES_MAX):
            length = int.from_bytes(one.rest[:_LENGTH], "big", signed=True)
            if len(one.rest) >= _LENGTH and not 0 <= length <= FRAME_BYTES_MAX:
                one.is_over = True
                return
            if len(one.rest) < _LENGTH + length or len(one.rest) < _LENGTH:
                one.transport.resume_reading()
                return
            frame = one.rest[: _LENGTH + length]
            if frame[_LENGTH:].startswith(_FETCH):
                self._read_fetch(one, frame, is_first=handle == -1)
                return
            request = parse(memoryview(bytearray(frame[_LENGTH:])))
            found = None if request is None else self._handle(request)
            if (
                request is None
                or found is None
                or (request.received.header.client_id or "") != one.client_id
            ):
                one.is_over = True
                return
            if handle not in (-1, found):
                break
            handle = found
            self._turn_rows.append((one, found, request, frame))
            one.rest = one.rest[len(frame) :]
        self.arrived(one)

    def _read_fetch(self, one: _Borrowed, frame: bytes, *, is_first: bool) -> None:
        body = frame[_LENGTH:]
        length = int.from_bytes(body[8:10], "big", signed=True)
        client_id = body[10 : 10 + max(length, 0)]
        is_row = len(body) >= 10 and length >= -1 and len(client_id) == max(length, 0)
        if len(body) > _FETCH_BYTES_MAX or not is_row or client_id != one.client_id.encode():
            one.is_over = True
        elif is_first:
            one.waiting = len(frame)
            one.transport.resume_reading()
            self._turn_fetches.append((one.number, body[:4] + body[8:]))
        else:
            self.arrived(one)

    def _handle(self, request: Request) -> int | None:
        by_id = request.received.header.version >= _TOPIC_IDS_FROM
        topic = request.topic.topic_id if by_id else request.topic.name
        return self._handles.get((topic, request.partition.index))

    def _groups(self) -> list[RowGroup]:
        rows = self._turn_rows
        self._order = sorted(range(len(rows)), key=lambda at: rows[at][1])
        groups: list[RowGroup] = []
        for place, at in enumerate(self._order):
            one, handle, request, frame = rows[at]
            if not groups or groups[-1].handle != handle:
                groups.append(RowGroup(handle, place, bytearray(), []))
            groups[-1].batches.extend(request.batch)
            assert isinstance(groups[-1].rows, list)
            header, body = request.received.header, request.received.body
            more = (header.version, header.correlation_id, body.acks, body.timeout_ms)
            groups[-1].rows.append(
                (*request.header, one.number, *more, request.least, request.keyed, len(frame))
            )
        return groups

    def _send(self) -> None:
        for place, at in sorted(enumerate(self._order), key=lambda pair: pair[1]):
            one, handle, request, _ = self._turn_rows[at]
            if place not in self._answers:
                continue
            _, base, append_time, start = self._answers[place]
            topic, topic_id, index = self._partitions[handle]
            partition = PartitionProduceResponse(
                index=index,
                error_code=0,
                base_offset=base,
                log_append_time_ms=append_time,
                log_start_offset=start,
            )
            answered = TopicProduceResponse(
                name=topic, topic_id=topic_id, partition_responses=[partition]
            )
            header = request.received.header
            pieces = encode_response(
                PRODUCE,
                header.version,
                header.correlation_id,
                ProduceResponse(responses=[answered]),
            )
            one.transport.writelines(pieces)
