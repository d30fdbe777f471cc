"""Helpers of the generated readers and writers of `wire/messages`: long lengths, arrays of primitives, tags, records.

In: a buffer and a position, or values. Out: values and the next position, or bytes. It never knows a message.

A compact length (KIP-482) is an unsigned varint of the length + 1, 0 for null. Nearly all lengths have one byte,
which readers and writers handle inline; they call these functions for the others.
"""

from collections.abc import Sequence
from struct import Struct, pack, unpack_from
from struct import error as struct_error
from typing import Final, TypeVar
from uuid import UUID

from stratalog.errors import Corrupt, ErrorCode, Rejected
from stratalog.ports import Buffer
from stratalog.wire.budget import (
    ITEM_BYTES,
    NUMBER_BYTES,
    STRING_BYTES,
    TAG_BYTES,
    UUID_BYTES,
    DecodeBudget,
)
from stratalog.wire.ids import topic_id_of
from stratalog.wire.varint import encode_unsigned, read_unsigned

__all__ = [
    "UNREADABLE",
    "Cuts",
    "bad_count",
    "bad_tag",
    "by_version",
    "charge_more_items",
    "null_field",
    "past_end",
    "read_compact_numbers",
    "read_compact_strings",
    "read_compact_uuids",
    "read_long_size",
    "read_longer_size",
    "read_numbers",
    "read_strings",
    "read_tag_count",
    "read_uuids",
    "skip_tags",
    "spliced",
    "unsupported_field",
    "write_compact_numbers",
    "write_compact_records",
    "write_compact_strings",
    "write_compact_uuids",
    "write_numbers",
    "write_records",
    "write_strings",
    "write_tag",
    "write_uuids",
]

UNREADABLE: Final = (Corrupt, struct_error, IndexError, UnicodeDecodeError)
"""Exceptions of a generated reader for malformed data."""

Records = memoryview | Sequence[Buffer] | None
"""One buffer, or several consecutive ones."""

Cuts = list[tuple[int, Sequence[Buffer]]]
"""Places of records that were not copied: a position in the written bytes, and the buffers."""

FunctionT = TypeVar("FunctionT")
_INLINE_BYTES: Final = 4096
_I16: Final = Struct(">h")
_I32: Final = Struct(">i")
_ITEM_SIZES: Final = {"b": 1, "h": 2, "i": 4, "q": 8}
_NUMBER: Final = ITEM_BYTES + NUMBER_BYTES


def bad_count(name: str, count: int, left: int) -> Corrupt:
    """Return the error of an array that is null, or has more items than there are bytes left."""
    if count < 0:
        return null_field(name)
    return Corrupt(f"{name}: an array of {count} items in {left} bytes")


def charge_more_items(count: int, left: int, each: int, budget: DecodeBudget, name: str) -> None:
    """Check the number of an array's items, and charge all but the first, which is charged with the array.

    Raises Corrupt for null, and for more items than the `left` bytes can hold.
    """
    if not 0 <= count <= left:
        raise bad_count(name, count, left)
    if count:
        budget.charge((count - 1) * each)


def null_field(name: str) -> Corrupt:
    """Return the error of a field that is null in a version where it must not be."""
    return Corrupt(f"{name} must not be null")


def bad_tag(tag: int) -> Corrupt:
    """Return the error of a tagged field whose content is longer or shorter than its size."""
    return Corrupt(f"tag {tag} does not fill its size")


def past_end(position: int, size: int) -> Corrupt:
    """Return the error of a message whose last field would end at `position` of `size` bytes."""
    return Corrupt(f"a field runs {position - size} bytes past the end")


def unsupported_field(message: str, name: str) -> Rejected:
    """Return the error of a request with a value that its version cannot carry."""
    return Rejected(
        ErrorCode.unsupported_version,
        f"{message}: the broker's version of this API has no {name}; leave it out, or use a newer broker",
    )


def read_long_size(data: Buffer, position: int, size: int, name: str) -> tuple[int, int]:
    """Return a compact length + 1 and the position of its last byte; `size` is its first byte, at `position`.

    Raises Corrupt where it is null.
    """
    if size:
        size, position = read_longer_size(data, position)
    if size == 0:
        raise null_field(name)
    return size, position


def read_longer_size(data: Buffer, position: int) -> tuple[int, int]:
    """Return the compact length + 1 at `position`, which has more than one byte, and the position of its last byte.

    Raises Corrupt for a length of several bytes that is zero: its content would begin before its end.
    """
    size, position = read_unsigned(data, position)
    if size == 0:
        raise Corrupt("a null length of several bytes")
    return size, position - 1


def read_strings(
    data: bytes, position: int, count: int, budget: DecodeBudget, name: str
) -> tuple[tuple[str, ...], int]:
    """Return `count` strings with lengths of two bytes, and the position after them."""
    if not 0 <= 2 * count <= len(data) - position:
        raise bad_count(name, count, len(data) - position)
    budget.charge(count * (ITEM_BYTES + STRING_BYTES))
    strings = []
    for _ in range(count):
        (size,) = _I16.unpack_from(data, position)
        if size < 0:
            raise null_field(name)
        position += 2 + size
        strings.append(data[position - size : position].decode())
    return tuple(strings), position


def read_compact_strings(
    data: bytes, position: int, count: int, budget: DecodeBudget, name: str
) -> tuple[tuple[str, ...], int]:
    """Return strings with compact lengths and the position after them; `count` is as for `read_compact_numbers`."""
    if count > 127:
        count, position = read_unsigned(data, position - 1)
    count -= 1
    if not 0 <= count <= len(data) - position:
        raise bad_count(name, count, len(data) - position)
    budget.charge(count * (ITEM_BYTES + STRING_BYTES))
    strings = []
    for _ in range(count):
        size = data[position]
        if not 0 < size < 128:
            size, position = read_long_size(data, position, size, name)
        strings.append(data[position + 1 : position + size].decode())
        position += size
    return tuple(strings), position


def read_compact_uuids(
    data: bytes, position: int, count: int, budget: DecodeBudget, name: str
) -> tuple[tuple[UUID, ...], int]:
    """Return ids and the position after them; `count` is as for `read_compact_numbers`."""
    if count > 127:
        count, position = read_unsigned(data, position - 1)
    return read_uuids(data, position, count - 1, budget, name)


def read_uuids(
    data: bytes, position: int, count: int, budget: DecodeBudget, name: str
) -> tuple[tuple[UUID, ...], int]:
    """Return `count` ids and the position after them."""
    end = position + 16 * count
    if count < 0 or end > len(data):
        raise bad_count(name, count, len(data) - position)
    budget.charge(count * (ITEM_BYTES + UUID_BYTES))
    return tuple([topic_id_of(data[at : at + 16]) for at in range(position, end, 16)]), end


def read_compact_numbers(
    data: bytes, position: int, count: int, letter: str, budget: DecodeBudget, name: str
) -> tuple[tuple[int, ...], int]:
    """Return integers of `struct`'s type `letter`, and the position after them.

    `count` is the first byte of the compact length, which has been read.
    """
    if count > 127:
        count, position = read_unsigned(data, position - 1)
    return read_numbers(data, position, count - 1, letter, budget, name)


def read_numbers(
    data: bytes, position: int, count: int, letter: str, budget: DecodeBudget, name: str
) -> tuple[tuple[int, ...], int]:
    """Return `count` integers of `struct`'s type `letter`, and the position after them."""
    end = position + _ITEM_SIZES[letter] * count
    if count < 0 or end > len(data):
        raise bad_count(name, count, len(data) - position)
    budget.charge(count * _NUMBER)
    return unpack_from(f">{count}{letter}", data, position), end


def read_tag_count(
    data: Buffer, position: int, count: int, budget: DecodeBudget
) -> tuple[int, int]:
    """Return the number of tagged fields and their position; `count` is the first byte, which has been read."""
    if count > 127:
        count, position = read_unsigned(data, position - 1)
    if 2 * count > len(data) - position:
        raise bad_count("tagged fields", count, len(data) - position)
    budget.charge(count * TAG_BYTES)
    return count, position


def skip_tags(data: Buffer, position: int, count: int, budget: DecodeBudget) -> int:
    """Return the position after tagged fields that are all unknown, of which the first byte has been read."""
    count, position = read_tag_count(data, position, count, budget)
    for _ in range(count):
        _tag, position = read_unsigned(data, position)
        size, position = read_unsigned(data, position)
        position += size
    return position


def write_strings(out: bytearray, values: Sequence[str]) -> None:
    """Append strings with lengths of two bytes."""
    for value in values:
        raw = value.encode()
        out += _I16.pack(len(raw))
        out += raw


def write_compact_strings(out: bytearray, values: Sequence[str]) -> None:
    """Append a compact length, and strings that have one each."""
    out += encode_unsigned(len(values) + 1)
    for value in values:
        raw = value.encode()
        out += encode_unsigned(len(raw) + 1)
        out += raw


def write_uuids(out: bytearray, values: Sequence[UUID]) -> None:
    """Append ids."""
    for value in values:
        out += value.bytes


def write_compact_uuids(out: bytearray, values: Sequence[UUID]) -> None:
    """Append a compact length and ids."""
    out += encode_unsigned(len(values) + 1)
    for value in values:
        out += value.bytes


def write_compact_numbers(out: bytearray, values: Sequence[int], letter: str) -> None:
    """Append a compact length and integers of `struct`'s type `letter`."""
    size = len(values) + 1
    if size < 128:
        out += pack(f">B{size - 1}{letter}", size, *values)
    else:
        out += encode_unsigned(size)
        write_numbers(out, values, letter)


def write_numbers(out: bytearray, values: Sequence[int], letter: str) -> None:
    """Append integers of `struct`'s type `letter`."""
    out += pack(f">{len(values)}{letter}", *values)


def write_tag(out: bytearray, tag: int, content: bytearray) -> None:
    """Append one tagged field."""
    out += encode_unsigned(tag)
    out += encode_unsigned(len(content))
    out += content


def write_records(out: bytearray, records: Records, cuts: Cuts) -> None:
    """Append records with a length of four bytes, or note the place of larger ones in `cuts`."""
    if records is None:
        out += _I32.pack(-1)
        return
    buffers = (records,) if isinstance(records, memoryview) else records
    size = 0
    for buffer in buffers:
        size += len(buffer)
    out += _I32.pack(size)
    if size > _INLINE_BYTES:
        cuts.append((len(out), buffers))
    else:
        for buffer in buffers:
            out += buffer


def write_compact_records(out: bytearray, records: Records, cuts: Cuts) -> None:
    """Append records as `write_records`, with a compact length."""
    if records is None:
        out.append(0)
        return
    buffers = (records,) if isinstance(records, memoryview) else records
    size = 0
    for buffer in buffers:
        size += len(buffer)
    out += encode_unsigned(size + 1)
    if size > _INLINE_BYTES:
        cuts.append((len(out), buffers))
    else:
        for buffer in buffers:
            out += buffer


def spliced(out: bytearray, cuts: Cuts) -> list[Buffer]:
    """Return buffers of `out` with the records of `cuts` inserted; the first buffer is `out`, shortened."""
    if not cuts:
        return [out]
    pieces: list[Buffer] = []
    end = len(out)
    for position, buffers in reversed(cuts):
        if position < end:
            pieces.append(bytes(out[position:end]))
        pieces += reversed(buffers)
        end = position
    del out[end:]
    pieces.append(out)
    pieces.reverse()
    return pieces


def by_version(functions: dict[int, FunctionT], newest: int) -> dict[int, FunctionT]:
    """Return version -> function up to `newest`; each key of `functions` also covers the following versions."""
    first, *others = sorted(functions)
    ends = [*others, newest + 1]
    return {
        version: functions[begin]
        for begin, end in zip((first, *others), ends, strict=True)
        for version in range(begin, end)
    }
