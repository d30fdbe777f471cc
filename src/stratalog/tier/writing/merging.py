"""Merge small segments of a quiet topic, so that readers of years of history open few objects.

In: a manifest's live entries, the topic's limits for one segment. Out: the neighbours to merge, the merged segment's
content, and the manifest that names the merged segment instead. It commits nothing and removes nothing.

The archiver merges eight neighbours that fit into one segment, each at most half of it. So each copy of a byte at least
doubles its segment. Merging ends at the size and time span at which the topic closes a segment itself, so retention
stays as fine as configured.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from msgspec.structs import replace

from stratalog.errors import Corrupt
from stratalog.ports import ObjectStore
from stratalog.tier.formats.manifest import Entry, Manifest, RemoteSegment, SegmentState, given_up
from stratalog.tier.reading.export import read_segment
from stratalog.tier.reading.fetcher import load_index
from stratalog.tier.writing.archiver import ClosedSegment

__all__ = ["MergeLimits", "damaged", "mergeable", "merged_segment", "with_merged"]

_NEIGHBOURS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class MergeLimits:
    """The limits of one segment: `segment.bytes`, and the milliseconds of `segment.ms` between its records.

    `neighbours`: the least number of segments to merge.
    """

    bytes: int
    span_ms: int
    neighbours: int = 8


def mergeable(
    entries: Sequence[Entry], limits: MergeLimits, apart: Collection[str] = ()
) -> tuple[Entry, ...]:
    """Return the first run of live neighbours, in the order of offsets, to merge into one segment; empty without one.

    No run has an entry whose id is in `apart`.
    """
    for start in range(len(entries) - limits.neighbours + 1):
        total = largest = 0
        stop = start
        for entry in entries[start : start + _NEIGHBOURS_MAX]:
            spans = entry.max_timestamp - entries[start].min_timestamp > limits.span_ms
            if total + entry.data_size > limits.bytes or spans or entry.id in apart:
                break
            total += entry.data_size
            largest = max(largest, entry.data_size)
            stop += 1
        if stop - start >= limits.neighbours and 2 * largest <= total:
            return tuple(entries[start:stop])
    return ()


def merged_segment(store: ObjectStore, run: Sequence[RemoteSegment]) -> ClosedSegment:
    """Return the merged segment of these entries, read from the bucket with every byte checked. Raises Corrupt,
    Unavailable.
    """
    first, last = run[0].entry, run[-1].entry
    epochs: dict[int, int] = {}
    for segment in run:
        for epoch, offset in segment.entry.leader_epochs:
            epochs.setdefault(epoch, offset)
    indexes = [load_index(store, segment) for segment in run]
    # A transaction that spans several segments is in each one's list; if one list is unknown, the merged one is.
    aborted = {one for index in indexes for one in index.aborted or ()}
    all_known = all(index.aborted is not None for index in indexes)

    def read() -> Iterator[bytes]:
        for segment in run:
            for chunk in read_segment(store, segment):
                yield chunk.data

    return ClosedSegment(
        base_offset=first.base_offset,
        next_offset=last.last_offset + 1,
        read=read,
        leader_epochs=tuple(epochs.items()),
        producer_snapshot=indexes[-1].producer_snapshot,
        aborted_transactions=b"".join(index.aborted_transactions for index in indexes),
        aborted=tuple(sorted(aborted, key=attrgetter("last_offset"))) if all_known else None,
        has_key_filter=any(segment.entry.key_pages for segment in run),
    )


def damaged(store: ObjectStore, run: Sequence[RemoteSegment]) -> list[Entry]:
    """Return those whose objects are missing or altered. Raises Unavailable."""
    found = []
    for segment in run:
        try:
            for _chunk in read_segment(store, segment):
                pass
        except Corrupt:
            found.append(segment.entry)
    return found


def with_merged(tip: Manifest, run: Sequence[Entry], merged: Entry, now_ms: int) -> Manifest | None:
    """Return `tip` with `merged` instead of `run`, which is dropped; None where an entry of `run` is no longer live."""
    replaced = {entry.id for entry in run}
    live = [entry for entry in tip.segments if entry.state is SegmentState.COPY_FINISHED]
    at = next((at for at, entry in enumerate(live) if entry.id in replaced), 0)
    if tuple(entry.id for entry in live[at : at + len(run)]) != tuple(entry.id for entry in run):
        return None
    gone = [entry for entry in tip.segments if entry.state is not SegmentState.COPY_FINISHED]
    gone += [given_up(entry, now_ms) for entry in run]
    live[at : at + len(run)] = [merged]
    return replace(tip, segments=(*gone, *live))
