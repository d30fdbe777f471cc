"""Sift the records of a batch for a compacted log: note each key's last offset, then keep the last record of each key.

In: the restored records of batches, and bounds as numbers. Out: the keys' last offsets, and the bytes of the records
that stay; or each key's last value. It never changes an offset, and makes no object for a record that goes but its key.

Compiled by mypyc like `walk` (`hatch_build.py`, docs/decisions/0024), so it asks Python for numbers, bytes and arrays
only. A record: see `records`. Kafka: `SkimpyOffsetMap`, `Cleaner.buildOffsetMapForSegment` and `shouldRetainRecord`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from zlib import crc32

from crc32c import crc32c
from librt.strings import BytesWriter, read_i32_be, read_i64_be, write_i32_be, write_i64_be
from librt.vecs import vec
from mypy_extensions import i32, i64

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "BYTES_A_KEY",
    "KeyOffsets",
    "LastValues",
    "Sieve",
    "last_values",
    "note",
    "note_plain",
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
        size: i64 = 3 * self.places
        self._table: vec[i64] = vec[i64]([0] * size)

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

    Return the position of the first batch that was not taken: it is no plain one, or `last_values` does not take it.
    """
    while True:
        end = _plain_end(data, at, stop)
        if end < 0 or not last_values(data[at + _HEADER : end], _count(data, at), values):
            return at
        at = end


def note_plain(  # noqa: PLR0913, PLR0917 - as `sift`
    data: bytes,
    at: i64,
    stop: i64,
    bounds: tuple[i64, i64],
    first_offset: i64,
    keys: KeyOffsets,
    keys_max: i64,
) -> tuple[i64, i64]:
    """Do as `note` for the batches at `at` and behind it that begin before `stop`, a header's work included.

    Return the position of the first batch that was not taken, and the offset behind the last one that was noted (-1 for
    none). Not taken is a batch that is no plain one, has offsets outside [`bounds`) or unsound records, or whose keys
    would exceed `keys_max`.
    """
    next_offset: i64 = -1
    while True:
        end = _plain_end(data, at, stop)
        if end < 0:
            return at, next_offset
        base: i64 = read_i64_be(data, at)
        last: i64 = base + i64(read_i32_be(data, at + 23))
        if last >= first_offset:
            if base < bounds[0] or last < base or last >= bounds[1]:
                return at, next_offset
            count = _count(data, at)
            if note(data[at + _HEADER : end], count, base, first_offset, keys, keys_max) != count:
                return at, next_offset
            next_offset = last + 1
        at = end


def _plain_end(data: bytes, at: i64, stop: i64) -> i64:
    """Return the end of the batch at `at`, -1 where it is no plain one or begins at `stop` or behind it.

    A plain batch is whole and sound, of data outside transactions, and not compressed.
    """
    if at >= stop or at + _HEADER > len(data):
        return -1
    end: i64 = at + 12 + i64(read_i32_be(data, at + 8))
    if end < at + _HEADER or end > len(data) or data[at + 16] != 2 or data[at + 22] & 0x37:
        return -1
    crc: i64 = crc32c(data[at + 21 : end])
    return end if crc == i64(read_i32_be(data, at + 17)) & 0xFFFFFFFF else -1


def _count(data: bytes, at: i64) -> i64:
    return i64(read_i32_be(data, at + 57))


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


class Sieve:
    """What stays of plain batches: the bounds of `sift`, and delete horizons.

    Tombstones of batches below `deletable_end` may go once the batch's delete horizon, epoch milliseconds, is not above
    `wall_ms`. A batch without one gets `horizon`. Of batches that end at `needed` offsets something must stay.
    """

    def __init__(
        self,
        keys: KeyOffsets,
        last_noted: i64,
        wall_ms: i64,
        horizon: i64,
        deletable_end: i64,
        needed: set[int],
    ) -> None:
        self._keys = keys
        self._last_noted: i64 = last_noted
        self._wall_ms: i64 = wall_ms
        self._horizon: i64 = horizon
        self._deletable_end: i64 = deletable_end
        self._needed = needed

    def sift(
        self,
        data: bytes,
        at: i64,
        stop: i64,
        bounds: tuple[i64, i64],
        out: list[bytes],
        kept: list[tuple[int, int, int]],
    ) -> tuple[i64, bool]:
        """Append to `out` what stays of the batches at `at` and behind it that end before `stop`.

        For each batch that stays, append its last offset, size and largest timestamp to `kept`. Return the position of
        the first batch that was not taken, and whether a batch went or changed. Not taken is a batch that is no plain
        one, has offsets outside [`bounds`), no or unsound records, or loses all its records at a needed offset.
        """
        start: i64 = at  # where the batches begin that stay as they are and are not in `out` yet
        is_changed: bool = False
        while True:
            end = _plain_end(data, at, stop)
            count: i64 = _count(data, at) if end >= 0 else 0
            if count <= 0 or end >= stop:
                break
            base: i64 = read_i64_be(data, at)
            last: i64 = base + i64(read_i32_be(data, at + 23))
            if base < bounds[0] or last < base or last >= bounds[1]:
                break
            first_ms: i64 = read_i64_be(data, at + 27)
            has_horizon: bool = data[at + 22] & 0x40 != 0
            may_be_deleted: bool = last < self._deletable_end
            expired: bool = may_be_deleted and has_horizon and first_ms <= self._wall_ms
            pieces: list[bytes] = []
            stay, delta, tombstones = sift(
                data[at + _HEADER : end],
                count,
                base,
                self._last_noted,
                not expired,
                self._keys,
                pieces,
            )
            if stay < 0 or (stay == 0 and last in self._needed):
                break
            gets_horizon: bool = tombstones > 0 and may_be_deleted and not has_horizon
            if stay == count and not gets_horizon:
                kept.append((last, end - at, read_i64_be(data, at + 35)))
                at = end
                continue
            if at > start:
                out.append(data[start:at])
            if stay > 0:
                largest: i64 = read_i64_be(data, at + 35)
                if data[at + 22] & 0x08 == 0:  # else all records have the broker's time
                    largest = max(first_ms + delta, -1)
                batch = self._rebuilt(data, at, b"".join(pieces), stay, largest, gets_horizon)
                out.append(batch)
                kept.append((last, len(batch), largest))
            is_changed = True
            at = start = end
        if at > start:
            out.append(data[start:at])
        return at, is_changed

    def _rebuilt(
        self,
        data: bytes,
        at: i64,
        records: bytes,
        count: i64,
        largest: i64,
        gets_horizon: bool,  # noqa: FBT001
    ) -> bytes:
        """Return the batch at `at` with `count` restored records in the place of its own."""
        flags: i64 = data[at + 22]
        base_timestamp: i64 = read_i64_be(data, at + 27)
        if gets_horizon:
            if flags & 0x08 == 0:  # else the records' own times do not matter
                records = restamp(records, count, base_timestamp - self._horizon)
            flags |= 0x40
            base_timestamp = self._horizon
        covered = BytesWriter()
        covered.append(data[at + 21])
        covered.append(flags)
        covered.write(data[at + 23 : at + 27])
        write_i64_be(covered, base_timestamp)
        write_i64_be(covered, largest)
        covered.write(data[at + 43 : at + 57])
        write_i32_be(covered, i32(count))
        covered.write(records)
        rest = covered.getvalue()
        crc: i64 = crc32c(rest)
        batch = BytesWriter()
        batch.write(data[at : at + 8])
        write_i32_be(batch, i32(len(rest) + 9))
        batch.write(data[at + 12 : at + 17])
        # The writer takes signed numbers.
        write_i32_be(batch, i32(crc if crc < 1 << 31 else crc - (1 << 32)))
        batch.write(rest)
        return batch.getvalue()


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
