"""Rule out segments by their key filters, before a query is planned.

In: live segments, the requested keys, a store. Out: the paths of objects that hold none of the keys. It reads pages of
key filters (`tier/formats/key_filter.py`), 4 KiB each, and nothing else of an object.

A segment without a filter stays, and so does one whose page is damaged, missing or of an unknown version: a filter
saves reading, and its loss must not stop a query. A warning names the object then.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from logging import getLogger
from typing import Final, NamedTuple

from stratalog.adapters.read_ahead import read_ahead
from stratalog.errors import Corrupt
from stratalog.ports import ObjectStore
from stratalog.table.metrics import ReadMetrics
from stratalog.tier.formats.key_filter import PAGE_BYTES, may_hold, page_of
from stratalog.tier.formats.manifest import RemoteSegment
from stratalog.tier.formats.segment_object import read_range

__all__ = ["without_keys"]

AT_ONCE: Final = 32
"""Requests at a time: each is small, so the store's latency is the cost."""
WORTH: Final = 16
"""A look-up reads at most a sixteenth of the segment's batches; with more keys, it is cheaper to read them all."""
_AHEAD_BYTES: Final = AT_ONCE * PAGE_BYTES


class _Answer(NamedTuple):
    path: str
    pages: int
    holds: bool


def without_keys(
    segments: Iterable[RemoteSegment],
    keys: Collection[bytes],
    store: ObjectStore,
    metrics: ReadMetrics,
) -> frozenset[str]:
    """Return the paths of the segments that hold none of `keys`, and count the pages read. Raises Unavailable."""

    def calls() -> Iterator[tuple[int, Callable[[], _Answer]]]:
        for segment in segments:
            pages = _pages(segment, keys)
            size = PAGE_BYTES * len(pages)
            if pages and size * WORTH <= max(segment.entry.data_size, PAGE_BYTES * WORTH):
                yield size, partial(_look_up, store, segment, pages)

    ruled_out = set()
    looked = 0
    for answer in read_ahead(calls(), _AHEAD_BYTES, AT_ONCE):
        looked += 1
        for _ in range(answer.pages):
            metrics.bucket(PAGE_BYTES)
        if not answer.holds:
            ruled_out.add(answer.path)
    if looked:
        text = "key filters: %d of %d segments hold none of the keys"
        getLogger("stratalog.spark").info(text, len(ruled_out), looked)
    return frozenset(ruled_out)


def _pages(segment: RemoteSegment, keys: Collection[bytes]) -> dict[int, list[bytes]]:
    """Return the keys by the page that answers for them; empty for a segment without a filter."""
    pages: dict[int, list[bytes]] = {}
    count = segment.entry.key_pages
    for key in keys if count else ():
        pages.setdefault(page_of(key, count), []).append(key)
    return pages


def _look_up(store: ObjectStore, segment: RemoteSegment, pages: dict[int, list[bytes]]) -> _Answer:
    entry, path = segment.entry, segment.path
    read = 0
    try:
        for number, keys in pages.items():
            read += 1
            start = entry.data_size + PAGE_BYTES * number
            page = bytes(read_range(store, path, start, PAGE_BYTES))
            if any(may_hold(page, key, entry.key_pages, path) for key in keys):
                return _Answer(path, read, holds=True)
    except Corrupt as fault:
        getLogger("stratalog.spark").warning("%s; its segment is read", fault)
        return _Answer(path, read, holds=True)
    return _Answer(path, read, holds=False)
