"""Read a segment object's batches in the order of the log.

In: a store and a segment that a manifest names. Out: runs of whole batches in order, every byte checked, bounded in
size. It never writes, and decodes no batch.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from stratalog.ports import ObjectStore
from stratalog.tier.formats.manifest import RemoteSegment
from stratalog.tier.formats.segment_index import IndexBlock
from stratalog.tier.reading.fetcher import load_index
from stratalog.tier.reading.reader import read_entries

__all__ = ["Chunk", "entry_runs", "read_segment"]

_READ_BYTES: Final = 4 * 1024 * 1024


class Chunk(NamedTuple):
    """Whole batches, and their number of records."""

    data: bytes
    records: int


def read_segment(store: ObjectStore, segment: RemoteSegment) -> Iterator[Chunk]:
    """Yield the segment's data, about 4 MiB at a time. Raises Corrupt naming the object, Unavailable."""
    index = load_index(store, segment)
    for first, stop in entry_runs(index.entries):
        data = read_entries(store, segment, index, first, stop)
        yield Chunk(data, sum(index.entries.records[first:stop]))


def entry_runs(entries: IndexBlock) -> Iterator[tuple[int, int]]:
    """Yield runs of index entries of about 4 MiB: the first entry, and the one after the last."""
    first = total = 0
    for at, length in enumerate(entries.lengths, 1):
        total += length
        if total >= _READ_BYTES:
            yield first, at
            first, total = at, 0
    if total:
        yield first, len(entries)
