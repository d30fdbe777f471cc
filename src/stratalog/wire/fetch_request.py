"""Fetch requests, read without kio's entities: a consumer at the tail asks as often as anything is written.

In: a request's body as a view. Out: a `FetchRequest`. It never judges what is asked.

Versions 4 to 18. 5: log start offset. 7: sessions, forgotten topics. 9: current leader epoch. 11: rack. 12: flexible,
last fetched epoch. 13: topic ids instead of names (KIP-516). 15: the replica id moved to a tag. 17, 18: tags of
followers. The other versions changed answers only. A follower's fields are not kept: nobody asks for them here.
"""

from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from stratalog.errors import Corrupt, ErrorCode, Rejected
from stratalog.wire.ids import ZERO_ID
from stratalog.wire.primitives import ENDED, I32, read_array_length, read_string, skip_tags

__all__ = ["FetchRequest", "ForgottenTopic", "RequestedPartition", "RequestedTopic", "decode"]

_REPLICA_IN_TAG: Final = 15
_FLEXIBLE: Final = 12
_TOPIC_IDS: Final = 13
_SESSIONS: Final = 7
_RACK: Final = 11
_NO_SESSION: Final = (0, -1)

_LIMITS: Final = Struct(">iiib")
_SESSION: Final = Struct(">ii")
_PARTITION_4: Final = Struct(">iqi")
_PARTITION_5: Final = Struct(">iqqi")
_PARTITION_9: Final = Struct(">iiqqi")
_PARTITION_12: Final = Struct(">iiqiqi")


class RequestedPartition(NamedTuple):
    """Where to read from; -1 for epochs that the client does not know."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    partition_max_bytes: int


class RequestedTopic(NamedTuple):
    """Named by `topic` up to version 12 (then `topic_id` is zero), by `topic_id` from 13 on (then `topic` is "")."""

    topic: str
    topic_id: UUID
    partitions: list[RequestedPartition]


class ForgottenTopic(NamedTuple):
    """Partitions that leave a session; named as `RequestedTopic`."""

    topic: str
    topic_id: UUID
    partitions: list[int]


class FetchRequest(NamedTuple):
    """`max_wait` in ms; versions without sessions have id 0 and epoch -1."""

    max_wait: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[RequestedTopic]
    forgotten_topics_data: list[ForgottenTopic]
    rack_id: str


def decode(view: memoryview, version: int) -> FetchRequest:
    """The request whose body `view` holds; raises Rejected(INVALID_REQUEST) where it is none."""
    try:
        return _request(view, version)
    except ENDED as error:
        raise Rejected(ErrorCode.invalid_request, f"not a fetch request: {error}") from error


def _request(view: memoryview, version: int) -> FetchRequest:
    flexible = version >= _FLEXIBLE
    position = 0 if version >= _REPLICA_IN_TAG else 4
    max_wait, min_bytes, max_bytes, isolation = _LIMITS.unpack_from(view, position)
    position += _LIMITS.size
    session_id, session_epoch = _NO_SESSION
    if version >= _SESSIONS:
        session_id, session_epoch = _SESSION.unpack_from(view, position)
        position += _SESSION.size
    count, position = read_array_length(view, position, flexible)
    if count < 0:
        raise Corrupt("no topics")
    topics = []
    for _ in range(count):
        name, topic_id, position = _topic(view, position, version)
        partitions, position = _partitions(view, position, version)
        topics.append(RequestedTopic(name, topic_id, partitions))
    forgotten: list[ForgottenTopic] = []
    rack = ""
    if version >= _SESSIONS:
        forgotten, position = _forgotten(view, position, version)
    if version >= _RACK:
        found, position = read_string(view, position, flexible)
        if found is None:
            raise Corrupt("no rack")
        rack = found
    if flexible:
        skip_tags(view, position)
    return FetchRequest(
        max_wait,
        min_bytes,
        max_bytes,
        isolation,
        session_id,
        session_epoch,
        topics,
        forgotten,
        rack,
    )


def _topic(view: memoryview, position: int, version: int) -> tuple[str, UUID, int]:
    if version >= _TOPIC_IDS:
        end = position + 16
        if end > len(view):
            raise Corrupt("a topic id runs past the end")
        return "", UUID(bytes=bytes(view[position:end])), end
    name, position = read_string(view, position, version >= _FLEXIBLE)
    if name is None:
        raise Corrupt("a topic without a name")
    return name, ZERO_ID, position


def _partitions(
    view: memoryview, position: int, version: int
) -> tuple[list[RequestedPartition], int]:
    flexible = version >= _FLEXIBLE
    count, position = read_array_length(view, position, flexible)
    if count < 0:
        raise Corrupt("a topic without partitions")
    partitions = []
    epoch = -1
    for _ in range(count):
        if flexible:
            index, epoch, offset, _last, _start, size = _PARTITION_12.unpack_from(view, position)
            position = skip_tags(view, position + _PARTITION_12.size)
        elif version >= 9:
            index, epoch, offset, _start, size = _PARTITION_9.unpack_from(view, position)
            position += _PARTITION_9.size
        elif version >= 5:
            index, offset, _start, size = _PARTITION_5.unpack_from(view, position)
            position += _PARTITION_5.size
        else:
            index, offset, size = _PARTITION_4.unpack_from(view, position)
            position += _PARTITION_4.size
        partitions.append(RequestedPartition(index, epoch, offset, size))
    if flexible:
        position = skip_tags(view, position)
    return partitions, position


def _forgotten(view: memoryview, position: int, version: int) -> tuple[list[ForgottenTopic], int]:
    flexible = version >= _FLEXIBLE
    count, position = read_array_length(view, position, flexible)
    if count < 0:
        raise Corrupt("no forgotten topics")
    forgotten = []
    for _ in range(count):
        name, topic_id, position = _topic(view, position, version)
        length, position = read_array_length(view, position, flexible)
        if length < 0:
            raise Corrupt("a forgotten topic without partitions")
        indexes: list[int] = []
        for _ in range(length):
            indexes += I32.unpack_from(view, position)
            position += 4
        if flexible:
            position = skip_tags(view, position)
        forgotten.append(ForgottenTopic(name, topic_id, indexes))
    return forgotten, position
