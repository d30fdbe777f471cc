"""Sift the records of a batch for a compacted log: note each key's last offset, then keep the last record of each key.

In: the restored records of batches, and bounds as numbers. Out: the keys' last offsets, and the bytes of the records
that stay; or each key's last value. It never changes an offset, and makes no object for a record that goes but its key.

Compiled by mypyc like `walk` (`hatch_build.py`, docs/decisions/0024), so it asks Python for numbers, bytes and arrays
only. A record: see `records`. Kafka: `SkimpyOffsetMap`, `Cleaner.buildOffsetMapForSegment` and `shouldRetainRecord`.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final
from zlib import crc32

from crc32c import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mypy_extensions import i64

__all__ = [
    "BYTES_A_KEY",
    "KeyOffsets",
    "LastValues",
    "last_values",
    "note",
    "plain_values",
    "restamp",
    "sift",
]

BYTES_A_KEY: Final = 24
"""What one place of `KeyOffsets` takes, as in Kafka's `SkimpyOffsetMap`."""
_PARTS: Final = 64
_LEAST: Final = 6
"""Attributes, two deltas, two lengths and a count: a byte each."""
_HEADER: Final = 61
"""The bytes of a batch before its records (`batch`)."""


class KeyOffsets:
    """The last offset of each key, in a table of bounded size. A key counts as its 128-bit hash, as in Kafka.

    Kafka hashes by MD5. This is two of Python's keyed hashes (SipHash, a new secret for each process): a table lives
    within one process, and they take a tenth of the time.
    """

    def __init__(self, places: i64) -> None:
        self.places: i64 = max(places, 1)
        self.count: i64 = 0
        self._table = array("q", [0]) * (3 * int(self.places))

    def put(self, key: bytes, offset: i64) -> None:
        """Note that `key` is at `offset`. One place at least must be free."""
        first: i64 = hash(key)
        second: i64 = hash(key + b"\x01")
        table = self._table
        at: i64 = (first % self.places) * 3
        while table[at + 2] != 0:
            if table[at] == first and table[at + 1] == second:
                table[at + 2] = offset + 1
                return
            at += 3
            if at == 3 * self.places:
                at = 0
        table[at] = first
        table[at + 1] = second
        table[at + 2] = offset + 1
        self.count += 1

    def last(self, key: bytes) -> i64:
        """The last offset noted of `key`, -1 for none. One place at least must be free."""
        first: i64 = hash(key)
        second: i64 = hash(key + b"\x01")
        table = self._table
        at: i64 = (first % self.places) * 3
        while True:
            offset: i64 = table[at + 2]
            if offset == 0:
                return -1
            if table[at] == first and table[at + 1] == second:
                return offset - 1
            at += 3
            if at == 3 * self.places:
                at = 0


def _varint(data: bytes, at: i64) -> tuple[i64, i64]:
    """The zigzag varint at `at`, of 63 bits at most, and the position after it; past the end where it has none."""
    value: i64 = 0
    shift: i64 = 0
    while shift < 63:
        byte: i64 = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
    return 0, len(data) + 1


def _fields(data: bytes, at: i64) -> tuple[i64, i64, i64, i64, i64, i64]:
    """A record at `at`: (its end, timestamp delta, offset delta, its key's position and end, its value's length).

    The end is -1 where the record is not what its length says; a null key has position -1, a null value length -1.
    Raises IndexError behind the last byte.
    """
    length, at = _varint(data, at)
    end: i64 = at + length
    if length < _LEAST or end > len(data):
        return -1, 0, 0, 0, 0, 0
    timestamp, at = _varint(data, at + 1)
    offset, at = _varint(data, at)
    size, at = _varint(data, at)
    key: i64 = at if size >= 0 else -1
    key_end: i64 = at + size if size >= 0 else at
    if key_end >= end:
        return -1, 0, 0, 0, 0, 0
    value, at = _varint(data, key_end)
    if value > 0:
        at += value
    if at >= end:
        return -1, 0, 0, 0, 0, 0
    return end, timestamp, offset, key, key_end, value


def note(
    data: bytes, count: i64, base_offset: i64, first_offset: i64, keys: KeyOffsets, keys_max: i64
) -> i64:
    """Note the keys of a batch's `count` records that lie at `first_offset` or beyond.

    Returns how many records were looked at: fewer than `count` where a key more would exceed `keys_max`, -1 where a
    record is unsound.
    """
    at: i64 = 0
    index: i64 = 0
    try:
        while index < count:
            end, _, delta, key, key_end, _ = _fields(data, at)
            if end < 0:
                return -1
            if key >= 0 and base_offset + delta >= first_offset:
                if keys.count >= keys_max:
                    return index
                keys.put(data[key:key_end], base_offset + delta)
            at = end
            index += 1
    except IndexError:
        return -1
    return count if at == len(data) else -1


class LastValues:
    """The last value of each key, in many dictionaries.

    A dictionary grows in one step, which takes 40 to 150 ms at 700,000 keys. A key's dictionary depends on the key
    alone, so that `take` has one order in every process.
    """

    def __init__(self) -> None:
        self._parts: list[dict[bytes, bytes]] = [{} for _ in range(_PARTS)]

    def put(self, key: bytes, value: bytes) -> None:
        """Replace the key's value."""
        self._parts[crc32(key) % _PARTS][key] = value

    def drop(self, key: bytes) -> None:
        """Remove the key, if it is known."""
        self._parts[crc32(key) % _PARTS].pop(key, None)

    def take(self) -> Iterator[tuple[bytes, bytes]]:
        """Return each key with its value, and release them part by part: all at once takes as long as to grow."""
        while self._parts:
            yield from self._parts.pop().items()


def last_values(data: bytes, count: i64, values: LastValues) -> bool:
    """Put the last value of each key of a batch's `count` records in `values`; a tombstone takes its key out.

    False for what only a reader of records can judge: one that is unsound, or has no key, or has headers. Some records
    may be in `values` then: to replay the whole batch again is right.
    """
    at: i64 = 0
    try:
        while count > 0:
            end, _, _, key, key_end, size = _fields(data, at)
            if end < 0 or key < 0 or size < -1:
                return False
            _, value = _varint(data, key_end)
            rest: i64 = value + size if size > 0 else value
            if rest + 1 != end or data[rest] != 0:
                return False
            if size < 0:
                values.drop(data[key:key_end])
            else:
                values.put(data[key:key_end], data[value:rest])
            at = end
            count -= 1
    except IndexError:
        return False
    return at == len(data)


def plain_values(data: bytes, at: i64, stop: i64, values: LastValues) -> i64:
    """Do as `last_values` for the batches at `at` and behind it that begin before `stop`, a header's work included.

    Return the position of the first batch that was not taken: it is not whole or not sound, is compressed, has control
    records or a transaction, or `last_values` does not take it.
    """
    while at < stop and at + _HEADER <= len(data):
        size: i64 = 12 + _number(data, at + 8)
        attributes: i64 = data[at + 22] & 0x37
        if size < _HEADER or at + size > len(data) or data[at + 16] != 2 or attributes:
            return at
        end: i64 = at + size
        crc: i64 = crc32c(data[at + 21 : end])
        if crc != _number(data, at + 17):
            return at
        if not last_values(data[at + _HEADER : end], _number(data, at + 57), values):
            return at
        at = end
    return at


def _number(data: bytes, at: i64) -> i64:
    """Return four bytes as an unsigned number; `walk` has the same: a call across compiled modules makes objects."""
    first: i64 = data[at]
    second: i64 = data[at + 1]
    third: i64 = data[at + 2]
    fourth: i64 = data[at + 3]
    return first << 24 | second << 16 | third << 8 | fourth


def sift(  # noqa: PLR0912, PLR0913, PLR0917 - as `walk`
    data: bytes,
    count: i64,
    base_offset: i64,
    last_noted: i64,
    keeps_tombstones: bool,  # noqa: FBT001 - called by position, as compiled code is fastest
    keys: KeyOffsets,
    kept: list[bytes],
) -> tuple[i64, i64, i64]:
    """Append to `kept` the bytes of the records that stay: (how many, their largest timestamp delta, tombstones).

    A record above `last_noted` stays. Below, it stays as the last one of its key, if it has a value or tombstones are
    kept; a record without a key goes. The first number is -1 where a record is unsound.
    """
    at: i64 = 0
    index: i64 = 0
    start: i64 = 0  # where the records begin that stay and are not in `kept` yet
    stay: i64 = 0
    latest: i64 = -(1 << 62)
    tombstones: i64 = 0
    try:
        while index < count:
            end, timestamp, delta, key, key_end, value = _fields(data, at)
            if end < 0:
                return -1, 0, 0
            offset: i64 = base_offset + delta
            stays: bool = True
            if offset <= last_noted:
                if key < 0 or (value < 0 and not keeps_tombstones):
                    stays = False
                else:
                    stays = keys.last(data[key:key_end]) <= offset
            if stays:
                stay += 1
                if timestamp > latest:  # noqa: PLR1730 - compiled, max() would make objects
                    latest = timestamp
                if value < 0:
                    tombstones += 1
            else:
                if at > start:
                    kept.append(data[start:at])
                start = end
            at = end
            index += 1
    except IndexError:
        return -1, 0, 0
    if at != len(data):
        return -1, 0, 0
    if at > start:
        kept.append(data[start:at])
    return stay, latest, tombstones


def restamp(data: bytes, count: i64, shift: i64) -> bytes:
    """The same `count` sound records with `shift` added to each timestamp delta, for another base timestamp."""
    out = bytearray()
    at: i64 = 0
    while count > 0:
        length, at = _varint(data, at)
        end: i64 = at + length
        delta, rest = _varint(data, at + 1)
        timestamp: i64 = delta + shift
        _put(out, 1 + _size(timestamp) + end - rest)
        out.append(data[at])
        _put(out, timestamp)
        out += data[rest:end]
        at = end
        count -= 1
    return bytes(out)


def _zigzag(value: i64) -> i64:
    return (value << 1) ^ (value >> 63)


def _size(value: i64) -> i64:
    """The bytes of a zigzag varint; timestamps need fewer than 63 bits."""
    left: i64 = _zigzag(value) >> 7
    size: i64 = 1
    while left > 0:
        size += 1
        left >>= 7
    return size


def _put(out: bytearray, value: i64) -> None:
    left: i64 = _zigzag(value)
    while left > 127:
        out.append(int(left & 127) | 128)
        left >>= 7
    out.append(int(left))
