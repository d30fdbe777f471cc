"""Divide a bucket task into chunks: runs of index entries of similar size, several fetched at once.

In: a task's pieces. Out: chunks of checked bytes in the order of offsets. Together they cover every offset of the
task's range that the query may need. It never decodes a batch, and never fetches an entry that offsets or times rule
out.

Memory: READ_AHEAD_BYTES of waiting chunks beside the one in use, whatever the segments' sizes are. An index entry is
never cut, so an entry with a larger batch is a chunk of its own.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby

from crc32c import crc32c

from stratalog.adapters.read_ahead import read_ahead
from stratalog.errors import Corrupt, ErrorCode, Rejected
from stratalog.ports import ObjectStore
from stratalog.table.metrics import ReadMetrics
from stratalog.table.plan import BucketTask, Piece, Range
from stratalog.tier.formats.segment_index import FLAG_MINIMUM_EXACT, FLAG_TRANSACTIONAL, IndexBlock
from stratalog.tier.formats.segment_object import SegmentIndex, read_range
from stratalog.tier.reading.reader import load_index, read_entries
from stratalog.wire.transactions import AbortedTransaction, reaching

CHUNK_BYTES = 4 << 20
"""Bytes of one GET (more only where one index entry is larger)."""
READ_AHEAD_BYTES = 16 << 20
INDEXES_AHEAD_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole batches, and the aborted transactions in them: (producer id, first offset).

    `offsets` [first, end) are those that the chunk covers; `run` are those that it and its neighbours of the same run
    cover together. `damage`: the reason why these offsets cannot be read; then the chunk has no data.
    """

    path: str
    run: tuple[int, int]
    offsets: tuple[int, int]
    data: bytes
    aborted: Sequence[tuple[int, int]]
    damage: str | None = None


def chunks(
    task: BucketTask,
    store: ObjectStore,
    metrics: ReadMetrics,
    *,
    committed: bool,
    salvage: bool = False,
) -> Iterator[Chunk]:
    """Yield the chunks of a task; fetch the next ones while the caller uses one.

    With `salvage` an object that is missing or damaged becomes chunks with `damage`, as small as the index allows: an
    entry, or the whole object where its index is damaged. Raises Corrupt naming the object without it; Unavailable;
    Rejected where `committed` is requested of a segment without a list of aborted transactions.
    """

    def calls() -> Iterator[tuple[int, Callable[[], list[Chunk]]]]:
        for piece, index in _indexes(task, store, metrics, salvage=salvage):
            if isinstance(index, Corrupt):
                if piece.from_byte == 0:  # the segment's other pieces do not repeat this
                    yield 0, partial(list, [_unknown(piece, index)])
                continue
            aborted = index.aborted if committed else ()
            source = _Source(store, piece, index, aborted or (), salvage=salvage)
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
                    metrics.bucket(size)
                    yield size, partial(source.read, run, begin, end)

    return chain.from_iterable(read_ahead(calls(), READ_AHEAD_BYTES))


@dataclass(frozen=True, slots=True)
class _Source:
    """One piece of an object, which reads its entries as chunks."""

    store: ObjectStore
    piece: Piece
    index: SegmentIndex
    aborted: Sequence[AbortedTransaction]
    salvage: bool

    def read(self, run: tuple[int, int], first: int, stop: int) -> list[Chunk]:
        """Return entries [first, stop) in one request; with damage among them, and `salvage`, in several chunks."""
        try:
            data = read_entries(self.store, self.piece.segment, self.index, first, stop)
        except Corrupt as fault:
            if not self.salvage:
                raise
            return list(self._salvaged(run, first, stop, str(fault)))
        return [self._chunk(run, first, stop, data)]

    def _salvaged(
        self, run: tuple[int, int], first: int, stop: int, damage: str
    ) -> Iterator[Chunk]:
        """Yield chunks of the undamaged entries, and one for each run of damaged ones."""
        path, entries = self.piece.segment.path, self.index.entries
        start, end = entries.positions[first], _end(entries, stop)
        try:
            data = bytes(read_range(self.store, path, start, end - start))
        except Corrupt:  # the object is missing or too short
            yield self._chunk(run, first, stop, b"", damage)
            return

        def is_whole(at: int) -> bool:
            begin = entries.positions[at] - start
            return crc32c(data[begin : begin + entries.lengths[at]]) == entries.crcs[at]

        for whole, group in groupby(range(first, stop), is_whole):
            begin, *others = group
            behind = (others or [begin])[-1] + 1
            from_byte, to_byte = entries.positions[begin], _end(entries, behind)
            if whole:
                yield self._chunk(run, begin, behind, data[from_byte - start : to_byte - start])
                continue
            where = f"bytes {from_byte}+{to_byte - from_byte}"
            why = f"{path}: {where} are not those that were archived"
            yield self._chunk(run, begin, behind, b"", why)

    def _chunk(
        self, run: tuple[int, int], first: int, stop: int, data: bytes, damage: str | None = None
    ) -> Chunk:
        offsets = _offsets(self.index.entries, self.piece, first, stop)
        aborted = reaching(self.aborted, self.index.entries.base_offsets[first])
        return Chunk(self.piece.segment.path, run, offsets, data, aborted, damage)


def _unknown(piece: Piece, fault: Corrupt) -> Chunk:
    """Return the whole of an object with an unreadable index, as damage."""
    entry = piece.segment.entry
    offsets = (entry.base_offset, entry.last_offset + 1)
    return Chunk(piece.segment.path, offsets, offsets, b"", (), str(fault))


def _end(entries: IndexBlock, stop: int) -> int:
    """Return the end of the entry before `stop` in the data."""
    return entries.positions[stop - 1] + entries.lengths[stop - 1]


def _any(flags: Sequence[int], flag: int) -> bool:
    return any(one & flag for one in flags)


def _indexes(
    task: BucketTask, store: ObjectStore, metrics: ReadMetrics, *, salvage: bool
) -> Iterator[tuple[Piece, SegmentIndex | Corrupt]]:
    """Return each piece with its object's index, or with `salvage` the reason for a missing one; fetch the next ones
    meanwhile.
    """
    sizes = [piece.segment.entry.size - piece.segment.entry.tail_start for piece in task.pieces]
    for size in sizes:
        metrics.bucket(size)

    def index_of(piece: Piece) -> SegmentIndex | Corrupt:
        try:
            return load_index(store, piece.segment)
        except Corrupt as fault:
            if not salvage:
                raise
            return fault

    gets = (partial(index_of, piece) for piece in task.pieces)
    found = read_ahead(zip(sizes, gets, strict=True), INDEXES_AHEAD_BYTES, at_once=2)
    return zip(task.pieces, found, strict=True)


def _runs(entries: IndexBlock, piece: Piece, wanted: Range) -> Iterator[tuple[int, int]]:
    """Return runs of entries that may hold requested records, within one piece."""
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
    """Yield a run in parts of about CHUNK_BYTES."""
    begin, size = first, 0
    for at in range(first, stop):
        if size and size + entries.lengths[at] > CHUNK_BYTES:
            yield begin, at
            begin, size = at, 0
        size += entries.lengths[at]
    yield begin, stop


def _offsets(entries: IndexBlock, piece: Piece, first: int, stop: int) -> tuple[int, int]:
    """Return the offsets that entries [first, stop) cover: up to the next entry, including compacted offsets."""
    entry = piece.segment.entry
    begin = entries.base_offsets[first] if first else entry.base_offset
    return begin, entries.base_offsets[stop] if stop < len(entries) else entry.last_offset + 1
