"""Find the part of a log that may be cleaned, and whether it is due.

In: a log, its last stable offset, the time. Out: what is cleanable, and a plan. It decides nothing about records.

Clean is what a cleaning has looked at: the log below `PartitionLog.cleaned_end`. The dirty part ends before the last
stable offset, before the active segment, before what is not durable yet, and before the first segment with a record
younger than `min.compaction.lag.ms`. Kafka: `LogCleanerManager.cleanableOffsets`, `grabFilthiestCompactedLog`.

While a topic is copied to a bucket, it also ends before the first segment that the bucket lacks: so the archiver never
reads a file that a swap renames.
"""

from msgspec import Struct

from stratalog.config.kinds import LONG_MAX
from stratalog.log.cleaning.cleaner import Plan, places_for
from stratalog.log.cleaning.filtering import NOWHERE_ELSE
from stratalog.log.effects import Program, Read
from stratalog.log.partition_log import PartitionLog
from stratalog.log.segment import Segment
from stratalog.log.transaction_index import entries
from stratalog.wire.batch import HEADER_SIZE, parse_header

__all__ = ["Cleanable", "cleanable", "plan_cleaning", "read_first_timestamps", "tier_of"]


class Cleanable(Struct, frozen=True):
    """The part of a log that may be cleaned: `segments`, the oldest first; those with `first_dirty` or later are dirty.

    Bytes are those of the segments below and from the first dirty offset. `is_overdue`: `max.compaction.lag.ms` passed.
    """

    log: PartitionLog
    segments: tuple[Segment, ...]
    first_dirty: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool
    tier: tuple[bool, bool]
    """As `tier_of`."""

    @property
    def end(self) -> int:
        """The first offset that is not cleanable."""
        return self.segments[-1].next_offset if self.segments else self.first_dirty

    @property
    def ratio(self) -> float:
        """Dirty bytes among all that may be cleaned."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    @property
    def is_due(self) -> bool:
        """Whether the topic's settings ask for a cleaning now."""
        if not self.dirty_bytes:
            return False
        return self.is_overdue or self.ratio > self.log.config.min_cleanable_dirty_ratio


def cleanable(log: PartitionLog, last_stable_offset: int, wall_ms: int) -> Cleanable:
    """What may be cleaned of a compacted log now."""
    first_dirty = log.first_dirty_offset
    lag_ms = log.config.min_compaction_lag_ms
    limit = min(last_stable_offset, log.recovery_point)
    if log.config.copies_to_tier:
        limit = min(limit, log.tiered_end)
    segments: list[Segment] = []
    for segment in log.segments[:-1]:
        is_dirty = segment.next_offset > first_dirty
        is_young = lag_ms > 0 and segment.max_timestamp > wall_ms - lag_ms
        if segment.next_offset > limit or (is_dirty and is_young):
            break
        segments.append(segment)
    dirty = [one for one in segments if one.next_offset > first_dirty]
    return Cleanable(
        log,
        tuple(segments),
        first_dirty,
        sum(one.size for one in segments if one.next_offset <= first_dirty),
        sum(one.size for one in dirty),
        _is_overdue(dirty, log.config.max_compaction_lag_ms, wall_ms),
        tier_of(log),
    )


def tier_of(log: PartitionLog) -> tuple[bool, bool]:
    """Whether a bucket holds a part of the log, and whether closed segments are copied to it."""
    return log.config.remote_storage_enable, log.config.copies_to_tier


def _is_overdue(dirty: list[Segment], lag_ms: int, wall_ms: int) -> bool:
    if lag_ms == LONG_MAX:
        return False
    return any(0 < one.first_timestamp < wall_ms - lag_ms for one in dirty)


def read_first_timestamps(log: PartitionLog) -> Program[None]:
    """Take the first timestamp of each dirty segment from its file, where a load did not read it."""
    for segment in log.segments[:-1]:
        if segment.first_timestamp < 0 and segment.size and segment.next_offset > log.cleaned_end:
            data = yield Read(segment.path, 0, HEADER_SIZE)
            assert isinstance(data, bytes | bytearray)
            segment.first_timestamp = parse_header(data).max_timestamp


def plan_cleaning(
    one: Cleanable,
    wall_ms: int,
    memory_bytes: int,
    load_factor: float,
    *,
    bucket_cleaned_end: int = 0,
) -> Plan:
    """Everything that a cleaning needs to know, to be carried to another process.

    `memory_bytes` are for the table of keys, of which `load_factor` is filled at most. `bucket_cleaned_end`: below it
    a cleaning of the bucket's part has looked at every record, where the topic is tiered.
    """
    log, config = one.log, one.log.config
    producers = {
        producer_id: (state.batches[-1][3] if state.batches else -1, state.epoch)
        for producer_id, state in log.producers.items()
    }
    aborted = [
        found
        for segment in log.segments_from(one.segments[0].base_offset)
        for found in entries(segment.transaction_index)
        if found.first_offset < one.end
    ]
    places, keys_max = places_for(one.end - one.first_dirty, memory_bytes, load_factor)
    return Plan(
        directory=log.directory,
        segments=one.segments,
        first_dirty=one.first_dirty,
        places=places,
        keys_max=keys_max,
        segment_bytes=config.segment_bytes,
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        delete_retention_ms=config.delete_retention_ms,
        wall_ms=wall_ms,
        producers=producers,
        aborted=tuple(aborted),
        deletable_end=bucket_cleaned_end if config.remote_storage_enable else NOWHERE_ELSE,
    )
