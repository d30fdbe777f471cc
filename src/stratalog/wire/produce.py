"""Produce requests, read without copying the records, and their answers.

In: a request's body as a view and a budget, or a `ProduceRequest`; an answer. Out: the other of the two; the answer's
bytes. Records stay views into the request's own memory; it never looks into them.

Versions 3 to 13. 3: transactional id, record batches v2. 7: zstd may be used. 9: flexible. 13: topic ids instead of
names (KIP-516). 4-6, 8, 10-12 changed answers or meaning only. Answers: 5 log start offset, 8 error message and record
errors, 10 current leader (never told). kio reads and writes these too, but copies the records, and takes its time.
"""

# ruff: noqa: FBT001 - called for every field of a message: keywords would cost

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from stratalog.errors import Corrupt, ErrorCode, Rejected
from stratalog.ports import Buffer
from stratalog.wire.budget import (
    ARRAY_BYTES,
    ITEM_BYTES,
    UUID_BYTES,
    DecodeBudget,
    struct_bytes,
)
from stratalog.wire.ids import ZERO_ID, topic_id_of
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

__all__ = [
    "ProducePartition",
    "ProduceRequest",
    "ProduceResponse",
    "ProduceTopic",
    "ProducedPartition",
    "ProducedTopic",
    "decode",
    "encode",
    "encode_response",
]

_FLEXIBLE: Final = 9
_TOPIC_IDS: Final = 13
_LOG_START: Final = 5
_MESSAGES: Final = 8
_TOPIC_BYTES: Final = ARRAY_BYTES + ITEM_BYTES + struct_bytes(3) + UUID_BYTES
_VIEW_BYTES: Final = 184
_PARTITION_BYTES: Final = ITEM_BYTES + struct_bytes(2) + _VIEW_BYTES
_PRODUCED_3: Final = Struct(">ihqq")
_PRODUCED_5: Final = Struct(">ihqqq")
_ACKS_TIMEOUT: Final = Struct(">hi")
_NO_ERRORS: Final = b"\0\0\0\0\xff\xff"
_NO_ERRORS_FLEXIBLE: Final = b"\x01\0"
_INLINE_BYTES: Final = 4096


class ProducePartition(NamedTuple):
    """`records` is a view of the request's memory, None where the field was null."""

    index: int  # type: ignore[assignment]  # the protocol's name; tuple's own method is not used
    records: memoryview | None


class ProduceTopic(NamedTuple):
    """Named by `name` up to version 12 (then `topic_id` is None), by `topic_id` from 13 on (then `name` is "")."""

    name: str
    topic_id: UUID | None
    partitions: list[ProducePartition]


class ProduceRequest(NamedTuple):
    """`acks`: 0 no answer, 1 the leader, -1 all in-sync replicas; others are Kafka's INVALID_REQUIRED_ACKS."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[ProduceTopic]


class ProducedPartition(NamedTuple):
    """Where a partition's batches went; offsets -1 and maybe a message where `error_code` is not 0.

    `record_errors`: the index in the batch and a reason for each record at fault, where single ones are.
    """

    index: int  # type: ignore[assignment]  # the protocol's name; tuple's own method is not used
    error_code: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    record_errors: Sequence[tuple[int, str]] = ()


class ProducedTopic(NamedTuple):
    """As `ProduceTopic`."""

    name: str
    topic_id: UUID | None
    partitions: Sequence[ProducedPartition]


class ProduceResponse(NamedTuple):
    """The answer to a `ProduceRequest`. Versions that lack a field drop it."""

    topics: Sequence[ProducedTopic]
    throttle_time_ms: int = 0


def decode(view: memoryview, version: int, budget: DecodeBudget) -> ProduceRequest:
    """Return the request whose body `view` holds.

    Raises Rejected(INVALID_REQUEST) where it holds none, OverBudget where the request would take too much memory.
    """
    try:
        return _request(view, version >= _FLEXIBLE, version >= _TOPIC_IDS, budget)
    except ENDED as error:
        raise Rejected(ErrorCode.invalid_request, f"not a produce request: {error}") from error


def _request(
    view: memoryview, flexible: bool, topic_ids: bool, budget: DecodeBudget
) -> ProduceRequest:
    transactional_id, position = read_string(view, 0, flexible, budget)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(view, position)
    count, position = read_array_length(view, position + _ACKS_TIMEOUT.size, flexible)
    if count < 0:
        raise Corrupt("no topics")
    budget.charge(count * _TOPIC_BYTES)
    topics = []
    for _ in range(count):
        topic, position = _topic(view, position, flexible, topic_ids, budget)
        topics.append(topic)
    if flexible:
        skip_tags(view, position, budget)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _topic(
    view: memoryview, position: int, flexible: bool, topic_ids: bool, budget: DecodeBudget
) -> tuple[ProduceTopic, int]:
    topic_id = None
    name = ""
    if topic_ids:
        if position + 16 > len(view):
            raise Corrupt("a topic id runs past the end")
        topic_id = topic_id_of(bytes(view[position : position + 16]))
        position += 16
    else:
        found, position = read_string(view, position, flexible, budget)
        if found is None:
            raise Corrupt("a topic without a name")
        name = found
    count, position = read_array_length(view, position, flexible)
    if count < 0:
        raise Corrupt("a topic without partitions")
    budget.charge(count * _PARTITION_BYTES)
    partitions = []
    for _ in range(count):
        (index,) = I32.unpack_from(view, position)
        records, position = read_bytes(view, position + 4, flexible)
        if flexible:
            position = skip_tags(view, position, budget)
        partitions.append(ProducePartition(index, records))
    if flexible:
        position = skip_tags(view, position, budget)
    return ProduceTopic(name, topic_id, partitions), position


def encode(request: ProduceRequest, version: int) -> list[Buffer]:
    """The body in pieces; records of more than a few kilobytes are pieces of their own, not copied."""
    flexible = version >= _FLEXIBLE
    pieces: list[Buffer] = []
    out = bytearray()
    write_string(out, request.transactional_id, flexible)
    out += _ACKS_TIMEOUT.pack(request.acks, request.timeout_ms)
    write_length(out, len(request.topics), flexible, I32)
    for topic in request.topics:
        if version >= _TOPIC_IDS:
            out += (topic.topic_id or ZERO_ID).bytes
        else:
            write_string(out, topic.name, flexible)
        out = _partitions(pieces, out, topic.partitions, flexible)
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)
    pieces.append(out)
    return pieces


def _partitions(
    pieces: list[Buffer], out: bytearray, partitions: Sequence[ProducePartition], flexible: bool
) -> bytearray:
    """Write to `out`, move it to `pieces` where records follow it by reference; returns what to go on with."""
    write_length(out, len(partitions), flexible, I32)
    for partition in partitions:
        out += I32.pack(partition.index)
        records = partition.records
        write_length(out, -1 if records is None else len(records), flexible, I32)
        if records is not None:
            if len(records) <= _INLINE_BYTES:
                out += records
            else:
                pieces += (out, records)
                out = bytearray()
        if flexible:
            out.append(0)
    return out


def encode_response(out: bytearray, response: ProduceResponse, version: int) -> None:
    """Append the body of an answer."""
    flexible = version >= _FLEXIBLE
    write_length(out, len(response.topics), flexible, I32)
    for topic in response.topics:
        if version >= _TOPIC_IDS:
            out += (topic.topic_id or ZERO_ID).bytes
        else:
            write_string(out, topic.name, flexible)
        write_length(out, len(topic.partitions), flexible, I32)
        for partition in topic.partitions:
            if version >= _LOG_START:
                out += _PRODUCED_5.pack(*partition[:5])
            else:
                out += _PRODUCED_3.pack(*partition[:4])
            if version >= _MESSAGES:
                # Which records were at fault, where single ones were; then what is wrong with the batch.
                if partition.error_message is None:
                    out += _NO_ERRORS_FLEXIBLE if flexible else _NO_ERRORS
                else:
                    _write_record_errors(out, partition.record_errors, flexible)
                    write_string(out, partition.error_message, flexible)
            if flexible:
                out.append(0)
        if flexible:
            out.append(0)
    out += I32.pack(response.throttle_time_ms)
    if flexible:
        out.append(0)


def _write_record_errors(out: bytearray, errors: Sequence[tuple[int, str]], flexible: bool) -> None:
    write_length(out, len(errors), flexible, I32)
    for index, reason in errors:
        out += I32.pack(index)
        write_string(out, reason, flexible)
        if flexible:
            out.append(0)
