"""Apply retention to a partition's part of the bucket.

In: a manifest, the limits, and access to its archive manifests. Out: the manifest without the expired segments. It
commits nothing and removes nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import replace as copy_of

from msgspec.structs import replace

from stratalog.errors import Corrupt
from stratalog.tier.formats.manifest import (
    ArchivedManifest,
    Entry,
    Manifest,
    SegmentState,
    given_up,
)
from stratalog.tier.reading.archives import ArchiveManifests

__all__ = ["Retention", "segments_of", "without_expired"]


@dataclass(frozen=True, slots=True)
class Retention:
    """The limits of retention: Kafka's `retention.ms` and `retention.bytes` (-1: keep), and values of the local log.

    `log_start_offset`: clients cannot read records below it (DeleteRecords). `local_only_bytes`: bytes of the log that
    are not in the bucket, which count against `bytes`, too. `grace_ms`: `remote.delete.grace.ms`, from dropping a
    segment to removing its object, for readers with an older manifest.
    """

    ms: int
    bytes: int
    log_start_offset: int
    local_only_bytes: int
    grace_ms: int


@dataclass(slots=True)
class _Walk:
    """A walk from the oldest segment on: the log start so far, and the bytes of log from there on."""

    retention: Retention
    now_ms: int
    log_start: int
    total: int

    def takes(self, named: Entry | ArchivedManifest) -> bool:
        """Return whether the next entry expires as a whole; then move past it."""
        retention = self.retention
        # A cleaning may leave no record of a segment: it is as old as its object (Kafka: as its file).
        youngest_ms = named.max_timestamp if named.max_timestamp >= 0 else named.state_ms
        too_old = retention.ms >= 0 and self.now_ms - youngest_ms > retention.ms
        too_much = retention.bytes >= 0 and self.total - named.data_size >= retention.bytes
        if not (named.last_offset < self.log_start or too_old or too_much):
            return False
        self.total -= named.data_size
        self.log_start = max(self.log_start, named.last_offset + 1)
        return True

    def count(self, entries: Iterable[Entry]) -> int:
        """Return how many of the next entries expire, one by one."""
        taken = 0
        for entry in entries:
            if not self.takes(entry):
                break
            taken += 1
        return taken


def without_expired(
    tip: Manifest, retention: Retention, now_ms: int, archives: ArchiveManifests
) -> Manifest | None:
    """Return `tip` without the segments that retention does not keep, oldest first; None where none expires.

    Retention opens only the archive that it reaches into. A damaged archive holds up younger segments until the archive
    expires as a whole. Raises Unavailable.
    """
    log_start = max(tip.log_start_offset, retention.log_start_offset)
    walk = _Walk(retention, now_ms, log_start, tip.live_bytes + retention.local_only_bytes)
    goes_on = True
    left: list[ArchivedManifest] = []
    for named in tip.archives:
        if not goes_on or named.state is not SegmentState.COPY_FINISHED:
            left.append(named)
        elif walk.takes(named):
            left.append(given_up(named, now_ms))
        else:
            parts = _parted(tip, named, walk, archives)
            goes_on = parts[-1].state is not SegmentState.COPY_FINISHED
            left += parts
    segments: list[Entry] = []
    for entry in tip.segments:
        live = entry.state is SegmentState.COPY_FINISHED
        goes_on = goes_on and (not live or walk.takes(entry))
        segments.append(given_up(entry, now_ms) if live and goes_on else entry)
    changed = replace(
        tip,
        archives=tuple(left),
        segments=tuple(segments),
        log_start_offset=walk.log_start,
    )
    return changed if changed != tip else None


def _parted(
    tip: Manifest, named: ArchivedManifest, walk: _Walk, archives: ArchiveManifests
) -> list[ArchivedManifest]:
    """Divide an archive that expires in part: return the expired part and the rest. Both are in the same object."""
    before = copy_of(walk)
    try:
        if not before.takes(archives.oldest(tip, named)):
            return [named]
        archive = archives.open(tip, named)
    except Corrupt:  # it cannot be divided without its entries: it expires as a whole
        return [named]
    first, stop = archive.span_of(named)
    count = walk.count(archive.entry(at) for at in range(first, stop))
    gone = given_up(archive.named(first, first + count, named), walk.now_ms)
    if first + count == stop:
        return [gone]
    return [gone, archive.named(first + count, stop, named)]


def segments_of(tip: Manifest, named: ArchivedManifest, archives: ArchiveManifests) -> list[str]:
    """Return the objects of a dropped archive.

    None where the archive is damaged: its objects are unknown, and become orphans, which a sweep finds. Raises
    Unavailable.
    """
    try:
        return [tip.path_of(entry) for entry in archives.entries_of(tip, named)]
    except Corrupt:
        return []
