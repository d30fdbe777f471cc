"""List the closed segments of a log for the archiver.

In: a log and an offset. Out: segments with the paths of their files, leader epochs, producer snapshot and aborted
transactions. It never changes the log.
"""

from stratalog.log.partition_log import PartitionLog
from stratalog.log.reading import segment_at
from stratalog.log.segment import SNAPSHOT, segment_path
from stratalog.log.transaction_index import overlapping
from stratalog.log.values import SegmentInfo, SegmentParts

__all__ = ["closed_segments", "segment_parts"]


def closed_segments(log: PartitionLog, up_to: int) -> list[SegmentInfo]:
    """Return closed segments that end at or below `up_to` and are not known to be tiered, oldest first."""
    return [
        SegmentInfo(s.base_offset, s.next_offset, s.size, s.path, s.max_timestamp)
        for s in log.segments[:-1]
        if log.tiered_end < s.next_offset <= up_to and s.readable == s.size
    ]


def segment_parts(log: PartitionLog, base_offset: int) -> SegmentParts:
    """Return the companions of the closed segment that begins at `base_offset`, which must be on this disk."""
    segment = segment_at(log.segments, base_offset)
    assert segment is not None
    assert segment.base_offset == base_offset, "a segment of this log"
    return SegmentParts(
        log.epochs.between(base_offset, segment.next_offset),
        segment_path(log.directory, segment.next_offset, SNAPSHOT),
        segment.index_path,
        segment.time_index_path,
        bytes(segment.transaction_index),
        tuple(overlapping(log.segments_from(base_offset), base_offset, segment.next_offset)),
    )
