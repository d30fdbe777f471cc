"""Answer a consumer's next fetch by the form of its last one (decision 0053).

In: what one fetch gathered; then the frames of its connection. Out: the answer to a frame that repeats that fetch from
any offset, or None: then the handler answers. The rules are those of `apis/fetch.py`, for one partition without a
session. It reads only what the page cache has. Where a read fails it notes nothing: the handler reads again, and does.

A consumer of old records sends the same bytes again and again, but for the correlation id and the offset. The answers
differ as little. So neither side's message is decoded or encoded anew.
"""

from collections.abc import Sequence
from contextlib import suppress
from struct import Struct
from typing import Final, cast

from msgspec.structs import replace

from stratalog.broker.fetching.gathering import Gathering, Needs
from stratalog.broker.network.answers import Answer
from stratalog.broker.network.authorizer import Authorizer, Operation, Resource
from stratalog.broker.network.dispatch import Call
from stratalog.errors import Rejected
from stratalog.log.reading import FILE_BYTES_MIN, Slices
from stratalog.ports import Buffer
from stratalog.replication.fetch_sessions import LAST_FETCH, NO_SESSION
from stratalog.wire.envelope import encode_request
from stratalog.wire.fetch import encode_topics
from stratalog.wire.messages.fetch import FetchableTopicResponse, FetchRequest, PartitionData
from stratalog.wire.varint import encode_unsigned

__all__ = ["expect_next"]

_TOPIC_IDS_FROM: Final = 13
_FRAME_BYTES_MAX: Final = 1 << 10
_READ_COMMITTED: Final = 1
_LENGTH_BYTES: Final = 4
_CORRELATION: Final = slice(4, 8)
_HEAD_AT: Final = 8
_OFFSET: Final = Struct(">q")
_OFFSETS: Final = Struct(">qqq")
_START: Final = Struct(">i4s")
"""Length and correlation id."""
_MARK: Final = -0x0E0D0C0B0A090808
"""A number whose bytes are not part of any text in UTF-8. A request that has them elsewhere gets no form."""
_PROBE: Final = memoryview(bytes(FILE_BYTES_MIN))
"""Stands for records where an answer's form is taken."""


class _NextFetch:
    """The fetch that a client probably sends next, as a frame with a gap at its offset; and the form of its answer."""

    __slots__ = (
        "_before_offset",
        "_before_offsets",
        "_before_size",
        "_behind_offset",
        "_behind_records",
        "_client_id",
        "_needs",
        "_offset_at",
        "_request",
        "_session",
        "_size",
        "_start",
        "_topic_id",
    )

    def __init__(self, call: Call[FetchRequest, Needs]) -> None:
        """Raises ValueError for a request that is too long, or has the mark's bytes among its numbers."""
        self._needs, self._session, self._request = call.needs, call.session, call.body
        session, version, request = call.session, call.version, call.body
        self._client_id = session.client_id
        topic = request.topics[0]
        partition = topic.partitions[0]
        self._topic_id = topic.topic_id
        marked = replace(topic, partitions=[replace(partition, fetch_offset=_MARK)])
        pieces = encode_request(version, 0, session.client_id, replace(request, topics=[marked]))
        frame = b"".join(pieces)[_LENGTH_BYTES:]
        if len(frame) > _FRAME_BYTES_MAX:
            raise ValueError
        self._size = len(frame)
        self._start = frame[: _CORRELATION.start]
        self._before_offset, self._behind_offset = frame[_HEAD_AT:].split(_OFFSET.pack(_MARK))
        self._offset_at = _HEAD_AT + len(self._before_offset)
        answered = PartitionData(
            partition_index=partition.partition,
            error_code=0,
            high_watermark=_MARK,
            last_stable_offset=_MARK,
            log_start_offset=_MARK,
            aborted_transactions=[] if request.isolation_level == _READ_COMMITTED else None,
            records=[_PROBE],
        )
        topics = [FetchableTopicResponse(topic_id=topic.topic_id, partitions=[answered])]
        first, _, last = encode_topics(topics, version).pieces
        size = encode_unsigned(len(_PROBE) + 1)
        marks = _OFFSETS.pack(_MARK, _MARK, _MARK)
        self._before_offsets, before_size = bytes(first)[_START.size :].split(marks)
        self._before_size = before_size.removesuffix(size)
        self._behind_records = bytes(last)

    def answer(self, frame: memoryview, authorizer: Authorizer | None) -> Answer:
        """Return the answer to this fetch, from any offset; None where the handler must answer.

        The first fetch may be one of the door's, whose call has no authorizer.
        """
        if len(frame) != self._size or self._needs.throttling.is_on:
            return None
        request, at = frame.tobytes(), self._offset_at
        if (
            request[: _CORRELATION.start] != self._start
            or request[_HEAD_AT:at] != self._before_offset
            or request[at + _OFFSET.size :] != self._behind_offset
        ):
            return None
        (offset,) = _OFFSET.unpack_from(request, at)
        return self._answer(request[_CORRELATION], offset, authorizer)

    def _answer(self, correlation_id: bytes, offset: int, authorizer: Authorizer | None) -> Answer:
        needs, request = self._needs, self._request
        partition = request.topics[0].partitions[0]
        try:
            hosted = needs.hosting.get_by_id(self._topic_id, partition.partition)
            hosted.check_readable(partition.current_leader_epoch)
        except Rejected:
            return None
        # Not `allows`: the handler comes next, and an audit notes its denial.
        if authorizer is not None and not authorizer.would_allow(
            self._session, Operation.READ, Resource.TOPIC, hosted.name.topic
        ):
            return None
        log, end = hosted.log, hosted.high_watermark
        offsets = (end, hosted.last_stable_offset, log.log_start_offset)
        if request.isolation_level == _READ_COMMITTED:
            end = offsets[1]
            if any(one.transaction_index for one in log.segments_from(offset)):
                return None  # the handler lists aborted transactions
        allowed = needs.client_memory.fetch_bytes(needs.fetch_bytes_max)
        limit = max(min(request.max_bytes, allowed), 0)
        room = max(min(partition.partition_max_bytes, limit), 0)
        from_file = self._session.sends_files
        least = min(request.min_bytes, limit)
        found = hosted.read_at_once(offset, room, least, end_offset=end, from_file=from_file)
        if found is None:
            return None
        self._session.client_id = self._client_id
        hosted.metrics.bytes_out += found.size
        hosted.metrics.messages_out += found.next_offset - found.first_offset
        return self._framed(correlation_id, offsets, found)

    def _framed(
        self, correlation_id: bytes, offsets: tuple[int, int, int], found: Slices
    ) -> list[Buffer]:
        size = found.size
        head = bytearray(_START.size)
        head += self._before_offsets
        head += _OFFSETS.pack(*offsets)
        head += self._before_size
        head += encode_unsigned(size + 1)
        whole = len(head) + size + len(self._behind_records)
        _START.pack_into(head, 0, whole - _LENGTH_BYTES, correlation_id)
        # An answer's large piece may be in a file, as in `answers.py`.
        return [head, *cast(Sequence[Buffer], found.pieces), self._behind_records]


def expect_next(gathering: Gathering) -> None:
    """Keep the form of a fetch, if it is the connection's second large one in a row from the same partition.

    Call it where a fetch has enough at once. A small answer is not worth a form.
    """
    call = gathering.call
    session, request = call.session, call.body
    if gathering.size < FILE_BYTES_MIN or not _is_plain(gathering):
        return
    (found,) = gathering.brought
    if isinstance(found, Slices) and found.aborted is not None:
        session.answer_next = None  # else each fetch would look for aborted transactions twice
        return
    topic = request.topics[0]
    place = (topic.topic_id, topic.partitions[0].partition)
    if session.fetched != place:
        session.fetched = place
    else:
        with suppress(ValueError):
            session.answer_next = _NextFetch(call).answer


def _is_plain(gathering: Gathering) -> bool:
    """Return whether a consumer fetches one partition, and says nothing else: no session, no rack.

    A request that forgets partitions, as only one with a session needs to, may be large: it is not encoded here.
    """
    request = gathering.call.body
    return (
        gathering.call.version >= _TOPIC_IDS_FROM
        and gathering.follower is None
        and (request.session_id, request.session_epoch) == (NO_SESSION, LAST_FETCH)
        and len(request.topics) == 1
        and len(request.topics[0].partitions) == 1
        and request.topics[0].partitions[0].last_fetched_epoch < 0
        and not request.forgotten_topics_data
        and not gathering.rack
    )
