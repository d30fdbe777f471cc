"""Read records back from segment objects.

In: a segment that a manifest names, an offset. Out: whole batches, each byte checked against the object's index. It
never lists the bucket, and never returns a byte that was not uploaded: a missing or altered object raises Corrupt
with its name.

Objects are read in ranges of about `range_bytes` that begin and end at index entries, always the same ones. So a
sequential reader, and all readers after it, need one request per range. Ranges and decoded tails are cached.
Neighbouring ranges come in one request, and a thread that needs a range of a running request waits for it.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from concurrent.futures import Future  # noqa: TID251 - starts no thread: one thread waits for another's result
from dataclasses import dataclass
from functools import partial
from itertools import chain, takewhile
from typing import Any, Final, NamedTuple

from stratalog.errors import Corrupt
from stratalog.log.reading import Slices
from stratalog.ports import ObjectStore
from stratalog.tier.formats.manifest import Entry, RemoteSegment
from stratalog.tier.formats.segment_index import IndexBlock
from stratalog.tier.formats.segment_object import SegmentIndex, read_footer, read_ranges
from stratalog.tier.reading.cache import ByteCache
from stratalog.wire.batch import BatchHeader, scan
from stratalog.wire.records import read_records
from stratalog.wire.transactions import reaching as aborted_from

__all__ = ["Fetcher", "TimestampOffset", "load_index"]

RANGE_BYTES: Final = 1024 * 1024
_TAIL: Final = -1
"""The key of a segment's tail among its ranges."""
READ_BYTES_MAX: Final = 8 * 1024 * 1024
"""Most bytes of one `read` (except for a larger batch), whatever the caller requests."""


class TimestampOffset(NamedTuple):
    """The record that a search by time found."""

    offset: int
    timestamp: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class _Tail:
    """A decoded tail and the first index entry of each range."""

    index: SegmentIndex
    firsts: "array[int]"

    def range_of(self, entry: int) -> int:
        return bisect_right(self.firsts, entry) - 1

    def entries_of(self, number: int) -> tuple[int, int]:
        """Return the first entry of a range, and of the next range."""
        last = number + 1 == len(self.firsts)
        return self.firsts[number], len(self.index.entries) if last else self.firsts[number + 1]


def load_index(store: ObjectStore, segment: RemoteSegment) -> SegmentIndex:
    """Return a segment's decoded tail, in one request.

    Raises Corrupt where it differs from the manifest; Unavailable.
    """
    entry = segment.entry
    index = read_footer(store, segment.path, entry.size, entry.tail_start)
    if not _same(index, entry):
        raise Corrupt(f"{segment.path}: not the object that the manifest names")
    return index


def _same(index: SegmentIndex, entry: Entry) -> bool:
    summary = index.summary
    found = (summary.footer_crc, summary.data_crc, summary.data_size, summary.base_offset)
    return found == (entry.footer_crc, entry.data_crc, entry.data_size, entry.base_offset)


class Fetcher:
    """Cached reads of tiered segments. Blocking, and safe to use from several threads at once.

    `cache_bytes` bounds the cached ranges; decoded tails have a sixteenth of it beside them. `spent` receives the
    bytes of each request for batches, on the thread that made it.
    """

    def __init__(
        self,
        store: ObjectStore,
        cache_bytes: int = 64 << 20,
        *,
        range_bytes: int = RANGE_BYTES,
        spent: Callable[[int], None] = lambda _size: None,
    ) -> None:
        self.store = store
        self.range_bytes = range_bytes
        self._spent = spent
        self._in_flight: dict[tuple[str, int], Future[Any]] = {}
        self._ranges: ByteCache[bytes] = ByteCache(cache_bytes)
        self._tails: ByteCache[_Tail] = ByteCache(cache_bytes // 16)

    def read(
        self,
        segment: RemoteSegment,
        offset: int,
        max_bytes: int,
        *,
        minimum_one: bool = True,
    ) -> Slices:
        """Return whole batches of `segment` from the one that holds `offset` (in a gap: the next), up to `max_bytes`.

        With `minimum_one` the first batch comes whole even where it is larger. Where the segment has nothing at or
        after `offset`: no batch, up to the segment's end. Raises Corrupt naming the object, Unavailable.
        """
        tail = self._tail(segment)
        pieces = partial(self._pieces, segment, tail)
        found = self._read(segment, tail, offset, max_bytes, minimum_one, pieces)
        assert found is not None, "a read waits for every range"
        return found

    def held(
        self, segment: RemoteSegment, offset: int, max_bytes: int, *, minimum_one: bool = True
    ) -> Slices | None:
        """Return what `read` would, as far as the cache has it; None where the first range is missing. Never waits."""
        tail = self._tails.get(segment.path)
        if tail is None:
            return None
        pieces = partial(self._held, segment.path)
        return self._read(segment, tail, offset, max_bytes, minimum_one, pieces)

    def _held(self, path: str, number: int, stop: int) -> list[bytes]:
        found = map(self._ranges.get, [(path, one) for one in range(number, stop)])
        return list(takewhile(lambda piece: piece is not None, found))  # type: ignore[arg-type]

    def _read(
        self,
        segment: RemoteSegment,
        tail: _Tail,
        offset: int,
        max_bytes: int,
        minimum_one: bool,  # noqa: FBT001  # as `read` has it
        pieces_of: Callable[[int, int], list[bytes]],
    ) -> Slices | None:
        """Return batches from the one that holds `offset`; `pieces_of` returns ranges [first, stop) or fewer, as bytes.

        Positions: in the data of the object (`start`, `origin`), or relative to `origin`, the first range's own.
        """
        entries = tail.index.entries
        first = entries.entry_of(offset)
        if first == len(entries):
            return Slices([], offset, max(offset, segment.entry.last_offset + 1))
        start = entries.positions[first]
        wanted = min(max_bytes, READ_BYTES_MAX)
        # The wanted batch may be the last of its entry. So the ranges must reach `wanted` bytes past the end of the
        # entry, not past its start.
        before = entries.lengths[first] if entries.base_offsets[first] < offset else 0
        number = stop = tail.range_of(first)
        while stop < len(tail.firsts):
            end = _end(entries, tail.entries_of(stop)[1])
            stop += 1
            if end - start - before >= wanted:
                break
        pieces = pieces_of(number, stop)
        if not pieces:
            return None
        origin = entries.positions[tail.firsts[number]]
        limit = start - origin + entries.lengths[first]
        reaching = ((at, h) for at, h in scan(pieces[0], start - origin, limit))
        # The index says that this entry has the offset, so the scan finds its batch.
        begin, header = next((at, h) for at, h in reaching if h.last_offset >= offset)
        cut, next_offset = _cut(tail, pieces, number, begin, (first, offset), wanted)
        if cut == begin and minimum_one:
            cut, next_offset = begin + header.size, header.next_offset
        aborted = aborted_from(tail.index.aborted or (), offset)
        return Slices(
            _between(pieces, begin, cut),
            offset,
            next_offset,
            [one for one in aborted if one[1] < next_offset],
        )

    def offset_for_timestamp(
        self, segment: RemoteSegment, timestamp: int, start_offset: int = 0
    ) -> TimestampOffset | None:
        """Return the first record at or after `start_offset` whose timestamp (epoch ms) is `timestamp` or later; None.

        Decodes batches, in the worst case whole ranges of them. Raises Corrupt naming the object, Unavailable.
        """
        tail = self._tail(segment)
        entries = tail.index.entries
        for at in range(entries.entry_of(start_offset), len(entries)):
            if entries.max_timestamps[at] < timestamp:
                continue
            for header, batch in self._batches(segment, tail, at):
                if header.max_timestamp < timestamp:
                    continue
                for record in read_records(batch):
                    if record.timestamp >= timestamp and record.offset >= start_offset:
                        epoch = header.leader_epoch
                        return TimestampOffset(record.offset, record.timestamp, epoch)
        return None

    def latest(self, segment: RemoteSegment, start_offset: int = 0) -> TimestampOffset | None:
        """Return the first record of the greatest timestamp at or after `start_offset`; None. Raises as `read`."""
        tail = self._tail(segment)
        entries = tail.index.entries
        first = entries.entry_of(start_offset)
        if first == len(entries):
            return None
        greatest = max(entries.max_timestamps[first:])
        found = self.offset_for_timestamp(segment, greatest, start_offset)
        if found is not None:
            return found
        # The entry that holds `start_offset` has its greatest timestamp below it.
        kept = (
            record.timestamp
            for _, batch in self._batches(segment, tail, first)
            for record in read_records(batch)
            if record.offset >= start_offset
        )
        greatest = max(chain(kept, entries.max_timestamps[first + 1 :]), default=-1)
        return self.offset_for_timestamp(segment, greatest, start_offset)

    def _batches(
        self, segment: RemoteSegment, tail: _Tail, at: int
    ) -> Iterator[tuple[BatchHeader, bytes]]:
        """Yield the batches of one index entry."""
        entries = tail.index.entries
        number = tail.range_of(at)
        (data,) = self._pieces(segment, tail, number, number + 1)
        begin = entries.positions[at] - entries.positions[tail.firsts[number]]
        for position, header in scan(data, begin, begin + entries.lengths[at]):
            yield header, data[position : position + header.size]

    def prefetch(self, segment: RemoteSegment, offset: int, size: int, skip: int = 0) -> int:
        """Ensure bytes [skip, skip + size) after `offset` are cached, as far as the segment goes; return the segment's
        bytes from `offset` on. Does not wait for ranges of running requests. Raises as `read`.
        """
        tail = self._tail(segment)
        entries = tail.index.entries
        first = entries.entry_of(offset)
        if first == len(entries):
            return 0
        start = entries.positions[first]
        number = tail.range_of(first)
        aheads = [max(entries.positions[at] - start, 0) for at in tail.firsts[number:]]
        stop = number + bisect_left(aheads, skip + size)
        number += bisect_left(aheads, skip)
        while number < stop:
            mine = self._claim(segment.path, number, stop)
            if mine:
                self._request(segment, tail, number, mine)
            number += len(mine) or 1
        return segment.entry.data_size - start

    def _tail(self, segment: RemoteSegment) -> _Tail:
        tail = self._tails.get(segment.path)
        while tail is None:
            mine = self._claim(segment.path, _TAIL, _TAIL + 1)
            if not mine:
                other = self._in_flight.get((segment.path, _TAIL))
                tail = self._tails.get(segment.path) if other is None else other.result()
                continue
            try:
                # Another thread may have cached it between the look-up and the claim.
                tail = self._tails.get(segment.path) or self._request_tail(segment)
                mine[0].set_result(tail)
            finally:
                self._arrived(segment.path, _TAIL, mine)
        return tail

    def _request_tail(self, segment: RemoteSegment) -> _Tail:
        index = load_index(self.store, segment)
        tail = _Tail(index, _firsts(index.entries, self.range_bytes))
        size = segment.entry.size - segment.entry.tail_start + 8 * len(tail.firsts)
        self._tails.put(segment.path, tail, size)
        return tail

    def _pieces(self, segment: RemoteSegment, tail: _Tail, number: int, stop: int) -> list[bytes]:
        """Return the bytes of ranges `number` to `stop` (excluded), one by one; neighbours that are neither cached nor
        requested come in one request.
        """
        path = segment.path
        pieces: list[bytes] = []
        while number < stop:
            held = self._ranges.get((path, number))
            other = self._in_flight.get((path, number)) if held is None else None
            if other is not None:
                held = other.result()
            if held is not None:
                pieces.append(held)
                number += 1
                continue
            mine = self._claim(path, number, stop)  # empty where another thread came first
            if mine:
                pieces += self._request(segment, tail, number, mine)
            number += len(mine)
        return pieces

    def _claim(self, path: str, number: int, stop: int) -> list[Future[Any]]:
        """Claim ranges from `number` on for this thread to fetch: a future for each, for other threads to wait on."""
        mine: list[Future[Any]] = []
        for one in range(number, stop):
            flight: Future[Any] = Future()
            if self._in_flight.setdefault((path, one), flight) is not flight:
                break
            mine.append(flight)
            # Another thread may have cached it between the caller's look-up and this claim.
            if self._ranges.get((path, one)) is not None:
                self._arrived(path, one, [mine.pop()])
                break
        return mine

    def _arrived(self, path: str, number: int, mine: list[Future[Any]]) -> None:
        """End the claims. A range that was not fetched resolves to None: waiting threads fetch it themselves."""
        for at, flight in enumerate(mine):
            self._in_flight.pop((path, number + at), None)
            if not flight.done():
                flight.set_result(None)

    def _request(
        self, segment: RemoteSegment, tail: _Tail, number: int, mine: list[Future[Any]]
    ) -> list[bytes]:
        """Fetch the claimed ranges, from `number` on."""
        entries = tail.index.entries
        numbers = range(number, number + len(mine))
        spans = [tail.entries_of(one) for one in numbers]
        sizes = [_end(entries, stop) - entries.positions[first] for first, stop in spans]
        found = read_ranges(self.store, segment.path, entries.positions[spans[0][0]], sizes)
        pieces = []
        try:
            for one, flight, span, piece in zip(numbers, mine, spans, found, strict=True):
                self._spent(len(piece))
                entries.check(*span, piece, segment.path)
                pieces.append(piece)
                self._ranges.put((segment.path, one), piece, len(piece))
                flight.set_result(piece)
        finally:
            self._arrived(segment.path, number, mine)
        return pieces


def _cut(
    tail: _Tail,
    pieces: list[bytes],
    number: int,
    begin: int,
    first: tuple[int, int],
    wanted: int,
) -> tuple[int, int]:
    """Return the end of the last whole batch within `wanted` bytes of `begin`, and the offset after that batch.

    `pieces` are the bytes of ranges `number` on; positions are relative to the first of them. `first`: the index entry
    that has `begin`, and the requested offset. Whole entries count by the index; only the last one is scanned.
    """
    entries = tail.index.entries
    limit = begin + wanted
    total = sum(map(len, pieces))
    if limit >= total:
        return total, entries.last_offsets[tail.entries_of(number + len(pieces) - 1)[1] - 1] + 1
    origin = entries.positions[tail.firsts[number]]
    entry = bisect_right(entries.positions, origin + limit) - 1
    cut, next_offset = begin, first[1]
    if entry > first[0]:
        cut, next_offset = entries.positions[entry] - origin, entries.last_offsets[entry - 1] + 1
    holder = tail.range_of(entry)
    start = entries.positions[tail.firsts[holder]] - origin
    for at, header in scan(pieces[holder - number], cut - start):
        if start + at + header.size > limit:
            break
        cut, next_offset = start + at + header.size, header.next_offset
    return cut, next_offset


def _between(pieces: list[bytes], begin: int, end: int) -> list[memoryview]:
    """Return views of bytes [begin, end) of the joined pieces."""
    found = []
    for piece in pieces:
        if begin < len(piece) and end > 0:
            found.append(memoryview(piece)[max(begin, 0) : end])
        begin -= len(piece)
        end -= len(piece)
    return [view for view in found if view]


def _end(entries: IndexBlock, stop: int) -> int:
    """Return the position in the data where the entry before `stop` ends."""
    return entries.positions[stop - 1] + entries.lengths[stop - 1]


def _firsts(entries: IndexBlock, range_bytes: int) -> "array[int]":
    firsts = array("q")
    start = 0
    for at, position in enumerate(entries.positions):
        if not firsts or position - start >= range_bytes:
            firsts.append(at)
            start = position
    return firsts
