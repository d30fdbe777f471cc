"""Hash the keys of records for key filters, and lay the hashes out as pages.

In: the restored records of batches. Out: 48-bit hashes of keys, and the bodies of pages. It never keeps a key, and
knows nothing of files (`tier/formats/key_filter.py` does).

The hash is part of a stored format: it never changes. Compiled by mypyc like `walk` and `sift` (`hatch_build.py`,
docs/decisions/0024); `vec` holds numbers as C does, 8 bytes each. All numbers fit 63 bits, so that compiled and
interpreted code agree. A record: see `records`.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i64_le, write_i16_be
from librt.vecs import append, vec
from mypy_extensions import i16, i64

__all__ = ["BUCKETS", "KeyHashes", "key_hash"]

BUCKETS: Final = 256
"""Buckets of a page."""

_MASK: Final = 0xFFFFFFFF
_PLACE_SEED: Final = 0x6A09E667
_PRINT_SEED: Final = 0x3C6EF372
_PLACE_FACTOR: Final = 0x21F0AAAD
_PRINT_FACTOR: Final = 0x735A2D97
_DIGIT_BITS: Final = 12
"""Bits of a hash by which one pass sorts: four passes for 48 bits."""
_DIGITS: Final = 4
_DIGIT_MASK: Final = (1 << _DIGIT_BITS) - 1
_LEAST: Final = 6
"""Attributes, two deltas, two lengths and a count: a byte each."""


def _mixed(value: i64) -> i64:
    """Spread each of 32 bits over all of them."""
    value = ((value ^ (value >> 16)) * 0x21F0AAAD) & _MASK
    value = ((value ^ (value >> 15)) * 0x735A2D97) & _MASK
    return value ^ (value >> 15)


def _hash(data: bytes, at: i64, end: i64) -> i64:
    """Return the hash of these bytes: 32 bits that choose page and bucket, then a fingerprint of 16 bits."""
    place: i64 = _PLACE_SEED
    fingerprint: i64 = _PRINT_SEED
    while at + 8 <= end:
        word: i64 = read_i64_le(data, at)
        at += 8
        left: i64 = 8
        while left > 0:
            place = ((place ^ (word & 255)) * _PLACE_FACTOR) & _MASK
            fingerprint = ((fingerprint ^ (word & 255)) * _PRINT_FACTOR) & _MASK
            word >>= 8
            left -= 1
    while at < end:
        byte: i64 = data[at]
        place = ((place ^ byte) * _PLACE_FACTOR) & _MASK
        fingerprint = ((fingerprint ^ byte) * _PRINT_FACTOR) & _MASK
        at += 1
    return (_mixed(place) << 16) | (_mixed(fingerprint) & 0xFFFF)


def key_hash(key: bytes) -> i64:
    """Return the hash of a key, of 48 bits."""
    return _hash(key, 0, len(key))


def _varint(data: bytes, at: i64) -> tuple[i64, i64]:
    """Return the zigzag varint at `at`, of 63 bits at most, and the position after it; past the end without one."""
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


def _behind(data: bytes, at: i64) -> i64:
    """Return the position after the varint at `at`, of 63 bits at most; past the end without one."""
    last: i64 = at + 9
    while at < last:
        if data[at] < 128:
            return at + 1
        at += 1
    return len(data) + 1


class KeyHashes:
    """The hashes of a segment's keys, 8 bytes each. A key that repeats is held again until `dedupe`."""

    def __init__(self) -> None:
        self._hashes: vec[i64] = vec[i64]()

    def held(self) -> int:
        """Return the number of hashes."""
        return len(self._hashes)

    def note(self, data: bytes, at: i64, end: i64, count: i64) -> bool:
        """Add the hash of each key of a batch's `count` records, which lie from `at` to `end`; return False where one
        is unsound.

        Records without a key are left out. Of an unsound batch no hash is added.
        """
        hashes = self._hashes
        try:
            while count > 0:
                # Short lengths are read here, twice: a call would cost as much as the rest.
                length: i64 = data[at]
                following: i64 = data[at + 1]
                if length < 128:
                    length = (length >> 1) ^ -(length & 1)
                    at += 1
                elif following < 128:
                    length = (length & 127) | following << 7
                    length = (length >> 1) ^ -(length & 1)
                    at += 2
                else:
                    length, at = _varint(data, at)
                stop: i64 = at + length
                if length < _LEAST or stop > end:
                    return False
                at = _behind(data, _behind(data, at + 1))
                size: i64 = data[at]
                if size < 128:
                    size = (size >> 1) ^ -(size & 1)
                    at += 1
                else:
                    size, at = _varint(data, at)
                if size < -1 or at + size >= stop:
                    return False
                if size >= 0:
                    hashes = append(hashes, _hash(data, at, at + size))
                at = stop
                count -= 1
        except IndexError:
            return False
        if at != end:
            return False
        self._hashes = hashes
        return True

    def dedupe(self) -> int:
        """Sort the hashes, remove repeated ones, and return the number that is left. It takes 8 bytes more for each."""
        hashes = _sorted(self._hashes)
        count: i64 = len(hashes)
        kept: i64 = min(count, 1)
        at: i64 = 1
        while at < count:
            if hashes[at] != hashes[kept - 1]:
                hashes[kept] = hashes[at]
                kept += 1
            at += 1
        self._hashes = hashes[:kept]
        return kept

    def pages(self, pages: i64, size: i64) -> list[tuple[int, bytes]]:
        """Return the number of hashes and the body, in `size` bytes, of each of `pages` pages; call `dedupe` before.

        The order of hashes is that of pages and of their buckets.
        """
        found: list[tuple[int, bytes]] = []
        begin: i64 = 0
        page: i64 = 0
        while page < pages:
            end: i64 = begin
            while end < len(self._hashes) and (self._hashes[end] >> 16) * pages >> 32 == page:
                end += 1
            found.append((end - begin, _body(self._hashes, begin, end, pages, size)))
            begin = end
            page += 1
        return found


def _sorted(hashes: vec[i64]) -> vec[i64]:
    """Return the hashes in order.

    Two passes sort by the upper half of the bits. Few neighbours are equal there, and insertions sort these.
    """
    hashes = _by_digits(hashes, _DIGITS // 2)
    if _insert(hashes):
        return hashes
    return _by_digits(hashes, 0)  # keys that were chosen for it


def _by_digits(hashes: vec[i64], lowest: i64) -> vec[i64]:
    """Return the hashes in the order of their digits from `lowest` on: each pass keeps the order of the one before."""
    count: i64 = len(hashes)
    places = _places(hashes, lowest)
    other = hashes[:count]  # of the same size
    digit: i64 = lowest
    while digit < _DIGITS:
        first: i64 = (digit - lowest) << _DIGIT_BITS
        shift: i64 = digit * _DIGIT_BITS
        at: i64 = 0
        while at < count:
            one: i64 = hashes[at]
            index: i64 = first + ((one >> shift) & _DIGIT_MASK)
            place: i64 = places[index]
            other[place] = one
            places[index] = place + 1
            at += 1
        hashes, other = other, hashes
        digit += 1
    return hashes


def _places(hashes: vec[i64], lowest: i64) -> vec[i64]:
    """Return for each value of each digit the number of hashes that lie before it in the order of this digit."""
    size: i64 = (_DIGITS - lowest) << _DIGIT_BITS
    places = vec[i64]([0] * size)
    shift: i64 = lowest * _DIGIT_BITS
    at: i64 = 0
    while at < len(hashes):
        one: i64 = hashes[at] >> shift
        first: i64 = 0
        while first < size:
            places[first + (one & _DIGIT_MASK)] += 1
            one >>= _DIGIT_BITS
            first += 1 << _DIGIT_BITS
        at += 1
    before: i64 = 0
    at = 0
    while at < size:
        if at & _DIGIT_MASK == 0:
            before = 0
        held: i64 = places[at]
        places[at] = before
        before += held
        at += 1
    return places


def _insert(hashes: vec[i64]) -> bool:
    """Put nearly sorted hashes in order, in their place; return False where it would take many moves."""
    count: i64 = len(hashes)
    moves: i64 = 4 * count
    at: i64 = 1
    while at < count and moves >= 0:
        one: i64 = hashes[at]
        to: i64 = at
        while to > 0 and hashes[to - 1] > one:
            hashes[to] = hashes[to - 1]
            to -= 1
        hashes[to] = one
        moves -= at - to
        at += 1
    return moves >= 0


def _body(hashes: vec[i64], begin: i64, end: i64, pages: i64, size: i64) -> bytes:
    """Return the number of hashes in each bucket of a page, then their fingerprints; they are those from `begin` on.

    Empty where the page or one of its buckets has no room for them.
    """
    if BUCKETS + 2 * (end - begin) > size:
        return b""
    writer = BytesWriter()
    at: i64 = begin
    bucket: i64 = 0
    while bucket < BUCKETS:
        first: i64 = at
        while at < end and (((hashes[at] >> 16) * pages) & _MASK) >> 24 == bucket:
            at += 1
        if at - first > 255:
            return b""
        writer.append(at - first)
        bucket += 1
    at = begin
    while at < end:
        fingerprint: i64 = hashes[at] & 0xFFFF
        # The writer takes signed numbers.
        write_i16_be(writer, i16(fingerprint if fingerprint < 1 << 15 else fingerprint - (1 << 16)))
        at += 1
    writer.write(bytes(size - len(writer)))
    return writer.getvalue()
