"""What a bucket task asks the bucket for: runs of index entries of about the same size, several of them at once.

In: a task's pieces. Out: chunks of checked bytes in the order of offsets, which together answer for every offset of the
task's range that may be wanted. It never opens a batch, and never asks for an entry whose offsets or times say that
nothing in it is wanted.

Memory: READ_AHEAD_BYTES of chunks that wait beside the one in use, whatever the segments' sizes are; an index entry is
never cut, so one with a larger batch in it makes a chunk of its own.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from stratalog.adapters.read_ahead import read_ahead
from stratalog.errors import ErrorCode, Rejected
from stratalog.ports import ObjectStore
from stratalog.table.figures import Figures
from stratalog.table.plan import BucketTask, Piece, Range
from stratalog.tier.reader import load_index, read_entries
from stratalog.tier.segment_index import FLAG_MINIMUM_EXACT, FLAG_TRANSACTIONAL, IndexBlock
from stratalog.tier.segment_object import SegmentIndex
from stratalog.wire.transactions import reaching

CHUNK_BYTES = 4 << 20
"""Bytes of one GET (more only where one index entry is larger)."""
READ_AHEAD_BYTES = 16 << 20
INDEXES_AHEAD_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole batches, and what of them was aborted: (producer id, first offset).

    `run` are the offsets [first, end) that it and its neighbours with the same answer for together.
    """

    path: str
    run: tuple[int, int]
    data: bytes
    aborted: Sequence[tuple[int, int]]


def chunks(
    task: BucketTask, store: ObjectStore, figures: Figures, *, committed: bool
) -> Iterator[Chunk]:
    """The chunks of a task, the next ones fetched while one is used.

    Raises Corrupt naming the object, Unavailable, Rejected where `committed` is asked of a segment that does not say
    what was aborted.
    """

    def calls() -> Iterator[tuple[int, partial[Chunk]]]:
        for piece, index in _indexes(task, store, figures):
            aborted = index.aborted if committed else ()
            for first, stop in _runs(index.entries, piece, task.wanted):
                if aborted is None and _any(index.entries.flags[first:stop], FLAG_TRANSACTIONAL):
                    raise Rejected(
                        ErrorCode.unsupported_version,
                        f"{piece.segment.path} has transactions and not how they ended: "
                        "kafka.isolation.level=read_committed cannot read it",
                    )
                run = _offsets(index.entries, piece, first, stop)
                for begin, end in _cuts(index.entries, first, stop):
                    size = sum(index.entries.lengths[begin:end])
                    figures.bucket(size)
                    reached = reaching(aborted or (), index.entries.base_offsets[begin])
                    get = partial(read_entries, store, piece.segment, index, begin, end)
                    yield size, partial(_chunk, piece.segment.path, run, get, reached)

    return read_ahead(calls(), READ_AHEAD_BYTES)


def _any(flags: Sequence[int], flag: int) -> bool:
    return any(one & flag for one in flags)


def _indexes(
    task: BucketTask, store: ObjectStore, figures: Figures
) -> Iterator[tuple[Piece, SegmentIndex]]:
    """Each piece with the index of its object, the next ones fetched meanwhile."""
    sizes = [piece.segment.entry.size - piece.segment.entry.data_size for piece in task.pieces]
    for size in sizes:
        figures.bucket(size)
    gets = (partial(load_index, store, piece.segment) for piece in task.pieces)
    found = read_ahead(zip(sizes, gets, strict=True), INDEXES_AHEAD_BYTES, at_once=2)
    return zip(task.pieces, found, strict=True)


def _runs(entries: IndexBlock, piece: Piece, wanted: Range) -> Iterator[tuple[int, int]]:
    """Runs of entries that may hold something wanted, within one piece."""
    first = max(bisect_left(entries.positions, piece.from_byte), entries.entry_of(wanted.first))
    stop = bisect_left(entries.positions, piece.to_byte)
    while stop > first and entries.base_offsets[stop - 1] >= wanted.end:
        stop -= 1
    if not wanted.bounds_times:
        if first < stop:
            yield first, stop
        return
    begin = first
    for at in range(first, stop):
        exact = bool(entries.flags[at] & FLAG_MINIMUM_EXACT)
        if not wanted.may_hold(entries.min_timestamps[at], entries.max_timestamps[at], exact=exact):
            if begin < at:
                yield begin, at
            begin = at + 1
    if begin < stop:
        yield begin, stop


def _cuts(entries: IndexBlock, first: int, stop: int) -> Iterator[tuple[int, int]]:
    """A run in parts of about CHUNK_BYTES."""
    begin, size = first, 0
    for at in range(first, stop):
        if size and size + entries.lengths[at] > CHUNK_BYTES:
            yield begin, at
            begin, size = at, 0
        size += entries.lengths[at]
    yield begin, stop


def _offsets(entries: IndexBlock, piece: Piece, first: int, stop: int) -> tuple[int, int]:
    """What entries [first, stop) answer for: up to the next one, compacted offsets in between included."""
    entry = piece.segment.entry
    begin = entries.base_offsets[first] if first else entry.base_offset
    return begin, entries.base_offsets[stop] if stop < len(entries) else entry.last_offset + 1


def _chunk(
    path: str,
    run: tuple[int, int],
    get: Callable[[], bytes],
    aborted: Sequence[tuple[int, int]],
) -> Chunk:
    return Chunk(path, run, get(), aborted)
