"""The writer of one partition's history in the bucket: its leader's objects and manifest versions.

In: the leader's epoch, closed segments, retention. Out: objects and manifest versions; the location of each segment. It
removes an object only after a confirmed manifest has dropped it, and never serves bytes: `tier/reading/fetcher.py`
does.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from msgspec import UNSET
from msgspec.structs import replace

from stratalog.errors import Corrupt, Unavailable
from stratalog.ports import Entropy, ObjectStore
from stratalog.tier.bucket.commit import (
    FAN_OUT,
    KEPT_VERSIONS,
    Program,
    PutAbsent,
    Writer,
    commit,
    load_latest,
    prune,
    run,
)
from stratalog.tier.bucket.leases import Leases
from stratalog.tier.formats.manifest import (
    Entry,
    Manifest,
    RemoteSegment,
    SegmentState,
    decode,
    encode,
    given_up,
)
from stratalog.tier.formats.paths import SegmentName
from stratalog.tier.formats.segment_object import INDEX_INTERVAL_BYTES
from stratalog.tier.reading.archives import ArchiveManifests
from stratalog.tier.reading.lookup import SegmentLookup
from stratalog.tier.writing.archiver import ClosedSegment, PartitionFolder, archive
from stratalog.tier.writing.cleaning import CleanedObjects, with_cleaned
from stratalog.tier.writing.expiry import Retention, segments_of, without_expired
from stratalog.tier.writing.grace import GracePeriods
from stratalog.tier.writing.merging import (
    MergeLimits,
    damaged,
    mergeable,
    merged_segment,
    with_merged,
)
from stratalog.tier.writing.spilling import (
    SpillLimits,
    next_spill,
    opened_for,
    spilled,
    with_spilled,
    with_unspilled,
)
from stratalog.wire.ids import topic_id_text

__all__ = ["ORPHAN_GRACE_MS", "Retention", "TierWriter", "WriterContext", "exists"]

ORPHAN_GRACE_MS: Final = 60 * 60 * 1000
"""Age at which a sweep may remove an object that no manifest names."""
SPILL_LIMITS: Final = SpillLimits()
_DELETE_BATCH: Final = 1000


@dataclass(frozen=True, slots=True)
class WriterContext:
    """What a writer of any partition uses. `steady_ms` is the steady clock of the grace periods; None: the times passed
    to the methods.
    """

    store: ObjectStore
    entropy: Entropy
    index_interval_bytes: int = INDEX_INTERVAL_BYTES
    archives: ArchiveManifests | None = None
    steady_ms: Callable[[], int] | None = None
    leases: Leases | None = None
    spill_limits: SpillLimits = field(default_factory=lambda: SPILL_LIMITS)


def exists(store: ObjectStore, folder: PartitionFolder) -> bool:
    """Return whether the bucket ever had objects of the partition, as far as a list shows. Blocking."""
    return run(store, load_latest(folder.prefix)) is not None


@dataclass(slots=True)
class TierWriter:
    """The history of one partition in the bucket, under one leadership: `activate` returns a writer.

    `activate` and the methods that commit a version block, and must be called one at a time. They raise
    Fenced (give the leadership up, delete nothing), Unavailable (call again later: finished steps are not repeated) and
    Corrupt. The other members only read `manifest`, which is replaced as a whole, so any thread may use them meanwhile.
    `lookup` finds segments in it.
    """

    context: WriterContext
    folder: PartitionFolder
    writer: Writer
    manifest: Manifest
    """The newest confirmed version."""
    lookup: SegmentLookup = field(init=False)
    _archives: ArchiveManifests = field(init=False)
    _uploaded: dict[int, Entry] = field(default_factory=dict, init=False)
    _damaged: set[str] = field(default_factory=set, init=False)
    _boundary: int = field(default=0, init=False)
    _grace: GracePeriods = field(default_factory=GracePeriods, init=False)

    def __post_init__(self) -> None:
        self._archives = self.context.archives or ArchiveManifests(self.context.store)
        self.lookup = SegmentLookup(lambda: self.manifest, self._archives)

    @classmethod
    def activate(
        cls,
        context: WriterContext,
        folder: PartitionFolder,
        topic: str,
        writer: Writer,
        *,
        local_manifest: bytes | None = None,
        now_ms: int,
    ) -> "TierWriter":
        """Take the partition over: commit a version of the writer's leader epoch, which fences earlier leaders.

        `local_manifest` (`manifest_bytes` of an earlier writer) is a hint: with it no list is needed. A damaged or
        foreign one is ignored.
        """
        hint = None
        if local_manifest:
            with suppress(Corrupt):
                hint = decode(local_manifest, "the local manifest")
                hint = hint if hint.prefix == folder.prefix else None
        first = Manifest(
            cluster_id=folder.cluster_id,
            topic_id=topic_id_text(folder.topic_id),
            topic=topic,
            partition=folder.partition,
        )

        def taken(tip: Manifest | None) -> Manifest:
            return replace(first if tip is None else tip, written_ms=now_ms)

        write_id = topic_id_text(context.entropy.uuid())
        manifest = run(context.store, commit(folder.prefix, hint, taken, writer, write_id))
        assert manifest is not None, "a version was committed"
        made = cls(context, folder, writer, manifest)
        made._confirmed(manifest, now_ms)
        return made

    @property
    def tiered_end(self) -> int:
        """The first offset that is not in the bucket."""
        return self.manifest.archived_end

    @property
    def is_leaving(self) -> bool:
        """Whether objects of a removed tier still exist: nothing is uploaded before their removal."""
        manifest = self.manifest
        return any(
            one.state is not SegmentState.COPY_FINISHED
            and one.last_offset >= max(one.base_offset, manifest.archived_end)
            for one in manifest.everything()
        )

    @property
    def start_offset(self) -> int:
        """The first offset that can be read from the bucket; `tiered_end` where there is none."""
        return self.manifest.start_offset

    @property
    def log_start_offset(self) -> int:
        """The log start that the bucket's retention has reached: the partition's own is never below it."""
        return self.manifest.log_start_offset

    def manifest_bytes(self) -> bytes:
        """Return bytes for a local file with which the next `activate` needs no list."""
        return encode(self.manifest)

    def archive(
        self,
        segments: Sequence[ClosedSegment],
        *,
        last_stable_offset: int,
        log_start_offset: int,
        now_ms: int,
        may_have_gaps: bool = False,
    ) -> Manifest:
        """Upload closed segments in the order of offsets and commit them together.

        `may_have_gaps`: a cleaner may have taken records out of some.

        Segments already in the bucket are left out, and so are those from the first one past `last_stable_offset` on.
        After a failed upload, finished uploads are committed before the error is raised. After a failed commit,
        uploaded objects are not uploaded again.
        """
        if self.is_leaving:
            return self.manifest
        entries: list[Entry] = []
        failure: Corrupt | Unavailable | OSError | None = None
        end = self.tiered_end
        for segment in sorted(segments, key=lambda one: one.base_offset):
            if segment.next_offset <= end:
                continue
            follows = segment.base_offset <= max(end, log_start_offset)
            if segment.next_offset > last_stable_offset or not follows:
                break
            try:
                entries.append(self._upload(segment, max(segment.base_offset, end), now_ms))
            except (Corrupt, Unavailable, OSError) as error:
                failure = error
                break
            end = segment.next_offset

        def added(tip: Manifest) -> Manifest | None:
            changed = _with_entries(tip, entries, last_stable_offset, log_start_offset)
            if changed is not None and may_have_gaps:
                return replace(changed, cleaned_end=changed.clean_end)
            return changed

        manifest = self._commit(added, now_ms)
        self._uploaded.clear()
        if failure is not None:
            raise failure
        return manifest

    def _upload(self, segment: ClosedSegment, start: int, now_ms: int) -> Entry:
        last = segment.next_offset - 1
        uploaded = self._uploaded.get(start)
        if uploaded is not None and uploaded.last_offset == last and now_ms < _good_until(uploaded):
            return uploaded
        name = SegmentName(start, last, self.writer.leader_epoch, self.context.entropy.uuid())
        interval = self.context.index_interval_bytes
        entry = archive(
            self.context.store,
            self.folder,
            segment,
            name,
            now_ms=now_ms,
            index_interval_bytes=interval,
        )
        self._uploaded[start] = entry
        return entry

    def expire(self, now_ms: int, retention: Retention) -> Manifest:
        """Drop segments that retention no longer keeps, then remove the objects dropped `grace_ms` ago or earlier.

        The result's `log_start_offset` is the partition's new log start. Only whole segments expire, oldest first.
        """
        archives = self._archives
        self._commit(lambda tip: without_expired(tip, retention, now_ms, archives), now_ms)
        return self._remove(retention.grace_ms, now_ms)

    @property
    def damage(self) -> dict[str, str]:
        """The errors of unreadable archive manifests at their last use, by path."""
        return self._archives.damage_of(self.manifest)

    @property
    def wants_spill(self) -> bool:
        """Whether `spill` has entries to move."""
        return next_spill(self.manifest, self.context.spill_limits) is not None

    def spill(self, now_ms: int) -> Manifest:
        """Move the oldest entries into an archive manifest, where there are many.

        May be called where `archive` may, and raises as `archive`.
        """
        while (spill := next_spill(self.manifest, self.context.spill_limits)) is not None:
            tip = self.manifest
            spill, opened = opened_for(spill, tip, self._archives)
            named, data = spilled(tip, spill, opened, topic_id_text(self.context.entropy.uuid()))
            path = tip.archive_path(named)
            if not run(self.context.store, _put(path, data)):
                raise Unavailable(f"{path}: an archive manifest of that id is there already")
            done = self._commit(
                lambda tip, spill=spill, named=named: with_spilled(  # type: ignore[misc]
                    tip, spill, named, now_ms
                ),
                now_ms,
            )
            if named not in done.archives:
                break  # another leader was here; its own cycles go on
        return self.manifest

    def mergeable(self, limits: MergeLimits) -> tuple[Entry, ...]:
        """Return small neighbours to merge into one segment, without known damage; empty without any."""
        if self.is_leaving:
            return ()
        finished = SegmentState.COPY_FINISHED
        live = [entry for entry in self.manifest.segments if entry.state is finished]
        return mergeable(live, limits, self._damaged)

    def merge(self, entries: Sequence[Entry], now_ms: int) -> Manifest:
        """Merge the result of `mergeable` into one object, and drop the old entries.

        May be called where `archive` may, and raises as `archive`; Corrupt for objects that it will not try again.
        """
        manifest = self.manifest
        run = [RemoteSegment(manifest.path_of(entry), entry) for entry in entries]
        first, last = entries[0].base_offset, entries[-1].last_offset
        name = SegmentName(first, last, self.writer.leader_epoch, self.context.entropy.uuid())
        try:
            merged = archive(
                self.context.store,
                self.folder,
                merged_segment(self.context.store, run),
                name,
                now_ms=now_ms,
                index_interval_bytes=self.context.index_interval_bytes,
            )
        except Corrupt:
            # Damaged ones stay apart. If all read well now, all stay apart: the faulty one is unknown.
            found = damaged(self.context.store, run) or entries
            self._damaged.update(entry.id for entry in found)
            raise
        return self._commit(lambda tip: with_merged(tip, entries, merged, now_ms), now_ms)

    def unspill(self, now_ms: int) -> Manifest:
        """Move all archived entries back into the manifest: a cleaning replaces any of them.

        May be called where `archive` may, and raises as `archive`.
        """
        tip = self.manifest
        entries = [
            entry
            for named in tip.live_archives()
            for entry in self._archives.entries_of(tip, named)
        ]
        return self._commit(lambda tip: with_unspilled(tip, entries, now_ms), now_ms)

    def replace_cleaned(self, done: CleanedObjects, now_ms: int) -> bool:
        """Commit the objects of a cleaning instead of those that they replace. False where another change came first.

        Removes the objects that are not in the manifest then. May be called where `archive` may, and raises as
        `archive`.
        """
        changed: Manifest | None = None

        def cleaned(tip: Manifest) -> Manifest | None:
            nonlocal changed
            changed = with_cleaned(tip, done, now_ms)
            return None if changed is tip else changed

        self._commit(cleaned, now_ms)
        self.discard(done)
        return changed is not None

    def discard(self, done: CleanedObjects) -> None:
        """Remove a cleaning's objects that no manifest will name. What cannot be removed now, a sweep finds."""
        named = {entry.id for entry in self.manifest.segments}
        paths = [
            self.manifest.path_of(made) for _run, made in done.replaced if made.id not in named
        ]
        if paths:
            with suppress(Unavailable):
                self.context.store.delete(paths)

    def withdraw(self, now_ms: int, log_start_offset: int) -> Manifest:
        """Drop all entries, because the topic's tier is removed (KIP-950); `expire` removes the objects.

        `log_start_offset` is the log's new start. For readers of the bucket, the log begins and ends at its former end.
        """

        def emptied(tip: Manifest) -> Manifest | None:
            changed = replace(
                tip,
                archives=tuple(given_up(named, now_ms) for named in tip.archives),
                segments=tuple(given_up(entry, now_ms) for entry in tip.segments),
                log_start_offset=max(tip.log_start_offset, log_start_offset),
                cleaned_end=UNSET,  # what comes back is uploaded anew
            )
            return changed if changed != tip else None

        self.lookup.forget()
        return self._commit(emptied, now_ms)

    def _remove(self, grace_ms: int, now_ms: int) -> Manifest:
        """Remove the objects that a confirmed version dropped `grace_ms` ago and that no read lease holds; then drop
        their entries.

        An archive's objects are removed before the archive, which lists them.
        """
        manifest = self.manifest
        steady_ms = self._steady(now_ms)
        due, archives = self._grace.due(manifest, steady_ms - grace_ms)
        if self.context.leases is not None and (due or archives):
            pinned = self.context.leases.pinned(manifest.topic_id, self.folder.partition, steady_ms)
            due, archives = self._grace.due(manifest, steady_ms - grace_ms, pinned)
        if not due and not archives:
            return manifest
        paths = [manifest.path_of(entry) for entry in due]
        left = {one.id for one in manifest.archives if one not in archives}
        gone = {manifest.archive_path(one) for one in archives if one.id not in left}
        for named in archives:
            paths += segments_of(manifest, named, self._archives)
        for start in range(0, len(paths), _DELETE_BATCH):
            self.context.store.delete(paths[start : start + _DELETE_BATCH])
        if gone:
            self.context.store.delete(sorted(gone))
        removed = {entry.id for entry in due}

        def forgotten(tip: Manifest) -> Manifest | None:
            changed = replace(
                tip,
                archives=tuple(one for one in tip.archives if one not in archives),
                segments=tuple(entry for entry in tip.segments if entry.id not in removed),
            )
            return changed if changed != tip else None

        return self._commit(forgotten, now_ms)

    def _steady(self, now_ms: int) -> int:
        return now_ms if self.context.steady_ms is None else self.context.steady_ms()

    def _commit(self, change: Callable[[Manifest], Manifest | None], now_ms: int) -> Manifest:
        prefix = self.folder.prefix

        def stamped(tip: Manifest | None) -> Manifest | None:
            assert tip is not None, "activation committed a version"
            changed = change(tip)
            if changed is None:
                return None
            boundary = max(changed.boundary, self._boundary)
            return replace(changed, written_ms=now_ms, boundary=boundary)

        write_id = topic_id_text(self.context.entropy.uuid())
        program = commit(prefix, self.manifest, stamped, self.writer, write_id)
        manifest = run(self.context.store, program)
        assert manifest is not None, "activation committed a version"
        self._confirmed(manifest, now_ms)
        return manifest

    def _confirmed(self, manifest: Manifest, now_ms: int) -> None:
        """Keep a confirmed version, and prune versions long behind it."""
        self.manifest = manifest
        self._grace.note(manifest, self._steady(now_ms))
        if (manifest.version - KEPT_VERSIONS) // FAN_OUT > max(manifest.boundary, self._boundary):
            with suppress(Unavailable):  # the committed version stays; the next commit tries again
                self._boundary = run(self.context.store, prune(self.folder.prefix, manifest))


def _put(path: str, data: bytes) -> Program[bool]:
    """Put an object with a new id; return False where another object has that id."""
    mine: bool = yield PutAbsent(path, data)
    return mine


def _good_until(uploaded: Entry) -> int:
    """Return when (epoch ms) to upload an uncommitted object again, well before a sweep may remove it."""
    return uploaded.state_ms + ORPHAN_GRACE_MS // 2


def _with_entries(
    tip: Manifest, entries: Sequence[Entry], last_stable_offset: int, log_start_offset: int
) -> Manifest | None:
    """Return `tip` with the entries that continue it; None where it has them all."""
    end = tip.archived_end
    log_start = max(tip.log_start_offset, log_start_offset)
    segments = list(tip.segments)
    for entry in entries:
        if entry.last_offset < end:
            continue  # the entry exists: this commit succeeded before, or an earlier leader's arrived late
        if entry.base_offset < end or entry.base_offset > max(end, log_start):
            break  # the entry no longer fits: the archiver uploads again from the end of the tip
        segments.append(entry)
        end = entry.last_offset + 1
    if end == tip.archived_end:
        return None
    return replace(
        tip,
        segments=tuple(segments),
        tiered_end=end,
        log_start_offset=log_start,
        last_stable_offset=max(tip.last_stable_offset, last_stable_offset),
    )
