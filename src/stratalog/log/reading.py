"""Find batches in segments on disk, by offset.

In: segments, offsets. Out: programs that yield `Read` and return views of whole batches. It decodes no record, and
never checks CRCs: clients, recovery and the archiver do. A read's result may be the bytes or, for a socket, their place
in the page cache (`FileRange`): then only headers are read.

A batch's offset and length, and the indexes, have no checksum. A reader trusts them only where their neighbours confirm
them. An index entry counts where the log confirms it. Offsets are Corrupt if they go back, reach beyond the segment, or
leave a gap that the next batch contradicts: with such a batch a consumer would skip records.
"""

from bisect import bisect_right
from collections.abc import Generator, Sequence
from typing import Final

from msgspec import Struct

from stratalog.errors import Corrupt
from stratalog.log.effects import Program, Read, Result
from stratalog.log.index import OFFSET_ENTRY, search_file
from stratalog.log.segment import Segment
from stratalog.ports import Buffer, FileRange
from stratalog.wire.batch import (
    BASE_OFFSET,
    HEADER_SIZE,
    LAST_OFFSET_DELTA,
    SIZE,
    BatchHeader,
    parse_header,
)
from stratalog.wire.walk import pass_batches

__all__ = [
    "FILE_BYTES_MIN",
    "Data",
    "NotLocal",
    "Places",
    "ReadPlan",
    "Slices",
    "advance",
    "batch_at",
    "cut_off",
    "following",
    "header_at",
    "locate",
    "read_batches",
    "segment_at",
    "suits_a_file",
]

_HEADERS_BYTES: Final = 8 * 1024
"""Bytes per read during a search for a batch: index entries lie about half as far apart."""
_ENTRIES_TRIED: Final = 2
"""Number of index entries to try: where the log confirms none, a search begins at the segment's first byte."""
_OFFSET_BYTES: Final = 8
_SIZE_AT: Final = 8
FILE_BYTES_MIN: Final = 64 << 10
"""Batches of at least so many bytes may stay in their file on the way to a socket."""
_FILE_BATCH_MIN: Final = 16 << 10
"""With smaller batches, each header is a system call that costs as much as the copy of its batch."""
_SMALL_BATCH: Final = 4 << 10
"""Behind a batch below this size, `pass_batches` is worth the copy that it may need."""
Data = bytes | bytearray | FileRange
"""The bytes of a read, or their place in the page cache."""


class NotLocal(Exception):
    """Raised for an offset of the log that is no longer on this disk: read it from the tier."""


class Slices(Struct, frozen=True):
    """Whole batches, as views in order: offsets [first_offset, next_offset).

    The first may begin before the requested offset. Empty: there is no batch between these two offsets. `aborted` are
    the aborted transactions among them, as (producer id, first offset); None: the reader looks in the local log.
    """

    buffers: list[memoryview]
    first_offset: int
    next_offset: int
    aborted: Sequence[tuple[int, int]] | None = None
    file: FileRange | None = None
    """The batches, where the reader takes them from their file; there are no buffers then."""

    @property
    def pieces(self) -> "Sequence[Buffer | FileRange]":
        """The batches in order, in memory or in their file."""
        return self.buffers if self.file is None else (self.file,)

    @property
    def size(self) -> int:
        """Total number of bytes."""
        return sum(map(len, self.pieces))


class ReadPlan(Struct, frozen=True):
    """Read `size` bytes at `position` of `path` and pass them to `PartitionLog.finish_read`, once."""

    path: str
    position: int
    size: int
    may_stay: bool
    """Whether `finish_read` also takes the bytes' place in the page cache."""
    program: Generator[Read, Result, Slices]


class Places:
    """The ends of recent reads (next offset → byte position): a consumer's next read starts exactly there."""

    __slots__ = ("_positions",)

    _PLACES_MAX: Final = 64

    def __init__(self) -> None:
        self._positions: dict[int, tuple[Segment, int]] = {}

    def note(self, offset: int, segment: Segment, position: int) -> None:
        """Remember a read that ended before `offset`: that batch, if any, is at `position` of `segment`."""
        if len(self._positions) >= self._PLACES_MAX:
            del self._positions[next(iter(self._positions))]
        self._positions[offset] = segment, position

    def take(self, offset: int, segment: Segment) -> int | None:
        """Return the position of `offset`, if a read ended there and it is still in `segment`."""
        found = self._positions.pop(offset, None)
        if found is None or found[0] is not segment:
            return None
        return found[1]

    def look(self, offset: int) -> tuple[Segment, int] | None:
        """Return what `take` would use up, for `put_back`."""
        return self._positions.get(offset)

    def put_back(self, offset: int, place: tuple[Segment, int] | None) -> None:
        """Let the next read of `offset` begin where one began that is given up."""
        if place is not None:
            self._positions[offset] = place

    def clear(self) -> None:
        """Forget all positions, after the log was truncated."""
        self._positions.clear()


def advance(program: Generator[Read, Result, Slices], data: Data | None) -> Slices | ReadPlan:
    """Run `read_batches` up to its next read (`data` is the last one's result, None at first) or to its end."""
    try:
        read = program.send(data)
    except StopIteration as end:
        found = end.value
        assert isinstance(found, Slices)
        return found
    return ReadPlan(read.path, read.position, read.size, read.may_stay, program)


def segment_at(segments: list[Segment], offset: int) -> Segment | None:
    """Return the last segment that begins at or before `offset`."""
    at = bisect_right(segments, offset, key=_base_offset)
    return segments[at - 1] if at else None


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


def following(segments: list[Segment], segment: Segment) -> Segment | None:
    """Return the segment after this one, or None."""
    at = bisect_right(segments, segment.base_offset, key=_base_offset)
    return segments[at] if at < len(segments) else None


def read_batches(
    segments: list[Segment],
    places: Places,
    offset: int,
    end_offset: int,
    max_bytes: int,
    *,
    minimum_one_batch: bool,
) -> Generator[Read, Result, Slices]:
    """Yield whole batches from the one that holds `offset` (or the next there is), below `end_offset`, out of one
    segment.

    `segments` is the log's own list: it may change between reads. Raises Corrupt for malformed files.
    """
    segment = segment_at(segments, offset)
    while segment is not None and segment.base_offset < end_offset:
        walk = _Walk(segment, offset, end_offset, max_bytes, minimum_one_batch=minimum_one_batch)
        position = places.take(offset, segment)
        if position is not None:
            walk.expected = offset
        else:
            position, walk.expected, found = yield from locate(segment, offset, max_bytes)
            if found is not None:
                position += walk.feed(found, position)
        while not walk.done and position < segment.readable:
            size = min(max(walk.wanted, HEADER_SIZE), segment.readable - position)
            data = yield Read(segment.path, position, size, may_stay=True)
            assert not isinstance(data, list | None)
            if len(data) < size:
                raise cut_off(segment, position + len(data))
            position += walk.feed(data, position)
        if walk.in_doubt and walk.view is not None:
            behind = yield Read(segment.path, position, _OFFSET_BYTES)
            assert isinstance(behind, bytes | bytearray)
            _check_followed(segment.path, position, walk.next_offset, behind)
        if walk.view is not None:
            places.note(walk.next_offset, segment, position)
            view, first, end = walk.view, walk.first_offset, walk.next_offset
            if isinstance(view, memoryview):
                return Slices([view], first, end)
            return Slices([], first, end, file=view)
        if walk.done:
            break
        segment = following(segments, segment)
    return Slices([], offset, offset)


def batch_at(
    segments: list[Segment], offset: int, end_offset: int
) -> Program[tuple[Segment, int, BatchHeader] | None]:
    """Return the batch that holds `offset` (or the next there is, below `end_offset`): its segment, its place and its
    header.

    Reads headers and little more. Raises Corrupt for malformed files.
    """
    segment = segment_at(segments, offset)
    while segment is not None and segment.base_offset < end_offset:
        position, _, _ = yield from locate(segment, offset)
        while position + HEADER_SIZE <= segment.readable:
            size = min(_HEADERS_BYTES, segment.readable - position)
            data = yield Read(segment.path, position, size)
            assert isinstance(data, bytes | bytearray)
            at = 0
            while at + HEADER_SIZE <= len(data):
                header = header_at(segment.path, data, at, position)
                if header.next_offset > offset:
                    return segment, position + at, header
                at += header.size
            if at == 0:
                raise cut_off(segment, position + len(data))
            position += at
        segment = following(segments, segment)
    return None


def locate(
    segment: Segment, offset: int, wanted: int = HEADER_SIZE
) -> Generator[Read, Result, tuple[int, int, Data | None]]:
    """Find where a search for the batch that holds `offset` begins.

    Return the position of an index entry's batch, that batch's base offset, and the `wanted` bytes that confirmed the
    entry. Where the log confirms no entry: the segment's first byte, its base offset, and None.

    An entry is the last offset of its batch. (Kafka before 4.0: of the append whose first batch lies there. Such a
    batch ends before the entry's offset. It confirms the entry, unless `offset` is the entry's: a batch whose base
    offset is damaged looks the same, and the search would pass over it.)
    """
    relative = offset - segment.base_offset
    for _ in range(_ENTRIES_TRIED):
        entry = yield from _entry(segment, relative)
        if entry is None:
            break
        last_offset, position = segment.base_offset + entry[0], entry[1]
        if position < segment.readable:
            size = min(max(wanted, HEADER_SIZE), segment.readable - position)
            data = yield Read(segment.path, position, size, may_stay=True)
            assert not isinstance(data, list | None)
            if len(data) < size:
                raise cut_off(segment, position + len(data))
            try:
                header = _parsed(data, 0)
            except Corrupt:
                pass
            else:
                first, last = header[BASE_OFFSET], header.last_offset
                if segment.base_offset <= first and (
                    last == last_offset or first <= last < last_offset < offset
                ):
                    return position, first, data
        relative = min(entry[0], relative) - 1
    return 0, segment.base_offset, None


def _entry(segment: Segment, relative: int) -> Generator[Read, Result, tuple[int, int] | None]:
    if segment.index is not None:
        return segment.index.floor(relative)
    found = yield from search_file(  # type: ignore[misc]  # it yields nothing but reads
        segment.index_path, segment.index_size, OFFSET_ENTRY, relative
    )
    return found


class _Walk:
    """A walk over batch headers until the requested batches. `feed` returns how far to move.

    No batch may begin below `expected`. `in_doubt`: the batch found begins above it, and the bytes behind must confirm
    the gap (`_check_followed`).
    """

    __slots__ = (
        "done",
        "end_offset",
        "expected",
        "first_offset",
        "in_doubt",
        "max_bytes",
        "minimum_one_batch",
        "next_offset",
        "offset",
        "segment",
        "view",
        "wanted",
    )

    def __init__(
        self,
        segment: Segment,
        offset: int,
        end_offset: int,
        max_bytes: int,
        *,
        minimum_one_batch: bool,
    ) -> None:
        self.segment = segment
        self.offset = offset
        self.end_offset = end_offset
        self.max_bytes = max_bytes
        self.minimum_one_batch = minimum_one_batch
        self.wanted = max_bytes
        self.done = False
        self.in_doubt = False
        self.expected = segment.base_offset
        self.first_offset = self.next_offset = offset
        self.view: memoryview | FileRange | None = None

    def feed(self, data: Data, position: int) -> int:
        """Walk over bytes that begin with a batch, at `position` of the file; return how many the walk has passed.

        Afterwards either the walk is `done` (with `view`, or without one where no batch fits), or it needs `wanted`
        bytes from there. A batch that the segment's end cuts short is Corrupt. Sound batches before damage are found
        first.
        """
        at, end, start = 0, len(data), -1
        at_end = position + end == self.segment.readable
        while at + HEADER_SIZE <= end:
            self.in_doubt = False
            try:
                header = header_at(self.segment.path, data, at, position)
                first, behind = header[BASE_OFFSET], at + header[SIZE]
                next_offset = first + header[LAST_OFFSET_DELTA] + 1
                if first != self.expected or not first < next_offset <= self.segment.next_offset:
                    self._check_gap(position + at, header, _bytes_at(data, behind, _OFFSET_BYTES))
                    self.in_doubt = behind + _OFFSET_BYTES > end and not at_end
            except Corrupt:
                if start >= 0:
                    break
                raise
            if start < 0 and next_offset <= self.offset:
                at, self.expected = behind, next_offset
                continue
            fits = behind - (at if start < 0 else start) <= self.max_bytes
            if next_offset > self.end_offset or not (
                fits or (start < 0 and self.minimum_one_batch)
            ):
                self.done = True
                break
            if behind > end or (self.in_doubt and start >= 0):
                self.wanted = max(behind - at, self.max_bytes)
                break
            self.next_offset = self.expected = next_offset
            if start < 0:
                start, self.first_offset = at, first
                if behind - at < _SMALL_BATCH and isinstance(data, bytes | bytearray):
                    behind = self._pass_small(data, behind, at + self.max_bytes)
            at = behind
        if start >= 0:
            self.done = True
            self.view = _view(data, start, at)
        elif at_end and not self.done and at < end:
            raise cut_off(self.segment, self.segment.readable)
        return at

    def _pass_small(self, data: bytes | bytearray, at: int, stop: int) -> int:
        """Do as `feed` for the batches at `at` that end before `stop`, up to the first one behind a gap."""
        end_offset = min(self.end_offset, self.segment.next_offset)
        at, offset = pass_batches(bytes(data), at, self.next_offset, stop, end_offset)
        self.next_offset = self.expected = offset
        return at

    def _check_gap(self, position: int, header: BatchHeader, behind: bytes | bytearray) -> None:
        """Raise Corrupt unless a batch's offsets lie above the last batch's, and below those of the bytes behind."""
        segment, expected = self.segment, self.expected
        first, next_offset = header.base_offset, header.next_offset
        if first < expected or not first < next_offset <= segment.next_offset:
            raise _damaged(
                segment.path,
                position,
                f"a batch has offsets {first} to {next_offset - 1}, "
                f"where {expected} to {segment.next_offset - 1} can be",
            )
        _check_followed(segment.path, position + header.size, next_offset, behind)


def _check_followed(path: str, position: int, next_offset: int, behind: bytes | bytearray) -> None:
    """Raise Corrupt where the next offset, at `position`, contradicts the gap before a batch."""
    if len(behind) == _OFFSET_BYTES and int.from_bytes(behind, "big") < next_offset:
        reason = (
            f"the batch before leaves out offsets and ends at {next_offset - 1}; this one goes back"
        )
        raise _damaged(path, position, reason)


def _damaged(path: str, position: int, reason: str) -> Corrupt:
    """Return the error for bytes at `position` of a file, with the same place for every read that meets them."""
    return Corrupt(f"{path}: byte {position}: {reason}", (path, position))


def cut_off(segment: Segment, position: int) -> Corrupt:
    """Return the error for a file that ends too early, at `position`."""
    return _damaged(segment.path, position, "the file ends inside a batch")


def suits_a_file(data: FileRange) -> bool:
    """Return whether a read of batches had better leave them in their file: they are few and large, by the first."""
    return int.from_bytes(data.peek(_SIZE_AT, 4), "big") >= _FILE_BATCH_MIN


def _view(data: Data, start: int, end: int) -> memoryview | FileRange:
    if isinstance(data, bytes | bytearray):
        return memoryview(data)[start:end]
    part = data.part(start, end)
    return part if len(part) >= FILE_BYTES_MIN else memoryview(part.read())


def _bytes_at(data: Data, at: int, size: int) -> bytes | bytearray:
    return data[at : at + size] if isinstance(data, bytes | bytearray) else data.peek(at, size)


def _parsed(data: Data, at: int) -> BatchHeader:
    if isinstance(data, bytes | bytearray):
        return parse_header(data, at)
    return parse_header(data.peek(at, HEADER_SIZE))


def header_at(path: str, data: Data, at: int, position: int) -> BatchHeader:
    """Return the batch header at index `at` of bytes that lie at `position` of a file. Raises Corrupt."""
    try:
        return _parsed(data, at)
    except Corrupt as error:
        raise _damaged(path, position + at, str(error)) from error
