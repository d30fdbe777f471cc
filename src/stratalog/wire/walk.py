"""Walk from record to record through a batch's decompressed records, and check that a consumer can read them; walk
from batch to batch.

In: bytes and bounds as numbers. Out: the end of the walk, and the reason. It makes no object for a record, so it can
report that a record is unsound, and few details.

Compiled: `hatch_build.py` has mypyc make an extension of this very file, which is
imported instead of it where it lies beside it. Interpreted it takes 0.6 µs a record, compiled 0.01: it is what a broker
does with every record produced (docs/decisions/0009). Hence numbers that fit 64 bits, and nothing that mypyc would have
to ask Python for. A record: see `records`. Kafka: `DefaultRecord.readFrom`, `LogValidator.validateRecord`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mypy_extensions import i64

__all__ = ["FINE", "NO_KEY", "OUT_OF_TIME", "UNSOUND", "pass_batches", "walk"]

FINE: Final = 0
"""All requested records are sound."""
UNSOUND: Final = 1
"""The record's length or offset delta is wrong; the walk cannot continue."""
NO_KEY: Final = 2
"""The record lacks a required key; the walk may continue behind it."""
OUT_OF_TIME: Final = 3
"""The record's timestamp is out of bounds; the walk may continue behind it."""

_HEADER: Final = 61
"""The bytes of a batch before its records (`batch`)."""
_NO_TIMESTAMP: Final = -1
_LEAST: Final = 6
"""Attributes, two deltas, two lengths and a count: a byte each."""
_NULL: Final = 1
"""The length -1 as a varint."""
_FAR: Final = 1 << 61
"""Timestamps and deltas of this size are out of any bounds; below it, sums fit 64 bits."""


def _long(data: bytes, at: i64, bits_max: i64) -> tuple[i64, i64]:
    """Return the zigzag varint at `at`, of any length, and the position after it, which is past the end for an
    incomplete varint.
    """
    value: i64 = 0
    shift: i64 = 0
    while shift < bits_max:
        byte: i64 = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
    return 0, len(data) + 1


def _field(data: bytes, at: i64) -> i64:
    """Return the position after a field with a length prefix, which may be null; past the end where the field does not
    fit.
    """
    length: i64 = data[at]
    at += 1
    if length < 128:
        if length & 1 == 0:
            return at + (length >> 1)
        return at if length == 1 else len(data) + 1
    length, at = _long(data, at - 1, 35)
    return at + length if 0 <= length <= len(data) else len(data) + 1


def _headers(data: bytes, at: i64) -> i64:
    """Return the position after a record's headers; past the end where they do not fit."""
    count, at = _long(data, at, 35)
    if count < 0:
        return len(data) + 1
    while count > 0:
        length, at = _long(data, at, 35)
        key_end: i64 = at + length
        if length < 0 or key_end >= len(data) or not _is_text(data, at, key_end):
            return len(data) + 1
        at = _field(data, key_end)
        count -= 1
    return at


def _is_text(data: bytes, at: i64, end: i64) -> bool:
    """Return whether these bytes are UTF-8: most clients read a header's key as text."""
    start: i64 = at
    while at < end:
        if data[at] >= 128:
            try:
                data[start:end].decode()
            except UnicodeDecodeError:
                return False
            return True
        at += 1
    return True


def walk(  # noqa: PLR0912, PLR0913, PLR0915, PLR0917 - a call for each part would cost more than the part itself
    data: bytes,
    at: i64,
    index: i64,
    index_end: i64,
    base_timestamp: i64,
    earliest: i64,
    latest: i64,
    keyed: bool,  # noqa: FBT001 - called by position, as compiled code is fastest
) -> tuple[i64, i64, i64, i64]:
    """Walk from record `index` at position `at` up to `index_end`: (verdict, position, index, largest timestamp).

    With a verdict other than FINE, index is that of the record at fault and position lies behind it; with OUT_OF_TIME
    the last number is the record's own timestamp, or `_FAR` where that may need more than 64 bits. The record with
    index n must have the offset delta n. `earliest` and `latest` bound existing timestamps, in ms; `keyed` demands
    keys. Timestamps are relative to `base_timestamp`; the largest is -1 without any.
    """
    end: i64 = len(data)
    largest: i64 = _NO_TIMESTAMP
    try:
        while index < index_end:
            # Positions only grow, so a field that does not fit shows at the record's end, or at the end of the input.
            length: i64 = data[at]
            at += 1
            if length < 128:
                length = (length >> 1) ^ -(length & 1)
            else:
                length, at = _long(data, at - 1, 35)
            stop: i64 = at + length
            if length < _LEAST or stop > end:
                break
            attributes: i64 = data[at]
            delta: i64 = data[at + 1]
            place: i64 = at + 2
            if delta < 128:
                delta = (delta >> 1) ^ -(delta & 1)
            else:
                delta, place = _long(data, place - 1, 63)
            offset_delta: i64 = data[place]
            place += 1
            if offset_delta < 128:
                offset_delta = (offset_delta >> 1) ^ -(offset_delta & 1)
            else:
                offset_delta, place = _long(data, place - 1, 35)
            has_key: bool = data[place] != _NULL
            place = _field(data, _field(data, place))
            place = place + 1 if data[place] == 0 else _headers(data, place)
            # No bit of the attributes has a meaning; but kafka-python reads a further byte where the highest bit is
            # set.
            if place != stop or offset_delta != index or attributes >= 128:
                break
            at = stop
            if keyed and not has_key:
                return NO_KEY, at, index, largest
            if delta >= _FAR or delta <= -_FAR or base_timestamp >= _FAR or base_timestamp <= -_FAR:
                return OUT_OF_TIME, at, index, _FAR
            timestamp: i64 = base_timestamp + delta
            if timestamp != _NO_TIMESTAMP and (timestamp < earliest or timestamp > latest):
                return OUT_OF_TIME, at, index, timestamp
            if timestamp > largest:  # noqa: PLR1730 - compiled, max() would make objects
                largest = timestamp
            index += 1
    except IndexError:
        return UNSOUND, at, index, largest
    return FINE if index == index_end else UNSOUND, at, index, largest


def pass_batches(data: bytes, at: i64, offset: i64, stop: i64, offset_end: i64) -> tuple[i64, i64]:
    """Walk over whole batches without a gap between their offsets: return the position and the offset behind them.

    The first begins at position `at` and at `offset`. None ends behind `stop` or behind `offset_end`, and each has a
    header of magic 2; the walk ends before any other. It checks no CRC.
    """
    stop = min(stop, len(data))
    while at + _HEADER <= stop:
        behind: i64 = at + 12 + _number(data, at + 8)
        next_offset: i64 = offset + 1 + _number(data, at + 23)
        if behind < at + _HEADER or behind > stop or next_offset > offset_end:
            break
        if _number(data, at) << 32 | _number(data, at + 4) != offset:
            break
        if data[at + 16] != 2 or data[at + 23] > 127:  # a negative offset delta
            break
        at = behind
        offset = next_offset
    return at, offset


def _number(data: bytes, at: i64) -> i64:
    """Return four bytes as an unsigned number; `sift` has the same: a call across compiled modules makes objects."""
    first: i64 = data[at]
    second: i64 = data[at + 1]
    third: i64 = data[at + 2]
    fourth: i64 = data[at + 3]
    return first << 24 | second << 16 | third << 8 | fourth
