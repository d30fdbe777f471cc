"""The key filter of a segment object: pages that say which keys the segment may hold.

In: whole batches, while the archiver uploads them; a key and one page. Out: the pages; whether the segment may hold the
key. It never says no to a key that the segment holds, and it reads no bucket.

A key's hash chooses one page and a bucket in it; the page holds a fingerprint of each key. So a look-up needs one page
of 4 KiB, whatever the segment's size is. A full page answers one key in 8,700 that is not there with yes.
`docs/formats.md` has the bytes, docs/decisions/0031 the reasons.
"""

from itertools import accumulate
from struct import Struct
from typing import Final

from crc32c import crc32c

from stratalog.errors import Corrupt
from stratalog.wire.batch import (
    ATTRIBUTES,
    CODEC_MASK,
    CONTROL,
    HEADER,
    HEADER_SIZE,
    PREFIX_SIZE,
)
from stratalog.wire.compression import NONE, decompress
from stratalog.wire.keys import BUCKETS, KeyHashes, key_hash

__all__ = ["KEYS_MAX", "PAGE_BYTES", "KeyFilterBuilder", "may_hold", "page_of"]

PAGE_BYTES: Final = 4096
KEYS_MAX: Final = 8 << 20
"""Different keys of a segment above which it gets no filter: the builder's memory is then 140 MB."""
KEYS_PER_PAGE: Final = 1700
"""Mean keys of a page: it has room for 1,916, five standard deviations more."""

VERSION: Final = 2
"""Version 1 hashed keys byte by byte; no release wrote it."""
_FULL: Final = 1
"""The page's flag for: it may hold every key."""
_CRC: Final = Struct(">I")
_HEAD: Final = Struct(">BBH")
_BODY_BYTES: Final = PAGE_BYTES - _CRC.size - _HEAD.size
_BODY_AT: Final = PAGE_BYTES - _BODY_BYTES
_PRINTS_AT: Final = _BODY_AT + BUCKETS
_MASK: Final = 0xFFFFFFFF
_LEAST_GROWTH: Final = 1 << 16


class KeyFilterBuilder:
    """Collects the keys of a segment's batches: 8 bytes for each record, until many of them are the same keys."""

    def __init__(self, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._hashes: KeyHashes | None = KeyHashes()
        self._dedupe_at = min(keys_max, 1 << 20)

    def take(self, data: bytes, at: int, end: int) -> None:
        """Note the keys of the whole batches from `at` to `end`, whose CRCs were checked. What cannot be decoded ends
        the filter.
        """
        while at < end and self._hashes is not None:
            header = HEADER.unpack_from(data, at)
            first = at + HEADER_SIZE
            at = last = at + PREFIX_SIZE + header[1]
            attributes, records = header[ATTRIBUTES], data
            if attributes & CONTROL:
                continue
            if attributes & CODEC_MASK != NONE:
                try:
                    records = decompress(attributes & CODEC_MASK, memoryview(data)[first:last])
                except Corrupt:
                    self._hashes = None
                    return
                first, last = 0, len(records)
            if not self._hashes.note(records, first, last, header[-1]):
                self._hashes = None
            elif self._hashes.held() > self._dedupe_at:
                held = self._dedupe(self._hashes)
                self._dedupe_at = min(2 * held, held + self._keys_max) + _LEAST_GROWTH

    def finish(self) -> bytes:
        """Return the pages; empty where the segment gets no filter."""
        hashes = self._hashes
        held = self._dedupe(hashes) if hashes is not None else 0
        if hashes is None or held > self._keys_max:
            return b""
        pages = max(1, -(-held // KEYS_PER_PAGE))
        return b"".join(_page(*page) for page in hashes.pages(pages, _BODY_BYTES))

    def _dedupe(self, hashes: KeyHashes) -> int:
        """Return the number of different keys; too many end the filter."""
        held = hashes.dedupe()
        if held > self._keys_max:
            self._hashes = None
        return held


def page_of(key: bytes, pages: int) -> int:
    """Return the number of the page, of `pages`, that answers for `key`."""
    return (key_hash(key) >> 16) * pages >> 32


def may_hold(page: bytes, key: bytes, pages: int, path: str) -> bool:
    """Return whether the segment at `path` may hold `key`, by the page that `page_of` names.

    Raises Corrupt for a damaged page, or one of an unknown version: then the segment must be read.
    """
    if len(page) != PAGE_BYTES or _CRC.pack(crc32c(page[_CRC.size :])) != page[: _CRC.size]:
        raise Corrupt(f"{path}: a page of its key filter fails its checksum")
    version, flags, _keys = _HEAD.unpack_from(page, _CRC.size)
    if version != VERSION:
        raise Corrupt(f"{path}: its key filter has version {version}, not {VERSION}")
    if flags & _FULL:
        return True
    hashed = int(key_hash(key))
    bucket = ((hashed >> 16) * pages & _MASK) >> 24
    before = list(accumulate(page[_BODY_AT : _BODY_AT + bucket + 1], initial=0))
    start, end = (_PRINTS_AT + 2 * count for count in before[-2:])
    wanted = (hashed & 0xFFFF).to_bytes(2, "big")
    return any(page[at : at + 2] == wanted for at in range(start, end, 2))


def _page(keys: int, body: bytes) -> bytes:
    """Return a page of so many keys; one without a body affirms every key."""
    head = _HEAD.pack(VERSION, 0 if body else _FULL, min(keys, 0xFFFF))
    content = head + (body or bytes(_BODY_BYTES))
    return _CRC.pack(crc32c(content)) + content
