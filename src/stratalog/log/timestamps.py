"""Find offsets by timestamp in segments on disk, and confirm a segment's largest timestamp.

In: segments, timestamps. Out: programs that yield `Read` and return offsets. It decodes records only of the one batch
that may hold the timestamp.
"""

from typing import Final

from stratalog.errors import Corrupt
from stratalog.log.effects import Program, Read
from stratalog.log.index import TIME_ENTRY, search_file
from stratalog.log.reading import batch_at, cut_off, following, header_at, locate, segment_at
from stratalog.log.scanning import visit
from stratalog.log.segment import Segment
from stratalog.wire.batch import HEADER_SIZE, BatchHeader, crc_holds
from stratalog.wire.records import read_records

__all__ = ["confirm_time", "latest_record", "offset_for_timestamp"]

_OPENED_BYTES_MAX: Final = 32 << 20
_SCAN_BYTES: Final = 256 * 1024


def confirm_time(segment: Segment) -> Program[None]:
    """Compare a closed segment's largest timestamp, which comes from an index file, with its batches.

    The file has no checksum, and retention deletes by that time. If the batch that it names does not have that
    timestamp, read every header.
    """
    try:
        found = yield from batch_at([segment], segment.max_timestamp_offset, segment.next_offset)
    except Corrupt:
        found = None
    if found is None or found[2].max_timestamp != segment.max_timestamp:
        segment.max_timestamp = -1

        def take(header: BatchHeader, _view: memoryview) -> bool:
            if header.max_timestamp > segment.max_timestamp:
                segment.max_timestamp = header.max_timestamp
                segment.max_timestamp_offset = header.last_offset
            return True

        yield from visit(segment.path, 0, segment.size, take)
    segment.is_time_confirmed = True


def offset_for_timestamp(
    segments: list[Segment], timestamp: int, start_offset: int, end_offset: int
) -> Program[tuple[int, int, int] | None]:
    """Return the first record at or after `timestamp` within [start_offset, end_offset), as (offset, timestamp, leader
    epoch).

    "First" is by offset. Kafka: `UnifiedLog.fetchOffsetByTimestamp`.
    """
    segment = segment_at(segments, start_offset)
    while segment is not None and segment.base_offset < end_offset:
        if segment.max_timestamp >= timestamp:
            relative = yield from _time_floor(segment, timestamp)
            from_offset = max(segment.base_offset + relative, start_offset)
            position, _, _ = yield from locate(segment, from_offset)
            found = yield from _search_records(
                segment, position, timestamp, start_offset, end_offset
            )
            if found is not None:
                return found
        segment = following(segments, segment)
    return None


def latest_record(
    segments: list[Segment], start_offset: int, end_offset: int
) -> Program[tuple[int, int, int] | None]:
    """Return the first record of the largest timestamp within [start_offset, end_offset), as `offset_for_timestamp`."""
    latest = max(segment.max_timestamp for segment in segments)
    found = yield from offset_for_timestamp(segments, latest, start_offset, end_offset)
    first = segment_at(segments, start_offset)
    if found is not None or first is None or first.base_offset >= start_offset:
        return found
    # The first segment still counts records that were deleted below `start_offset`.
    behind = [segment.max_timestamp for segment in segments if segment.base_offset > start_offset]
    kept = yield from _latest_kept(first, start_offset)
    latest = max(kept, *behind) if behind else kept
    return (yield from offset_for_timestamp(segments, latest, start_offset, end_offset))


def _latest_kept(segment: Segment, start_offset: int) -> Program[int]:
    """Return the largest timestamp of the segment's records at or after `start_offset`; reads every header from it."""
    latest = -1

    def take(header: BatchHeader, view: memoryview) -> bool:
        nonlocal latest
        if header.base_offset >= start_offset:
            latest = max(latest, header.max_timestamp)
        elif header.last_offset >= start_offset and header.max_timestamp > latest:
            latest = _latest_of_batch(view, header, start_offset)
        return True

    position, _, _ = yield from locate(segment, start_offset)
    yield from visit(segment.path, position, segment.readable, take)
    return latest


def _latest_of_batch(batch: memoryview, header: BatchHeader, start_offset: int) -> int:
    """Return the largest timestamp from `start_offset` on; that of all records where the batch cannot be opened."""
    try:
        records = read_records(batch, max_bytes=_OPENED_BYTES_MAX)
        return max((one.timestamp for one in records if one.offset >= start_offset), default=-1)
    except Corrupt:
        return header.max_timestamp


def _time_floor(segment: Segment, timestamp: int) -> Program[int]:
    if segment.time_index is not None:
        return segment.time_index.floor(timestamp)
    found = yield from search_file(
        segment.time_index_path, segment.time_index_size, TIME_ENTRY, timestamp - 1
    )
    return 0 if found is None else found[1]


def _search_records(
    segment: Segment, position: int, timestamp: int, start_offset: int, end_offset: int
) -> Program[tuple[int, int, int] | None]:
    wanted = _SCAN_BYTES
    while position < segment.readable:
        size = min(wanted, segment.readable - position)
        data = yield Read(segment.path, position, size)
        assert isinstance(data, bytes | bytearray)
        at = 0
        wanted = _SCAN_BYTES
        while at + HEADER_SIZE <= len(data):
            header = header_at(segment.path, data, at, position)
            if header.base_offset >= end_offset:
                return None
            if at + header.size > len(data):
                wanted = max(header.size, _SCAN_BYTES)
                break
            if header.max_timestamp >= timestamp and header.next_offset > start_offset:
                batch = memoryview(data)[at : at + header.size]
                found = _search_batch(batch, header, timestamp, start_offset, end_offset)
                if found is not None:
                    return *found, header.leader_epoch
            at += header.size
        if at == 0 and size == segment.readable - position:
            raise cut_off(segment, position + len(data))
        position += at
    return None


def _search_batch(
    batch: memoryview, header: BatchHeader, timestamp: int, start_offset: int, end_offset: int
) -> tuple[int, int] | None:
    """Return the first matching record, as (offset, timestamp).

    For a batch that cannot be decompressed, or would fill the memory, return its first offset: no match lies before it.
    Raises Corrupt for damaged bytes.
    """
    try:
        for record in read_records(batch, max_bytes=_OPENED_BYTES_MAX):
            if record.timestamp >= timestamp and start_offset <= record.offset < end_offset:
                return record.offset, min(record.timestamp, header.max_timestamp)
    except Corrupt:
        if not crc_holds(batch, 0, header):
            raise
        return max(header.base_offset, start_offset), header.max_timestamp
    return None
