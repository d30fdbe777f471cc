"""Hash the keys of records for key filters, and lay the hashes out as pages.

In: the restored records of batches; hashes. Out: 48-bit hashes of keys, and the bodies of pages. It never keeps a key,
and knows nothing of files (`tier/formats/key_filter.py` does).

The hash is part of a stored format: it never changes. Compiled by mypyc like `walk` and `sift` (`hatch_build.py`,
docs/decisions/0024). All numbers fit 63 bits, so that compiled and interpreted code agree. A record: see `records`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mypy_extensions import i64

__all__ = ["BUCKETS", "PARTS", "key_hash", "note_keys", "page_body", "spread"]

PARTS: Final = 256
"""Lists that `note_keys` appends to: by the highest 8 bits of the hash."""
BUCKETS: Final = 256
"""Buckets of a page."""

_MASK: Final = 0xFFFFFFFF
_PLACE_SEED: Final = 0x6A09E667
_PRINT_SEED: Final = 0x3C6EF372
_PLACE_FACTOR: Final = 0x21F0AAAD
_PRINT_FACTOR: Final = 0x735A2D97
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


def note_keys(data: bytes, count: i64, parts: list[list[int]]) -> i64:
    """Append the hash of each key of a batch's `count` records to its part, and return how many keys there are.

    Records without a key are left out. Returns -1 where a record is unsound; some keys may be noted then.
    """
    at: i64 = 0
    keys: i64 = 0
    try:
        while count > 0:
            length, at = _varint(data, at)
            end: i64 = at + length
            if length < _LEAST or end > len(data):
                return -1
            _, at = _varint(data, at + 1)
            _, at = _varint(data, at)
            size, at = _varint(data, at)
            if size < -1 or at + size >= end:
                return -1
            if size >= 0:
                hashed: i64 = _hash(data, at, at + size)
                parts[hashed >> 40].append(hashed)
                keys += 1
            at = end
            count -= 1
    except IndexError:
        return -1
    return keys if at == len(data) else -1


def spread(hashes: list[int], pages: i64, first: i64, entries: list[list[int]]) -> None:
    """Append each hash to the entries of its page, of `pages`: its bucket, then its fingerprint of 16 bits.

    `entries` begins with those of page `first`.
    """
    for hashed in hashes:
        wide: i64 = hashed
        scaled: i64 = (wide >> 16) * pages
        bucket: i64 = (scaled & _MASK) >> 24
        entries[(scaled >> 32) - first].append((bucket << 16) | (wide & 0xFFFF))


def page_body(entries: list[int], size: i64) -> bytes:
    """Return the number of entries in each bucket, then the fingerprints in the order of buckets, in `size` bytes.

    Empty where the page or one of its buckets has no room for them.
    """
    if BUCKETS + 2 * len(entries) > size:
        return b""
    starts: list[int] = [0] * (BUCKETS + 1)
    for entry in entries:
        starts[(entry >> 16) + 1] += 1
    body: list[int] = [0] * size
    place: i64 = BUCKETS
    bucket: i64 = 0
    while bucket < BUCKETS:
        held: i64 = starts[bucket + 1]
        if held > 255:
            return b""
        body[bucket] = held
        starts[bucket] = place
        place += 2 * held
        bucket += 1
    for entry in entries:
        wide: i64 = entry
        home: i64 = wide >> 16
        at: i64 = starts[home]
        body[at] = (wide >> 8) & 255
        body[at + 1] = wide & 255
        starts[home] = at + 2
    return bytes(body)
