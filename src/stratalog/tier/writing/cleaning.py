"""Clean a compacted partition's part of the bucket: keep the last record of each key among all of its objects.

In: live segments of a manifest, the topic's settings. Out: new objects, each in the place of some neighbours, and the
manifest that names them instead. It commits nothing and removes nothing. Any process can carry a plan out.

First it notes the last offset of each key in the dirty segments, until the table of keys is full. Then it writes groups
of neighbours, each group into one object of the same offsets. Only keys that the bucket has count, so that the bucket
alone is a whole table. `log/cleaning` decides what stays of a batch, as on the disk.

One call writes `written_max` bytes or a little more: an object that no manifest names must not grow old, as a sweep may
remove it. The next call continues with the next group, and the same noted keys.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from msgspec.structs import replace

from stratalog.config.kinds import LONG_MAX
from stratalog.errors import Corrupt
from stratalog.log.cleaning.cleaner import TooFewKeys
from stratalog.log.cleaning.filtering import BatchFilter, Horizons
from stratalog.log.cleaning.transactions import Transactions
from stratalog.log.segment import RELATIVE_OFFSET_MAX
from stratalog.log.transaction_index import Aborted
from stratalog.ports import Buffer, ObjectStore
from stratalog.tier.formats.manifest import Entry, Manifest, RemoteSegment, SegmentState, given_up
from stratalog.tier.formats.paths import SegmentName
from stratalog.tier.formats.segment_object import INDEX_INTERVAL_BYTES
from stratalog.tier.reading.export import entry_runs
from stratalog.tier.reading.fetcher import load_index
from stratalog.tier.reading.reader import read_entries
from stratalog.tier.writing.archiver import ClosedSegment, PartitionFolder, archive
from stratalog.wire.batch import HEADER_SIZE, BatchHeader, scan
from stratalog.wire.compression import decompress
from stratalog.wire.sift import KeyOffsets, note

__all__ = [
    "CleanLimits",
    "CleanedObjects",
    "CleaningPlan",
    "DirtyObjects",
    "clean_objects",
    "dirty_objects",
    "with_cleaned",
]

_PIECE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class CleanLimits:
    """A topic's settings of compaction; times are milliseconds."""

    min_ratio: float
    min_lag_ms: int
    max_lag_ms: int


@dataclass(frozen=True, slots=True)
class DirtyObjects:
    """The segments that may be cleaned, the oldest first; those that reach `first_dirty` are dirty. Bytes: of log."""

    segments: tuple[RemoteSegment, ...]
    first_dirty: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool

    @property
    def ratio(self) -> float:
        """Dirty bytes among all that may be cleaned."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


def dirty_objects(manifest: Manifest, limits: CleanLimits, wall_ms: int) -> DirtyObjects | None:
    """Return the segments to clean where the topic's settings ask for a cleaning now, else None.

    The manifest has no archives: `TierWriter.unspill` moves their entries back.
    """
    assert not any(manifest.live_archives()), "all segments are in the manifest itself"
    first_dirty = max(manifest.clean_end, manifest.start_offset)
    segments: list[RemoteSegment] = []
    dirty: list[Entry] = []
    for segment in manifest.recent():
        entry = segment.entry
        is_dirty = entry.last_offset >= first_dirty
        if is_dirty and limits.min_lag_ms > 0 and entry.max_timestamp > wall_ms - limits.min_lag_ms:
            break
        segments.append(segment)
        if is_dirty:
            dirty.append(entry)
    dirty_bytes = sum(entry.data_size for entry in dirty)
    all_bytes = sum(one.entry.data_size for one in segments)
    is_overdue = limits.max_lag_ms != LONG_MAX and any(
        0 < entry.min_timestamp < wall_ms - limits.max_lag_ms for entry in dirty
    )
    found = DirtyObjects(
        tuple(segments), first_dirty, all_bytes - dirty_bytes, dirty_bytes, is_overdue
    )
    return found if dirty and (is_overdue or found.ratio > limits.min_ratio) else None


@dataclass(frozen=True, slots=True)
class CleaningPlan:
    """One call. `segments` begin with the oldest live one.

    `noted_end`, `rewrite_from`: where an earlier call of the same cleaning ended, else the end of `segments` and 0.
    `places` and `keys_max` are as in `log.cleaning.cleaner.Plan`; `ids` names the new objects, one for each segment.
    """

    folder: PartitionFolder
    leader_epoch: int
    segments: tuple[RemoteSegment, ...]
    first_dirty: int
    noted_end: int
    rewrite_from: int
    places: int
    keys_max: int
    segment_bytes: int
    written_max: int
    horizons: Horizons
    has_key_filter: bool
    ids: tuple[UUID, ...]
    index_interval_bytes: int = INDEX_INTERVAL_BYTES


@dataclass(slots=True)
class CleanedObjects:
    """What a call did: `replaced` are runs of entries, each with the object that takes their place.

    `end_offset` is the first offset that is still dirty once all groups are written; groups below `rewritten_end` are.
    """

    end_offset: int = 0
    rewritten_end: int = 0
    replaced: list[tuple[tuple[Entry, ...], Entry]] = field(default_factory=list)
    keys: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether the bucket is clean below `end_offset` once the result is committed."""
        return self.rewritten_end >= self.end_offset


def clean_objects(open_store: Callable[[], ObjectStore], plan: CleaningPlan) -> CleanedObjects:
    """Carry out a plan. Blocking. Raises Corrupt naming a damaged object, TooFewKeys for a table that is too small for
    one batch, and Unavailable. New objects are orphans then.
    """
    store = open_store()
    aborted = _aborted(store, plan.segments)
    done = CleanedObjects()
    keys = _note(store, plan, Transactions(aborted), done)
    transactions = Transactions(aborted)
    ids = iter(plan.ids)
    for group in _groups(plan, done.end_offset):
        if done.bytes_written >= plan.written_max:
            return done
        done.rewritten_end = group[-1].entry.last_offset + 1

        def batches(used: Transactions) -> BatchFilter:
            return BatchFilter(keys, done.end_offset - 1, used, {}, plan.horizons)

        if done.rewritten_end <= plan.rewrite_from or len(group) == 1:
            looked = deepcopy(transactions)
            if not _is_changed(store, group, batches(looked), done):
                transactions = looked
                continue
        _rewrite(store, plan, group, batches(transactions), next(ids), done)
    done.rewritten_end = max(done.rewritten_end, done.end_offset)
    return done


def _aborted(store: ObjectStore, segments: Sequence[RemoteSegment]) -> list[Aborted]:
    """Return the aborted transactions with records in these segments. Raises Corrupt where one's are not known."""
    found: set[Aborted] = set()
    for segment in segments:
        listed = load_index(store, segment).aborted
        if listed is None:
            raise Corrupt(f"{segment.path}: it has transactions, and no list of the aborted ones")
        found |= {Aborted(*one, last_stable_offset=0) for one in listed}
    return sorted(found, key=lambda one: one.first_offset)


def _batches(
    store: ObjectStore, segment: RemoteSegment
) -> Iterator[tuple[BatchHeader, memoryview, bool]]:
    """Yield each batch, every byte checked, and whether it is the segment's last one."""
    index = load_index(store, segment)
    for first, stop in entry_runs(index.entries):
        data = memoryview(read_entries(store, segment, index, first, stop))
        begins = index.entries.positions[first]
        for position, header in scan(data):
            end = position + header.size
            yield header, data[position:end], begins + end == segment.entry.data_size


def _note(
    store: ObjectStore, plan: CleaningPlan, transactions: Transactions, done: CleanedObjects
) -> KeyOffsets:
    """Note the keys of the dirty part, up to `done.end_offset`."""
    keys = KeyOffsets(plan.places)
    end = plan.first_dirty
    for header, view, path in _dirty_batches(store, plan):
        done.bytes_read += header.size
        if header.is_control:
            transactions.may_go(view, header)
        elif not transactions.is_aborted(header) and header.record_count:
            body = decompress(header.codec, view[HEADER_SIZE : header.size])
            count, base = header.record_count, header.base_offset
            noted = note(body, count, base, plan.first_dirty, keys, plan.keys_max)
            if noted < 0:
                raise Corrupt(f"{path}: a record of the batch at {base} is unsound")
            if noted < count:
                break
        end = header.next_offset
    else:
        end = plan.noted_end
    if end == plan.first_dirty:
        raise TooFewKeys(
            f"{plan.keys_max} keys are too few for the batch at offset {end}: "
            "raise log.cleaner.dedupe.buffer.size"
        )
    done.end_offset, done.keys = end, keys.count
    return keys


def _dirty_batches(
    store: ObjectStore, plan: CleaningPlan
) -> Iterator[tuple[BatchHeader, memoryview, str]]:
    for segment in plan.segments:
        entry = segment.entry
        if entry.last_offset < plan.first_dirty or entry.base_offset >= plan.noted_end:
            continue
        for header, view, _ends in _batches(store, segment):
            if plan.first_dirty <= header.last_offset < plan.noted_end:
                yield header, view, segment.path


def _groups(plan: CleaningPlan, end: int) -> list[list[RemoteSegment]]:
    """Neighbours that fit one segment in bytes and relative offsets, of those that begin below `end`.

    A call that continues another one leaves the groups of that one as they are.
    """
    groups: list[list[RemoteSegment]] = []
    size = 0
    for segment in plan.segments:
        entry = segment.entry
        if entry.base_offset >= end:
            break
        size += entry.data_size
        is_done = entry.last_offset < plan.rewrite_from
        if (
            is_done
            or not groups
            or groups[-1][-1].entry.last_offset < plan.rewrite_from
            or size > plan.segment_bytes
            or entry.last_offset - groups[-1][0].entry.base_offset > RELATIVE_OFFSET_MAX
        ):
            groups.append([])
            size = entry.data_size
        groups[-1].append(segment)
    return groups


def _is_changed(
    store: ObjectStore, group: Sequence[RemoteSegment], batches: BatchFilter, done: CleanedObjects
) -> bool:
    """Return whether a batch of the group goes or gets smaller; no byte is read behind the first such batch."""
    return any(kept is not view for kept, view in _kept(store, group, batches, done))


def _kept(
    store: ObjectStore, group: Sequence[RemoteSegment], batches: BatchFilter, done: CleanedObjects
) -> Iterator[tuple[Buffer | None, memoryview]]:
    """Yield what stays of each batch, and the batch: the same object where all of it stays."""
    for segment in group:
        for header, view, ends in _batches(store, segment):
            done.bytes_read += header.size
            kept = batches.keep(view, header, is_last=ends and segment is group[-1])
            yield (view if kept is not None and kept == view else kept), view


def _rewrite(
    store: ObjectStore,
    plan: CleaningPlan,
    group: Sequence[RemoteSegment],
    batches: BatchFilter,
    object_id: UUID,
    done: CleanedObjects,
) -> None:
    """Put the object with what stays of a group."""
    first, last = group[0].entry, group[-1].entry

    def read() -> Iterator[Buffer]:
        pieces: list[Buffer] = []
        size = 0
        for kept, _view in _kept(store, group, batches, done):
            if kept is not None:
                pieces.append(kept)
                size += len(kept)
            if size >= _PIECE_BYTES:
                yield b"".join(pieces)
                pieces, size = [], 0
        yield b"".join(pieces)

    epochs: dict[int, int] = {}
    for segment in group:
        for epoch, offset in segment.entry.leader_epochs:
            epochs.setdefault(epoch, offset)
    made = archive(
        store,
        plan.folder,
        ClosedSegment(
            base_offset=first.base_offset,
            next_offset=last.last_offset + 1,
            read=read,
            leader_epochs=tuple(epochs.items()),
            producer_snapshot=load_index(store, group[-1]).producer_snapshot,
            aborted=(),  # no record of an aborted transaction stays
            has_key_filter=plan.has_key_filter,
        ),
        SegmentName(first.base_offset, last.last_offset, plan.leader_epoch, object_id),
        now_ms=plan.horizons.wall_ms,
        index_interval_bytes=plan.index_interval_bytes,
    )
    done.replaced.append((tuple(segment.entry for segment in group), made))
    done.bytes_written += made.size


def with_cleaned(tip: Manifest, done: CleanedObjects, now_ms: int) -> Manifest | None:
    """Return `tip` with the new objects instead of those that they replace, which are dropped.

    None where another change came first. A run that retention dropped meanwhile as a whole is left out. `tip` itself
    where nothing changes.
    """
    live = [entry for entry in tip.segments if entry.state is SegmentState.COPY_FINISHED]
    gone = [entry for entry in tip.segments if entry.state is not SegmentState.COPY_FINISHED]
    for run, made in done.replaced:
        if run[-1].last_offset < tip.start_offset:
            continue
        wanted = [entry.id for entry in run]
        first = next((at for at, entry in enumerate(live) if entry.id == wanted[0]), len(live))
        if [entry.id for entry in live[first : first + len(run)]] != wanted:
            return None
        gone += [given_up(entry, now_ms) for entry in run]
        live[first : first + len(run)] = [made]
    changed = replace(tip, segments=(*gone, *live))
    if done.is_complete:
        changed = replace(changed, cleaned_end=max(tip.clean_end, done.end_offset))
    elif changed != tip:  # offsets are absent from now on, although the bucket is no cleaner yet
        changed = replace(changed, cleaned_end=tip.clean_end)
    return changed if changed != tip else tip
