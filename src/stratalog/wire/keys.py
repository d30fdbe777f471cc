"""Hash the keys of records for key filters, and lay the hashes out as pages.

In: the restored records of batches. Out: 48-bit hashes of keys, and the bodies of pages. It never keeps a key, and
knows nothing of files (`tier/formats/key_filter.py` does).

The hash is part of a stored format: it changes with the format's version alone. Compiled by mypyc like `walk` and
`sift` (`hatch_build.py`, docs/decisions/0024); `vec` holds numbers as C does, 8 bytes each. All numbers fit 63 bits, so
that compiled and interpreted code agree. A record: see `records`.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i64_le
from librt.vecs import extend, vec
from mypy_extensions import i64, u8

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
_FIRST_ROOM: Final = 512
"""Hashes for which a new list has room; it doubles when it is full."""
_LEAST: Final = 6
"""Attributes, two deltas, two lengths and a count: a byte each."""


def _step(place: i64, fingerprint: i64, word: i64) -> tuple[i64, i64]:
    """Mix 64 bits of a key into both halves of its hash.

    A product's upper bits depend on all bits, its lower ones on those below them: each half gets some of both.
    """
    lower: i64 = (place ^ (word & _MASK)) * _PLACE_FACTOR
    upper: i64 = (fingerprint ^ ((word >> 32) & _MASK)) * _PRINT_FACTOR
    return (lower ^ (upper >> 32)) & _MASK, (upper ^ (lower >> 32)) & _MASK


def _hash(data: bytes, at: i64, end: i64) -> i64:
    """Return the hash of these bytes: 32 bits that choose page and bucket, then a fingerprint of 16 bits."""
    size: i64 = end - at
    place: i64 = _PLACE_SEED
    fingerprint: i64 = _PRINT_SEED
    while at + 8 <= end:
        place, fingerprint = _step(place, fingerprint, read_i64_le(data, at))
        at += 8
    if at < end:
        # The last 8 bytes, some of them again; a short key has fewer.
        word: i64 = read_i64_le(data, end - 8) if size >= 8 else _short(data, at, end)
        place, fingerprint = _step(place, fingerprint, word)
    # Zeros at the end of a key count by its size alone.
    place, fingerprint = _step(place, fingerprint, size)
    place, fingerprint = _step(place, fingerprint, 0)
    return (place << 16) | (fingerprint & 0xFFFF)


def _short(data: bytes, at: i64, end: i64) -> i64:
    """Return up to 7 bytes as a little-endian number."""
    word: i64 = 0
    while end > at:
        end -= 1
        word = word << 8 | data[end]
    return word


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
        self._hashes: vec[i64] = vec[i64]([0] * _FIRST_ROOM)
        self._held: i64 = 0

    def held(self) -> int:
        """Return the number of hashes."""
        return self._held

    def note(self, data: bytes, at: i64, end: i64, count: i64) -> bool:
        """Add the hash of each key of a batch's `count` records, which lie from `at` to `end`; return False where one
        is unsound.

        Records without a key are left out. Of an unsound batch no hash is added.
        """
        hashes = self._hashes
        held: i64 = self._held
        try:
            while count > 0:
                # Short numbers are read here: a call would cost as much as the rest.
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
                at = at + 2 if data[at + 1] < 128 else _behind(data, at + 1)
                following = data[at]
                at += following >> 7  # an offset's delta has two bytes often
                at = at + 1 if data[at] < 128 else _behind(data, at)
                size: i64 = data[at]
                if size < 128:
                    size = (size >> 1) ^ -(size & 1)
                    at += 1
                else:
                    size, at = _varint(data, at)
                if size < -1 or at + size >= stop:
                    return False
                if size >= 0:
                    if held == len(hashes):
                        hashes = extend(hashes, hashes)
                    hashes[held] = _hash(data, at, at + size)
                    held += 1
                at = stop
                count -= 1
        except IndexError:
            return False
        if at != end:
            return False
        self._hashes = hashes
        self._held = held
        return True

    def dedupe(self) -> int:
        """Sort the hashes, remove repeated ones, and return the number that is left. It takes 8 bytes more for each."""
        hashes = self._hashes
        count: i64 = self._held
        _sort(hashes, count)
        last: i64 = -1
        kept: i64 = 0
        at: i64 = 0
        while at < count:
            one: i64 = hashes[at]
            if one != last:
                hashes[kept] = one
                kept += 1
                last = one
            at += 1
        self._held = kept
        return kept

    def pages(self, pages: i64, size: i64) -> list[tuple[int, bytes]]:
        """Return the number of hashes and the body, in `size` bytes, of each of `pages` pages; call `dedupe` before.

        The order of hashes is that of pages and of their buckets.
        """
        hashes = self._hashes
        held: i64 = self._held
        found: list[tuple[int, bytes]] = []
        begin: i64 = 0
        page: i64 = 0
        while page < pages:
            end: i64 = begin
            while end < held and (hashes[end] >> 16) * pages >> 32 == page:
                end += 1
            found.append((end - begin, _body(hashes, begin, end, pages, size)))
            begin = end
            page += 1
        return found


def _sort(hashes: vec[i64], count: i64) -> None:
    """Put the first `count` hashes in order, in their place.

    Two passes sort by the upper half of the bits. Few neighbours are equal there, and insertions sort these.
    """
    _sort_digits(hashes, count, _DIGITS // 2)
    if not _insert(hashes, count):
        _sort_digits(hashes, count, 0)  # keys that were chosen for it


def _sort_digits(hashes: vec[i64], count: i64, lowest: i64) -> None:
    """Sort by the digits from `lowest` on, an even number: each pass keeps the order of the one before."""
    places = _places(hashes, count, lowest)
    other = hashes[:count]
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


def _places(hashes: vec[i64], count: i64, lowest: i64) -> vec[i64]:
    """Return for each value of each digit the number of hashes that lie before it in the order of this digit."""
    size: i64 = (_DIGITS - lowest) << _DIGIT_BITS
    places = vec[i64]([0] * size)
    shift: i64 = lowest * _DIGIT_BITS
    at: i64 = 0
    while at < count:
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


def _insert(hashes: vec[i64], count: i64) -> bool:
    """Put nearly sorted hashes in order, in their place; return False where it would take many moves."""
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
    body = vec[u8]([0] * size)
    place: i64 = BUCKETS
    at: i64 = begin
    while at < end:
        one: i64 = hashes[at]
        bucket: i64 = (((one >> 16) * pages) & _MASK) >> 24
        held: i64 = i64(body[bucket])
        if held == 255:
            return b""
        body[bucket] = u8(held + 1)
        body[place] = u8((one >> 8) & 255)
        body[place + 1] = u8(one & 255)
        place += 2
        at += 1
    return bytes(body)
