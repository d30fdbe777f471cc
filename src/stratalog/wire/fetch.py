"""Fetch responses, written and read without copying the records.

In: a `FetchResponse` whose records are views, or a response's body. Out: the other. It never looks into records.
What many readers are told is written once (`encode_topics`), and for each of them only its session before it.

Versions 4 to 18. 4: last stable offset, aborted transactions. 5: log start offset. 7: sessions and a top-level error.
11: preferred read replica. 12: flexible; diverging epoch, current leader, snapshot id. 13: topic ids instead of names
(KIP-516). 16: node endpoints (KIP-951). 6, 8-10, 14, 15, 17, 18 changed meaning only. kio reads these too, but copies.
"""

# ruff: noqa: FBT001, FBT003 - called for every field of a message: keywords would cost

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from stratalog.errors import Corrupt
from stratalog.ports import Buffer
from stratalog.wire.budget import TRUSTED
from stratalog.wire.ids import ZERO_ID
from stratalog.wire.primitives import (
    ENDED,
    I32,
    read_array_length,
    read_bytes,
    read_string,
    skip_tags,
    write_length,
    write_string,
)
from stratalog.wire.varint import encode_unsigned, read_unsigned

__all__ = [
    "EncodedResponse",
    "EncodedTopics",
    "FetchResponse",
    "FetchedPartition",
    "FetchedTopic",
    "NodeEndpoint",
    "decode",
    "encode",
    "encode_topics",
    "write",
]

_LOG_START: Final = 5
_SESSIONS: Final = 7
_PREFERRED: Final = 11
_FLEXIBLE: Final = 12
_TOPIC_IDS: Final = 13
_ENDPOINTS: Final = 16
_INLINE_BYTES: Final = 4096

_THROTTLE_ERROR_SESSION: Final = Struct(">ihi")
_PARTITION_4: Final = Struct(">ihqq")
_PARTITION_5: Final = Struct(">ihqqq")
_ABORTED: Final = Struct(">qq")
_EPOCH_OFFSET: Final = Struct(">iq")
_LEADER_EPOCH: Final = Struct(">ii")
_OFFSET_EPOCH: Final = Struct(">qi")
_NO_RECORDS: Final = memoryview(b"")


class FetchedPartition(NamedTuple):
    """What is known of one partition.

    `records` are whole batches: one buffer, or several that follow each other on the wire (`decode` gives one view).
    `aborted`: (producer id, first offset) of each, None where the reader did not ask. The last three are None where
    they do not apply: `diverging_epoch` (epoch, end offset), `current_leader` (leader id, leader epoch), `snapshot_id`
    (end offset, epoch).
    """

    index: int  # type: ignore[assignment]  # the protocol's name; tuple's own method is not used
    error_code: int
    high_watermark: int
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[tuple[int, int]] | None = None
    preferred_read_replica: int = -1
    records: Buffer | Sequence[Buffer] = ()
    diverging_epoch: tuple[int, int] | None = None
    current_leader: tuple[int, int] | None = None
    snapshot_id: tuple[int, int] | None = None


class FetchedTopic(NamedTuple):
    """Named by `name` up to version 12 (then `topic_id` is None), by `topic_id` from 13 on (then `name` is "")."""

    name: str
    topic_id: UUID | None
    partitions: Sequence[FetchedPartition]


@dataclass(frozen=True, slots=True)
class NodeEndpoint:
    """Where a current leader named in the answer listens."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class FetchResponse(NamedTuple):
    """`session_id` 0: the fetch is not part of a session. Versions that lack a field drop it."""

    throttle_time_ms: int
    error_code: int
    session_id: int
    topics: Sequence[FetchedTopic]
    node_endpoints: Sequence[NodeEndpoint] = ()


class EncodedTopics(NamedTuple):
    """What was fetched as one version has it on the wire, for any number of readers; `errors` are the codes in it."""

    pieces: Sequence[Buffer]
    errors: Sequence[int]


class EncodedResponse(NamedTuple):
    """A `FetchResponse` of which only the reader's own part is left to write."""

    throttle_time_ms: int
    error_code: int
    session_id: int
    topics: EncodedTopics


def encode(response: FetchResponse, version: int) -> list[Buffer]:
    """The body in pieces; records of more than a few kilobytes are pieces of their own, not copied."""
    topics = encode_topics(response.topics, version, response.node_endpoints)
    return write(bytearray(), EncodedResponse(*response[:3], topics), version)


def write(out: bytearray, response: EncodedResponse, version: int) -> list[Buffer]:
    """The body behind what is in `out`, in pieces, the first of which is `out`."""
    throttle_time_ms, error_code, session_id, topics = response
    if version >= _SESSIONS:
        out += _THROTTLE_ERROR_SESSION.pack(throttle_time_ms, error_code, session_id)
    else:
        out += I32.pack(throttle_time_ms)
    pieces = [out, *topics.pieces]
    out += pieces.pop(1)
    return pieces


def encode_topics(
    topics: Sequence[FetchedTopic], version: int, node_endpoints: Sequence[NodeEndpoint] = ()
) -> EncodedTopics:
    """The body from the topics to its end; the first piece is small."""
    flexible = version >= _FLEXIBLE
    pieces: list[Buffer] = []
    errors = []
    out = bytearray()
    write_length(out, len(topics), flexible, I32)
    for topic in topics:
        if version >= _TOPIC_IDS:
            out += (topic.topic_id or ZERO_ID).bytes
        else:
            write_string(out, topic.name, flexible)
        write_length(out, len(topic.partitions), flexible, I32)
        for partition in topic.partitions:
            if partition.error_code:
                errors.append(int(partition.error_code))
            out = _write_partition(pieces, out, partition, version)
        if flexible:
            out.append(0)
    if flexible:
        _write_endpoints(out, node_endpoints if version >= _ENDPOINTS else ())
    pieces.append(out)
    return EncodedTopics(pieces, errors)


def _write_partition(
    pieces: list[Buffer], out: bytearray, partition: FetchedPartition, version: int
) -> bytearray:
    """Write to `out`, move it to `pieces` where records follow it by reference; returns what to go on with."""
    flexible = version >= _FLEXIBLE
    common = (
        partition.index,
        partition.error_code,
        partition.high_watermark,
        partition.last_stable_offset,
    )
    if version >= _LOG_START:
        out += _PARTITION_5.pack(*common, partition.log_start_offset)
    else:
        out += _PARTITION_4.pack(*common)
    aborted = partition.aborted
    if aborted is None:
        write_length(out, -1, flexible, I32)
    else:
        write_length(out, len(aborted), flexible, I32)
        for pair in aborted:
            out += _ABORTED.pack(*pair)
            if flexible:
                out.append(0)
    if version >= _PREFERRED:
        out += I32.pack(partition.preferred_read_replica)
    out = _write_records(pieces, out, partition.records, flexible)
    if flexible:
        _write_partition_tags(out, partition)
    return out


def _write_records(
    pieces: list[Buffer], out: bytearray, records: Buffer | Sequence[Buffer], flexible: bool
) -> bytearray:
    buffers: Sequence[Buffer]
    buffers = (records,) if isinstance(records, bytes | bytearray | memoryview) else records
    size = 0
    for buffer in buffers:
        size += len(buffer)
    write_length(out, size, flexible, I32)
    if size <= _INLINE_BYTES:
        for buffer in buffers:
            out += buffer
        return out
    pieces.append(out)
    pieces += buffers
    return bytearray()


def _write_partition_tags(out: bytearray, partition: FetchedPartition) -> None:
    fields = (
        (partition.diverging_epoch, _EPOCH_OFFSET),
        (partition.current_leader, _LEADER_EPOCH),
        (partition.snapshot_id, _OFFSET_EPOCH),
    )
    count_at = len(out)
    out.append(0)
    for tag, (value, layout) in enumerate(fields):
        if value is not None and value != (-1, -1):
            out[count_at] += 1
            out += bytes((tag, layout.size + 1))
            out += layout.pack(*value)
            out.append(0)


def _write_endpoints(out: bytearray, endpoints: Sequence[NodeEndpoint]) -> None:
    if not endpoints:
        out.append(0)
        return
    field = bytearray()
    write_length(field, len(endpoints), True, I32)
    for endpoint in endpoints:
        field += I32.pack(endpoint.node_id)
        write_string(field, endpoint.host, True)
        field += I32.pack(endpoint.port)
        write_string(field, endpoint.rack, True)
        field.append(0)
    out += b"\x01\x00"
    out += encode_unsigned(len(field))
    out += field


def decode(view: memoryview, version: int) -> FetchResponse:
    """The response whose body `view` holds, records as views of it; raises Corrupt where it is none."""
    try:
        return _response(view, version)
    except ENDED as error:
        raise Corrupt(f"not a fetch response: {error}") from error


def _response(view: memoryview, version: int) -> FetchResponse:
    flexible = version >= _FLEXIBLE
    error_code = session_id = 0
    if version >= _SESSIONS:
        throttle_time_ms, error_code, session_id = _THROTTLE_ERROR_SESSION.unpack_from(view, 0)
        position = _THROTTLE_ERROR_SESSION.size
    else:
        (throttle_time_ms,) = I32.unpack_from(view, 0)
        position = 4
    count, position = read_array_length(view, position, flexible)
    if count < 0:
        raise Corrupt("no topics")
    topics = []
    for _ in range(count):
        topic, position = _read_topic(view, position, version)
        topics.append(topic)
    endpoints: list[NodeEndpoint] = []
    if flexible:
        _read_tags(view, position, {0: lambda at: endpoints.extend(_read_endpoints(view, at))})
    return FetchResponse(throttle_time_ms, error_code, session_id, topics, endpoints)


def _read_topic(view: memoryview, position: int, version: int) -> tuple[FetchedTopic, int]:
    flexible = version >= _FLEXIBLE
    topic_id = None
    name = ""
    if version >= _TOPIC_IDS:
        if position + 16 > len(view):
            raise Corrupt("a topic id runs past the end")
        topic_id = UUID(bytes=bytes(view[position : position + 16]))
        position += 16
    else:
        found, position = read_string(view, position, flexible, TRUSTED)
        if found is None:
            raise Corrupt("a topic without a name")
        name = found
    count, position = read_array_length(view, position, flexible)
    if count < 0:
        raise Corrupt("a topic without partitions")
    partitions = []
    for _ in range(count):
        partition, position = _read_partition(view, position, version)
        partitions.append(partition)
    if flexible:
        position = skip_tags(view, position, TRUSTED)
    return FetchedTopic(name, topic_id, partitions), position


def _read_partition(view: memoryview, position: int, version: int) -> tuple[FetchedPartition, int]:
    flexible = version >= _FLEXIBLE
    log_start_offset = preferred = -1
    if version >= _LOG_START:
        index, error_code, high_watermark, stable, log_start_offset = _PARTITION_5.unpack_from(
            view, position
        )
        position += _PARTITION_5.size
    else:
        index, error_code, high_watermark, stable = _PARTITION_4.unpack_from(view, position)
        position += _PARTITION_4.size
    aborted, position = _read_aborted(view, position, flexible)
    if version >= _PREFERRED:
        (preferred,) = I32.unpack_from(view, position)
        position += 4
    records, position = read_bytes(view, position, flexible)
    tagged: dict[int, tuple[int, int]] = {}
    if flexible:
        position = _read_partition_tags(view, position, tagged)
    partition = FetchedPartition(
        index,
        error_code,
        high_watermark,
        stable,
        log_start_offset,
        aborted,
        preferred,
        _NO_RECORDS if records is None else records,
        tagged.get(0),
        tagged.get(1),
        tagged.get(2),
    )
    return partition, position


def _read_aborted(
    view: memoryview, position: int, flexible: bool
) -> tuple[list[tuple[int, int]] | None, int]:
    count, position = read_array_length(view, position, flexible)
    if count < 0:
        return None, position
    aborted = []
    for _ in range(count):
        producer_id, first_offset = _ABORTED.unpack_from(view, position)
        position += _ABORTED.size
        if flexible:
            position = skip_tags(view, position, TRUSTED)
        aborted.append((producer_id, first_offset))
    return aborted, position


def _read_partition_tags(
    view: memoryview, position: int, tagged: dict[int, tuple[int, int]]
) -> int:
    if view[position] == 0:
        return position + 1

    def keep(tag: int, layout: Struct) -> Callable[[int], None]:
        def read(at: int) -> None:
            first, second = layout.unpack_from(view, at)
            skip_tags(view, at + layout.size, TRUSTED)
            tagged[tag] = (first, second)

        return read

    known = {0: keep(0, _EPOCH_OFFSET), 1: keep(1, _LEADER_EPOCH), 2: keep(2, _OFFSET_EPOCH)}
    return _read_tags(view, position, known)


def _read_tags(view: memoryview, position: int, known: dict[int, Callable[[int], None]]) -> int:
    """Call the reader of each known tag with its position; returns the position after the section."""
    count, position = read_unsigned(view, position)
    for _ in range(count):
        tag, position = read_unsigned(view, position)
        size, position = read_unsigned(view, position)
        if position + size > len(view):
            raise Corrupt("a tagged field runs past the end")
        read = known.get(tag)
        if read is not None:
            read(position)
        position += size
    return position


def _read_endpoints(view: memoryview, position: int) -> list[NodeEndpoint]:
    count, position = read_array_length(view, position, True)
    endpoints = []
    for _ in range(count):
        (node_id,) = I32.unpack_from(view, position)
        host, position = read_string(view, position + 4, True, TRUSTED)
        if host is None:
            raise Corrupt("an endpoint without a host")
        (port,) = I32.unpack_from(view, position)
        rack, position = read_string(view, position + 4, True, TRUSTED)
        position = skip_tags(view, position, TRUSTED)
        endpoints.append(NodeEndpoint(node_id, host, port, rack))
    return endpoints
