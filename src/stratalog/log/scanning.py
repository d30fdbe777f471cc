"""Scan the batches of a segment's file, to rebuild its state.

In: a segment and the sizes of its files. Out: programs that fill in its indexes, sizes and timestamps, and producers'
states. It never changes a file.
"""

from collections.abc import Callable
from typing import Final

from stratalog.errors import Corrupt
from stratalog.log.effects import Program, Read
from stratalog.log.index import TIME_ENTRY, OffsetIndex, TimeIndex
from stratalog.log.producers import ProducerStates
from stratalog.log.segment import RELATIVE_OFFSET_MAX, SNAPSHOT, Segment, segment_path
from stratalog.wire.batch import HEADER_SIZE, BatchHeader, crc_holds, parse_header

__all__ = [
    "OnBatch",
    "TakeRun",
    "load_indexes",
    "load_producers",
    "load_snapshot",
    "read_max_timestamp",
    "scan_segment",
    "visit",
]

_CHUNK_BYTES: Final = 1024 * 1024
OFFSET_MAX: Final = 2**63 - 1

OnBatch = Callable[[BatchHeader, memoryview], None]
TakeRun = Callable[[bytes, int, int], int]


def visit(
    path: str,
    start: int,
    end: int,
    take: Callable[[BatchHeader, memoryview], bool],
    take_run: TakeRun | None = None,
) -> Program[int]:
    """Call `take` with every whole batch of bytes [start, end); return the position after the last accepted one.

    Before each batch, `take_run(data, position, stop)` may take it and others behind it: it returns the position of the
    first batch of `data` that it did not take. `stop` is the place of `end`, perhaps behind `data`.
    Stops where `take` refuses, at a malformed header, and at an incomplete batch.
    """
    position = start
    wanted = _CHUNK_BYTES
    while position < end:
        data = yield Read(path, position, min(wanted, end - position))
        assert isinstance(data, bytes | bytearray)
        data = bytes(data)  # disks return bytes, which are not copied
        view = memoryview(data)
        done = 0
        try:
            while True:
                if take_run is not None:
                    done = take_run(data, done, end - position)
                if done + HEADER_SIZE > len(view):
                    break
                header = parse_header(view, done)
                behind = done + header.size
                if behind > len(view):
                    break
                if not take(header, view[done:behind]):
                    return position + done
                done = behind
        except Corrupt:
            return position + done
        if done == 0:
            needed = parse_header(view).size if len(view) >= HEADER_SIZE else HEADER_SIZE
            if needed <= len(view) or needed > end - position:
                return position
            wanted = needed
        else:
            wanted = _CHUNK_BYTES
            position += done
    return position


def scan_segment(  # noqa: PLR0913  # each is a limit of what counts as sound
    segment: Segment,
    file_size: int,
    interval: int,
    *,
    check_crc: bool,
    below: int = OFFSET_MAX,
    gaps_below: int = OFFSET_MAX,
    on_batch: OnBatch = lambda _header, _view: None,
) -> Program[None]:
    """Add the batches from `segment.size` on, up to the first that is damaged, out of order or reaches `below`.

    A batch after a gap in the offsets must end below `gaps_below`. Afterwards `segment.size` is the end of the sound
    batches.
    """
    base = segment.base_offset

    def take(header: BatchHeader, view: memoryview) -> bool:
        if (
            header.base_offset < segment.next_offset
            or (header.base_offset != segment.next_offset and header.last_offset >= gaps_below)
            or header.last_offset_delta < 0
            or header.last_offset - base > RELATIVE_OFFSET_MAX
            or header.last_offset >= below
            or (check_crc and not crc_holds(view, 0, header))
        ):
            return False
        segment.add(
            header.last_offset, header.next_offset, header.size, header.max_timestamp, interval
        )
        on_batch(header, view)
        return True

    yield from visit(segment.path, segment.size, file_size, take)
    segment.readable = segment.size


def load_indexes(
    segment: Segment, *, index_size: int, time_index_size: int, log_size: int
) -> Program[bool]:
    """Load the index files of a cleanly closed segment; return False, without a change, where they are damaged.

    `segment.size` is then the start of its last indexed batch, where `scan_segment` continues.
    """
    try:
        data = yield Read(segment.index_path, 0, index_size)
        assert isinstance(data, bytes)
        index = OffsetIndex.decode(data, log_size)
        data = yield Read(segment.time_index_path, 0, time_index_size)
        assert isinstance(data, bytes)
        time_index = TimeIndex.decode(data)
        data = yield Read(segment.path, 0, HEADER_SIZE)
        assert isinstance(data, bytes)
        first = parse_header(data)
        position = index.positions[-1] if index.positions else 0
        if position:
            data = yield Read(segment.path, position, HEADER_SIZE)
            assert isinstance(data, bytes)
            if parse_header(data).last_offset - segment.base_offset != index.offsets[-1]:
                return False
    except (Corrupt, FileNotFoundError):
        return False
    segment.index = index
    segment.time_index = time_index
    segment.size = position
    segment.first_timestamp = first.max_timestamp
    if time_index.timestamps:
        segment.max_timestamp = time_index.timestamps[-1]
        segment.max_timestamp_offset = segment.base_offset + time_index.offsets[-1]
        segment.is_time_confirmed = False
    return True


def read_max_timestamp(segment: Segment) -> Program[bool]:
    """Read a closed segment's largest timestamp from the end of its time index; return False where that is
    malformed.
    """
    if segment.time_index_size % TIME_ENTRY.size:
        return False
    if segment.time_index_size == 0:
        return True  # no record has a timestamp
    try:
        data = yield Read(
            segment.time_index_path, segment.time_index_size - TIME_ENTRY.size, TIME_ENTRY.size
        )
    except FileNotFoundError:
        return False
    assert isinstance(data, bytes)
    if len(data) < TIME_ENTRY.size:
        return False
    timestamp, offset = TIME_ENTRY.unpack(data)
    last = segment.next_offset - segment.base_offset - 1
    # Zeros at the end come from a file that Kafka preallocated and never trimmed.
    if timestamp < 0 or not 0 <= offset <= last or (timestamp == 0 and offset == 0 and last > 0):
        return False
    segment.max_timestamp = timestamp
    segment.max_timestamp_offset = segment.base_offset + offset
    segment.is_time_confirmed = False
    return True


def load_producers(
    directory: str, segments: list[Segment], snapshots: set[int], end_offset: int, now_ms: int
) -> Program[ProducerStates]:
    """Return producers as they were at `end_offset`: the newest sound snapshot at or below it, then the batches after
    it.
    """
    producers, position = yield from _newest_snapshot(directory, snapshots, end_offset, now_ms)

    def take(header: BatchHeader, view: memoryview) -> bool:
        if header.base_offset >= end_offset:
            return False
        if header.producer_id >= 0 and header.base_offset >= position:
            producers.take(header, view, header.base_offset, now_ms)
        return True

    for segment in segments:
        if segment.next_offset > position and segment.base_offset < end_offset:
            yield from visit(segment.path, 0, segment.size, take)
    return producers


def load_snapshot(
    directory: str, snapshots: set[int], end_offset: int, now_ms: int
) -> Program[ProducerStates]:
    """Return producers as the newest sound snapshot at or below `end_offset` has them."""
    producers, _offset = yield from _newest_snapshot(directory, snapshots, end_offset, now_ms)
    return producers


def _newest_snapshot(
    directory: str, snapshots: set[int], end_offset: int, now_ms: int
) -> Program[tuple[ProducerStates, int]]:
    for offset in sorted((o for o in snapshots if o <= end_offset), reverse=True):
        path = segment_path(directory, offset, SNAPSHOT)
        try:
            producers = yield from _read_snapshot(path, now_ms)
        except (Corrupt, FileNotFoundError):
            continue
        return producers, offset
    return ProducerStates(), -1


def _read_snapshot(path: str, now_ms: int) -> Program[ProducerStates]:
    data = b""
    while True:
        more = yield Read(path, len(data), _CHUNK_BYTES)
        assert isinstance(more, bytes)
        data += more
        if len(more) < _CHUNK_BYTES:
            return ProducerStates.decode(data, now_ms)
