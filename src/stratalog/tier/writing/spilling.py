"""Move a long manifest's oldest entries into an archive manifest, because every version is written whole.

In: a manifest. Out: the entries to move and their archive, and the manifest that names the archive instead. It
commits nothing.

The last archive receives further entries until it is full, each time as a new object, because objects in the bucket
never change. Readers of the old version continue with the old object, which the manifest drops. The youngest entries
stay in the manifest: small neighbours among them may still be merged (`tier/writing/merging.py`), and archived ones are
merged no more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from crc32c import crc32c
from msgspec.structs import replace

from stratalog.errors import Corrupt
from stratalog.tier.formats.archive_manifest import Archive, encode_archive
from stratalog.tier.formats.manifest import (
    ArchivedManifest,
    Entry,
    Manifest,
    SegmentState,
    given_up,
)
from stratalog.tier.reading.archives import ArchiveManifests

__all__ = [
    "Spill",
    "SpillLimits",
    "next_spill",
    "opened_for",
    "spilled",
    "with_spilled",
    "with_unspilled",
]


@dataclass(frozen=True, slots=True)
class SpillLimits:
    """Entries move once `segments` are live in the manifest itself, all but the youngest `kept` (at least one).

    `archive_segments`: the most entries of one archive. Two archives hold ten years of hourly segments, so that a query
    for any time opens no more; each has about 3.5 MB.
    """

    segments: int = 64
    kept: int = 32
    archive_segments: int = 65_536


@dataclass(frozen=True, slots=True)
class Spill:
    """A planned spill: archive `entries` together with those of `onto`, or in a new archive for None."""

    entries: tuple[Entry, ...]
    onto: ArchivedManifest | None


def next_spill(tip: Manifest, limits: SpillLimits) -> Spill | None:
    """Return the next spill; None while there are few entries."""
    live = [entry for entry in tip.segments if entry.state is SegmentState.COPY_FINISHED]
    if len(live) < max(2, limits.segments):
        return None
    last = list(tip.live_archives())[-1:]
    onto = last[0] if last and last[0].segments < limits.archive_segments else None
    room = limits.archive_segments - (onto.segments if onto is not None else 0)
    return Spill(tuple(live[: min(room, len(live) - max(1, limits.kept))]), onto)


def opened_for(
    spill: Spill, tip: Manifest, archives: ArchiveManifests
) -> tuple[Spill, Archive | None]:
    """Return the opened archive that `spill` extends; where it is damaged, a spill into a new archive.

    Raises Unavailable.
    """
    if spill.onto is None:
        return spill, None
    try:
        return spill, archives.open(tip, spill.onto)
    except Corrupt:
        return Spill(spill.entries, None), None


def spilled(
    tip: Manifest, spill: Spill, opened: Archive | None, object_id: str
) -> tuple[ArchivedManifest, bytes]:
    """Return the archive to put, and its name in the next manifest. `opened`: the opened archive of `spill.onto`."""
    archive = Archive.of(spill.entries)
    if opened is not None and spill.onto is not None:
        archive = opened.cut(*opened.span_of(spill.onto)).extended(archive)
    data = encode_archive(archive, tip.topic_uuid, tip.partition)
    unnamed = ArchivedManifest(
        id=object_id,
        size=len(data),
        crc=crc32c(data),
        base_offset=0,
        last_offset=0,
        segments=0,
        segments_size=0,
        data_size=0,
        records=0,
        min_timestamp=-1,
        max_timestamp=-1,
        min_timestamp_exact=True,
        state=SegmentState.COPY_FINISHED,
        state_ms=spill.entries[-1].state_ms,
    )
    return archive.named(0, len(archive), unnamed), data


def with_spilled(
    tip: Manifest, spill: Spill, named: ArchivedManifest, now_ms: int
) -> Manifest | None:
    """Return `tip` with `named` in place of the spilled entries; None where those entries have changed in it.

    The former archive object then names no entry, and is dropped at `now_ms`.
    """
    gone = [entry for entry in tip.segments if entry.state is not SegmentState.COPY_FINISHED]
    live = [entry for entry in tip.segments if entry.state is SegmentState.COPY_FINISHED]
    count = len(spill.entries)
    last = list(tip.live_archives())[-1:]
    onto = [spill.onto] if spill.onto is not None else []
    if not _same(live[:count], spill.entries) or len(live) == count or last[: len(onto)] != onto:
        return None
    archives = list(tip.archives)
    if spill.onto is not None:
        at = archives.index(spill.onto)
        archives[at] = given_up(_emptied(spill.onto), now_ms)
    return replace(tip, archives=(*archives, named), segments=(*gone, *live[count:]))


def with_unspilled(tip: Manifest, entries: Sequence[Entry], now_ms: int) -> Manifest | None:
    """Return `tip` with the `entries` of all its live archives in the manifest itself; None where there are others.

    The archives then name no entry, and are dropped at `now_ms`.
    """
    if sum(named.segments for named in tip.live_archives()) != len(entries) or not entries:
        return None
    if next(tip.live_archives()).base_offset != entries[0].base_offset:
        return None
    finished = SegmentState.COPY_FINISHED
    archives = [
        given_up(_emptied(named), now_ms) if named.state is finished else named
        for named in tip.archives
    ]
    gone = [entry for entry in tip.segments if entry.state is not finished]
    live = [entry for entry in tip.segments if entry.state is finished]
    return replace(tip, archives=tuple(archives), segments=(*gone, *entries, *live))


def _same(some: Sequence[Entry], others: Sequence[Entry]) -> bool:
    return [entry.id for entry in some] == [entry.id for entry in others]


def _emptied(named: ArchivedManifest) -> ArchivedManifest:
    return replace(
        named,
        base_offset=named.last_offset + 1,
        segments=0,
        segments_size=0,
        data_size=0,
        records=0,
    )
