"""Fetch requests, read without kio's entities: a consumer at the tail asks as often as anything is written.

In: a request's body as a view and a budget. Out: a `FetchRequest`. It never judges what is asked.

Versions 4 to 18. 5: log start offset. 7: sessions, forgotten topics. 9: current leader epoch. 11: rack. 12: flexible,
last fetched epoch. 13: topic ids instead of names (KIP-516). 15: the replica id moved to a tag. 17, 18: tags of
followers. The other versions changed answers only. A follower's fields are not kept: nobody asks for them here.
"""

from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from stratalog.errors import Corrupt, ErrorCode, Rejected
from stratalog.wire.budget import ITEM_BYTES, TRUSTED, UUID_BYTES, DecodeBudget, struct_bytes
from stratalog.wire.ids import topic_id_of
from stratalog.wire.primitives import ENDED, I32, read_array_length, read_string, skip_tags

__all__ = ["FetchRequest", "PartitionKey", "RequestedPartition", "decode"]

_REPLICA_IN_TAG: Final = 15
_FLEXIBLE: Final = 12
_TOPIC_IDS: Final = 13
_SESSIONS: Final = 7
_RACK: Final = 11
_NO_SESSION: Final = (0, -1)
_REMEMBERED_MAX: Final = 64
_REMEMBERED_BYTES_MAX: Final = 512

_TOPIC_BYTES: Final = UUID_BYTES
_KEY_BYTES: Final = ITEM_BYTES + struct_bytes(2)
_ENTRY_BYTES: Final = 160
"""An entry of a dict that grows, and the pair that it becomes."""
_PARTITION_BYTES: Final = struct_bytes(4) + _KEY_BYTES + _ENTRY_BYTES
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


PartitionKey = tuple[UUID | str, int]
"""A topic, by name up to version 12 and by id from 13 on, and a partition's index."""


class _Named(NamedTuple):
    """What a request names. `wanted` has each partition once, as it was named last."""

    wanted: tuple[tuple[PartitionKey, RequestedPartition], ...]
    forgotten: tuple[PartitionKey, ...]
    rack_id: str


class FetchRequest(NamedTuple):
    """`max_wait` in ms; versions without sessions have id 0 and epoch -1. `forgotten` leaves a session."""

    max_wait: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    wanted: tuple[tuple[PartitionKey, RequestedPartition], ...]
    forgotten: tuple[PartitionKey, ...]
    rack_id: str


def decode(view: memoryview, version: int, budget: DecodeBudget) -> FetchRequest:
    """Return the request whose body `view` holds.

    Raises Rejected(INVALID_REQUEST) where it holds none, OverBudget where the request would take too much memory.
    """
    try:
        return _request(view, version, budget)
    except ENDED as error:
        raise Rejected(ErrorCode.invalid_request, f"not a fetch request: {error}") from error


def _request(view: memoryview, version: int, budget: DecodeBudget) -> FetchRequest:
    position = 0 if version >= _REPLICA_IN_TAG else 4
    limits = _LIMITS.unpack_from(view, position)
    position += _LIMITS.size
    session = _NO_SESSION
    if version >= _SESSIONS:
        session = _SESSION.unpack_from(view, position)
        position += _SESSION.size
    named = bytes(view[position:])
    is_remembered = len(named) <= _REMEMBERED_BYTES_MAX
    found = _named_again(named, version) if is_remembered else _named(named, version, budget)
    return FetchRequest._make((*limits, *session, *found))


@lru_cache(_REMEMBERED_MAX)
def _named_again(data: bytes, version: int) -> _Named:
    """All consumers at a partition's tail ask the same, over and over: what they name is read once.

    So few bytes cannot become much: no budget is charged.
    """
    return _named(data, version, TRUSTED)


def _named(data: bytes, version: int, budget: DecodeBudget) -> _Named:
    view = memoryview(data)
    flexible = version >= _FLEXIBLE
    count, position = read_array_length(view, 0, flexible)
    if count < 0:
        raise Corrupt("no topics")
    budget.charge(count * _TOPIC_BYTES)
    wanted: dict[PartitionKey, RequestedPartition] = {}
    for _ in range(count):
        topic, position = _topic(view, position, version, budget)
        position = _partitions(view, position, version, topic, wanted, budget)
    forgotten: list[PartitionKey] = []
    rack = ""
    if version >= _SESSIONS:
        position = _forgotten(view, position, version, forgotten, budget)
    if version >= _RACK:
        found, position = read_string(view, position, flexible, budget)
        if found is None:
            raise Corrupt("no rack")
        rack = found
    if flexible:
        skip_tags(view, position, budget)
    return _Named(tuple(wanted.items()), tuple(forgotten), rack)


def _topic(
    view: memoryview, position: int, version: int, budget: DecodeBudget
) -> tuple[UUID | str, int]:
    if version >= _TOPIC_IDS:
        end = position + 16
        if end > len(view):
            raise Corrupt("a topic id runs past the end")
        return topic_id_of(bytes(view[position:end])), end
    name, position = read_string(view, position, version >= _FLEXIBLE, budget)
    if name is None:
        raise Corrupt("a topic without a name")
    return name, position


def _partitions(
    view: memoryview,
    position: int,
    version: int,
    topic: UUID | str,
    wanted: dict[PartitionKey, RequestedPartition],
    budget: DecodeBudget,
) -> int:
    flexible = version >= _FLEXIBLE
    count, position = read_array_length(view, position, flexible)
    if count < 0:
        raise Corrupt("a topic without partitions")
    budget.charge(count * _PARTITION_BYTES)
    epoch = -1
    for _ in range(count):
        if flexible:
            index, epoch, offset, _last, _start, size = _PARTITION_12.unpack_from(view, position)
            position = skip_tags(view, position + _PARTITION_12.size, budget)
        elif version >= 9:
            index, epoch, offset, _start, size = _PARTITION_9.unpack_from(view, position)
            position += _PARTITION_9.size
        elif version >= 5:
            index, offset, _start, size = _PARTITION_5.unpack_from(view, position)
            position += _PARTITION_5.size
        else:
            index, offset, size = _PARTITION_4.unpack_from(view, position)
            position += _PARTITION_4.size
        wanted[topic, index] = RequestedPartition(index, epoch, offset, size)
    if flexible:
        position = skip_tags(view, position, budget)
    return position


def _forgotten(
    view: memoryview,
    position: int,
    version: int,
    forgotten: list[PartitionKey],
    budget: DecodeBudget,
) -> int:
    flexible = version >= _FLEXIBLE
    count, position = read_array_length(view, position, flexible)
    if count < 0:
        raise Corrupt("no forgotten topics")
    budget.charge(count * _TOPIC_BYTES)
    for _ in range(count):
        topic, position = _topic(view, position, version, budget)
        length, position = read_array_length(view, position, flexible)
        if length < 0:
            raise Corrupt("a forgotten topic without partitions")
        budget.charge(length * _KEY_BYTES)
        for _ in range(length):
            (index,) = I32.unpack_from(view, position)
            forgotten.append((topic, index))
            position += 4
        if flexible:
            position = skip_tags(view, position, budget)
    return position
