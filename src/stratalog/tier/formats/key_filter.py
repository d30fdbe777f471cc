"""The key filter of a segment object: pages that say which keys the segment may hold.

In: whole batches, while the archiver uploads them; a key and one page. Out: the pages; whether the segment may hold the
key. It never says no to a key that the segment holds, and it reads no bucket.

A key's hash chooses one page and a bucket in it; the page holds a fingerprint of each key. So a look-up needs one page
of 4 KiB, whatever the segment's size is. A full page answers one key in 8,700 that is not there with yes.
`docs/formats.md` has the bytes, docs/decisions/0031 the reasons.
"""

from array import array
from collections.abc import Iterator
from itertools import accumulate
from struct import Struct
from typing import Final

from crc32c import crc32c

from stratalog.errors import Corrupt
from stratalog.wire.batch import HEADER_SIZE, scan
from stratalog.wire.compression import decompress
from stratalog.wire.keys import BUCKETS, PARTS, key_hash, note_keys, page_body, spread

__all__ = ["KEYS_MAX", "PAGE_BYTES", "KeyFilterBuilder", "may_hold", "page_of"]

PAGE_BYTES: Final = 4096
KEYS_MAX: Final = 8 << 20
"""Different keys of a segment above which it gets no filter: the builder's memory is then 140 MB."""
KEYS_PER_PAGE: Final = 1700
"""Mean keys of a page: it has room for 1,916, five standard deviations more."""

VERSION: Final = 1
_FULL: Final = 1
"""The page's flag for: it may hold every key."""
_CRC: Final = Struct(">I")
_HEAD: Final = Struct(">BBH")
_BODY_BYTES: Final = PAGE_BYTES - _CRC.size - _HEAD.size
_BODY_AT: Final = PAGE_BYTES - _BODY_BYTES
_PRINTS_AT: Final = _BODY_AT + BUCKETS
_MASK: Final = 0xFFFFFFFF
_NOTED_AT_ONCE: Final = 1 << 16


class KeyFilterBuilder:
    """Collects the keys of a segment's batches: 8 bytes for each record, until many of them are the same keys."""

    def __init__(self, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._new: list[list[int]] = [[] for _ in range(PARTS)]
        self._parts = [array("q") for _ in range(PARTS)]
        self._waiting = 0
        self._held = 0
        self._dedupe_at = min(keys_max, 1 << 20)
        self._gave_up = False

    def take(self, batches: memoryview) -> None:
        """Note the keys of whole batches, whose CRCs were checked. What cannot be decoded ends the filter."""
        for position, header in scan(batches):
            if self._gave_up:
                return
            if header.is_control:
                continue
            body = batches[position + HEADER_SIZE : position + header.size]
            try:
                records = decompress(header.codec, body)
            except Corrupt:
                self._give_up()
                return
            keys = note_keys(records, header.record_count, self._new)
            if keys < 0:
                self._give_up()
                return
            self._waiting += keys
            if self._waiting >= _NOTED_AT_ONCE:
                self._gather()

    def finish(self) -> bytes:
        """Return the pages; empty where the segment gets no filter."""
        self._gather()
        self._dedupe()
        if self._gave_up:
            return b""
        return b"".join(self._pages(max(1, -(-self._held // KEYS_PER_PAGE))))

    def _gather(self) -> None:
        """Move the noted hashes to the compact arrays, and dedupe these once they have grown much."""
        for part, new in zip(self._parts, self._new, strict=True):
            part.extend(new)
            new.clear()
        self._held += self._waiting
        self._waiting = 0
        if self._held > self._dedupe_at:
            self._dedupe()
            self._dedupe_at = min(2 * self._held, self._held + self._keys_max) + _NOTED_AT_ONCE

    def _dedupe(self) -> None:
        for at, part in enumerate(self._parts):
            self._parts[at] = array("q", set(part))
        self._held = sum(map(len, self._parts))
        if self._held > self._keys_max:
            self._give_up()

    def _give_up(self) -> None:
        self._gave_up = True
        self._new, self._parts = [], []
        self._held = self._waiting = 0

    def _pages(self, pages: int) -> Iterator[bytes]:
        """Yield the pages. Parts and pages are in the order of hashes, so a part touches neighbouring pages."""
        open_pages: list[list[int]] = [[]]
        first = 0
        for number, part in enumerate(self._parts):
            last = ((number + 1) * (1 << 24) - 1) * pages >> 32
            open_pages += ([] for _ in range(first + len(open_pages), last + 1))
            spread(list(part), pages, first, open_pages)
            yield from map(_page, open_pages[:-1])
            open_pages, first = open_pages[-1:], last
        yield from map(_page, open_pages)


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


def _page(entries: list[int]) -> bytes:
    body = page_body(entries, _BODY_BYTES)
    head = _HEAD.pack(VERSION, 0 if body else _FULL, min(len(entries), 0xFFFF))
    content = head + (body or bytes(_BODY_BYTES))
    return _CRC.pack(crc32c(content)) + content
