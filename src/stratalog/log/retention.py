"""Decide which closed segments to delete, and return the effects that delete them.

In: segments, the topic's limits, the time. Out: how many of the oldest segments to delete, and the effects. It keeps
every segment that reaches the limit offset (the high watermark), or that the bucket lacks where there is a tier. It
also keeps a closed segment that is not durable yet: the next offset and the producers at its end would be lost with
it. The limits of a compacted topic count only for local copies of what the bucket has.

Kafka: `UnifiedLog.deleteOldSegments` (by time, by size, below log start), KIP-405 for local retention.
"""

from collections.abc import Iterable, Sequence

from stratalog.config import LogConfig
from stratalog.log.effects import Effect, Rename, Unlink
from stratalog.log.segment import DELETED, SNAPSHOT, Segment, segment_path

__all__ = ["DeletedFiles", "deleted_paths", "expired_segments", "is_due_for_tier", "unconfirmed"]


def expired_segments(  # noqa: PLR0913 - what retention looks at
    segments: Sequence[Segment],
    config: LogConfig,
    now_ms: int,
    *,
    wall_ms: int,
    limit_offset: int,
    log_start_offset: int,
    synced_end: int,
    tiered_end: int,
) -> int:
    """Return how many of the oldest segments to delete; the active one counts if it is expired too (roll it first)."""
    _, retention_bytes = _limits(config)
    bounded = "delete" in config.cleanup_policy or config.copies_to_tier
    excess = sum(segment.size for segment in segments) - retention_bytes
    count = 0
    for segment in segments:
        active = segment is segments[-1]
        if segment.next_offset > limit_offset or (active and segment.size == 0):
            break
        if segment.next_offset > synced_end and not active:
            break
        gone = segment.next_offset <= log_start_offset and not active
        if not gone and bounded and not _only_here(segment, config, tiered_end):
            too_much = retention_bytes >= 0 and excess >= segment.size
            gone = too_much or _is_too_old(segment, config, now_ms, wall_ms)
        if not gone:
            break
        excess -= segment.size
        count += 1
    return count


def is_due_for_tier(
    active: Segment, config: LogConfig, now_ms: int, *, wall_ms: int, limit_offset: int
) -> bool:
    """Return whether the active segment must be closed: no record of it may stay, and the bucket lacks it.

    The archiver uploads closed segments only; retention then deletes this one (Kafka: KAFKA-16855).
    """
    if not (config.copies_to_tier and active.size) or active.next_offset > limit_offset:
        return False
    return _limits(config)[1] == 0 or _is_too_old(active, config, now_ms, wall_ms)


def _is_too_old(segment: Segment, config: LogConfig, now_ms: int, wall_ms: int) -> bool:
    retention_ms, _ = _limits(config)
    # A hotset of 0 is empty: even records with timestamps in the future leave the disk.
    if config.copies_to_tier and retention_ms == 0:
        return True
    return segment.is_time_confirmed and 0 <= retention_ms < segment.age_ms(now_ms, wall_ms)


def unconfirmed(
    segments: Sequence[Segment], config: LogConfig, now_ms: int, wall_ms: int
) -> list[Segment]:
    """Return the segments that are too old by an index file alone, until `confirm_time` confirms it."""
    retention_ms, _ = _limits(config)
    return [
        segment
        for segment in segments
        if not segment.is_time_confirmed and 0 <= retention_ms < segment.age_ms(now_ms, wall_ms)
    ]


def _only_here(segment: Segment, config: LogConfig, tiered_end: int) -> bool:
    return config.copies_to_tier and segment.next_offset > tiered_end


def _limits(config: LogConfig) -> tuple[int, int]:
    if config.copies_to_tier:
        return config.local_retention
    return config.retention_ms, config.retention_bytes


def deleted_paths(segments: Iterable[Segment], snapshots: set[int]) -> list[str]:
    """Return every file of these segments, oldest first, with the producer snapshots that only they need."""
    paths = []
    for segment in segments:
        base = segment.base_offset
        paths += [
            segment_path(segment.directory, base, suffix) for suffix in segment.file_suffixes()
        ]
        if base in snapshots:
            paths.append(segment_path(segment.directory, base, SNAPSHOT))
    return paths


class DeletedFiles:
    """Files that left the log and are not unlinked yet: a reader may still use them."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[tuple[int, list[str]]] = []

    def take_out(self, paths: list[str], unlink_at_ms: int) -> list[Effect]:
        """Rename files, to be unlinked later (or at the next start)."""
        self._waiting.append((unlink_at_ms, [path + DELETED for path in paths]))
        return [Rename(path, path + DELETED) for path in paths]

    def make_way(self, paths: Iterable[str]) -> list[Effect]:
        """Return effects that unlink earlier files of these names, before `take_out` renames the next ones over them.

        A rename that replaces a file frees its bytes: 2 ms for 8 MiB on ext4. Appends would wait for it.
        """
        names = {path + DELETED for path in paths}
        effects: list[Effect] = []
        for _, waiting in self._waiting:
            effects += [Unlink(path) for path in waiting if path in names]
            waiting[:] = [path for path in waiting if path not in names]
        return effects

    def unlink(self, now_ms: int) -> list[Effect]:
        """Return effects that unlink the files whose delay has passed."""
        effects: list[Effect] = [
            Unlink(path) for at_ms, paths in self._waiting if at_ms <= now_ms for path in paths
        ]
        if (
            effects
        ):  # else each sweep would make a list a partition, for the garbage collector to examine
            self._waiting = [entry for entry in self._waiting if entry[0] > now_ms]
        return effects
