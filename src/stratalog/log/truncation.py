"""Cut a log back to an offset.

In: a log's segments and an offset. Out: a program that cuts the files and the segments. It never leaves part of a
batch.

Kafka: `UnifiedLog.truncateTo`, `truncateFullyAndStartAt`.
"""

from stratalog.log.effects import Append, Program, Sync, SyncDirectory, Truncate, Unlink, WriteFile
from stratalog.log.retention import deleted_paths
from stratalog.log.scanning import load_indexes, scan_segment
from stratalog.log.segment import SNAPSHOT, Segment, segment_path
from stratalog.log.transaction_index import below

__all__ = ["restart_segments", "truncate_segments", "unlink_snapshots"]


def restart_segments(
    directory: str, segments: list[Segment], snapshots: set[int], offset: int, now_ms: int
) -> Program[None]:
    """Replace all segments with an empty one at `offset`, beyond their end. Both lists are changed in place.

    A crash leaves the old end, or the new file alone: a recovery ends the log at its first hole.
    """
    old = list(segments)
    fresh = Segment(directory, offset, now_ms)
    yield Append(fresh.path, 0, ())
    yield SyncDirectory(directory)
    for part in (old[:-1], old[-1:]):
        for path in deleted_paths(part, snapshots):
            yield Unlink(path)
        yield SyncDirectory(directory)
    segments[:] = [fresh]


def truncate_segments(
    directory: str, segments: list[Segment], offset: int, interval: int, now_ms: int
) -> Program[None]:
    """Remove every batch that reaches `offset` or beyond. Every decided append must be performed.

    Below the first segment all batches are removed, and the log restarts at `offset`. `segments` is changed in place.
    """
    if offset < segments[0].base_offset:
        for path in deleted_paths(segments, set()):
            yield Unlink(path)
        segments[:] = [Segment(directory, offset, now_ms)]
        yield Append(segments[0].path, 0, ())
        yield SyncDirectory(directory)
        return
    count = len(segments)
    while len(segments) > 1 and segments[-1].base_offset >= offset:
        for path in deleted_paths([segments.pop()], set()):
            yield Unlink(path)
    if len(segments) < count:
        # Durable before the next append: otherwise a loss of power could restore the removed segments behind it.
        yield SyncDirectory(directory)
    segment = segments[-1]
    if segment.next_offset > offset or segment.index is None:
        segments[-1] = yield from _cut(segment, offset, interval, now_ms)


def _cut(segment: Segment, offset: int, interval: int, now_ms: int) -> Program[Segment]:
    """Return the segment cut at `offset` and active again, with indexes in memory and without index files."""
    fresh = yield from _without_tail(segment, offset, interval, now_ms)
    yield Unlink(segment.index_path)
    yield Unlink(segment.time_index_path)
    if segment.transaction_index:
        if fresh.transaction_index:
            yield WriteFile(segment.transaction_index_path, bytes(fresh.transaction_index))
        else:
            yield Unlink(segment.transaction_index_path)
    yield Truncate(segment.path, fresh.size)
    # Durable at once: otherwise a loss of power could restore the old end behind the next append.
    yield Sync(segment.path)
    return fresh


def _without_tail(segment: Segment, offset: int, interval: int, now_ms: int) -> Program[Segment]:
    fresh = Segment(segment.directory, segment.base_offset, now_ms)
    aborted = below(segment.transaction_index, offset)
    relative = offset - segment.base_offset
    if segment.index is not None:
        assert segment.time_index is not None
        fresh.index, fresh.time_index = segment.index, segment.time_index
        fresh.first_timestamp = segment.first_timestamp
    else:
        loaded = yield from load_indexes(
            fresh,
            index_size=segment.index_size,
            time_index_size=segment.time_index_size,
            log_size=segment.size,
        )
        if not loaded:
            fresh = Segment(segment.directory, segment.base_offset, now_ms)
    assert fresh.index is not None
    assert fresh.time_index is not None
    fresh.index.truncate(relative)
    fresh.time_index.truncate(relative)
    # The rest of the indexes has the position to continue from, and the largest timestamp before it.
    fresh.size = fresh.index.positions[-1] if len(fresh.index) else 0
    fresh.max_timestamp, fresh.max_timestamp_offset = -1, segment.base_offset
    if len(fresh.time_index):
        fresh.max_timestamp = fresh.time_index.timestamps[-1]
        fresh.max_timestamp_offset = segment.base_offset + fresh.time_index.offsets[-1]
    yield from scan_segment(fresh, segment.size, interval, check_crc=False, below=offset)
    fresh.transaction_index = aborted
    return fresh


def unlink_snapshots(directory: str, snapshots: set[int], above: int) -> Program[None]:
    """Remove producer snapshots above an offset, durably: a later snapshot may get the same name."""
    gone = sorted(offset for offset in snapshots if offset > above)
    for offset in gone:
        yield Unlink(segment_path(directory, offset, SNAPSHOT))
        snapshots.discard(offset)
    if gone:
        yield SyncDirectory(directory)
