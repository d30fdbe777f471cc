"""One partition's share of the bucket, as its leader keeps it.

In: the leader's epoch, closed segments, retention. Out: objects and manifest versions; what lies where. It never
removes an object that a confirmed manifest has not given up first, and never serves bytes: `tier/fetcher.py` does.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from msgspec.structs import replace

from stratalog.errors import Corrupt, Unavailable
from stratalog.ports import Entropy, ObjectStore
from stratalog.tier.archiver import ClosedSegment, PartitionKey, archive
from stratalog.tier.commit import (
    FAN_OUT,
    KEPT_VERSIONS,
    Writer,
    commit,
    load_latest,
    prune,
    run,
)
from stratalog.tier.manifest import (
    Entry,
    Manifest,
    RemoteSegment,
    SegmentState,
    decode,
    encode,
    given_up,
)
from stratalog.tier.merging import MergeLimits, damaged, mergeable, merged_segment, with_merged
from stratalog.tier.paths import SegmentName
from stratalog.tier.segment_object import INDEX_INTERVAL_BYTES
from stratalog.wire.ids import topic_id_text

__all__ = ["ORPHAN_GRACE_MS", "PartitionTier", "Retention"]

ORPHAN_GRACE_MS: Final = 60 * 60 * 1000
"""An object that no manifest has named for so long may be swept."""


@dataclass(frozen=True, slots=True)
class Retention:
    """What may go. Kafka's `retention.ms` and `retention.bytes` (-1: keep), and what the local log knows.

    `log_start_offset`: records below are gone for clients (DeleteRecords). `local_only_bytes`: bytes of the log that
    are not in the bucket, which count against `bytes` too. `grace_ms`: `remote.delete.grace.ms`, from giving a segment
    up to removing its object, for readers that hold an older manifest.
    """

    ms: int
    bytes: int
    log_start_offset: int
    local_only_bytes: int
    grace_ms: int


@dataclass(slots=True)
class PartitionTier:
    """The bucket's share of one partition.

    `activate` first, once per leadership. It, `archive`, `expire` and `withdraw` block, and must be called one at a
    time; they raise Fenced (give the leadership up, delete nothing), Unavailable (call again later: whatever was done
    is found done) and Corrupt. The other members only look at `manifest`, which is replaced as a whole, and may be
    used from any thread meanwhile.
    """

    store: ObjectStore
    cluster_id: str
    topic_id: UUID
    topic: str
    partition: int
    node_id: int
    entropy: Entropy
    index_interval_bytes: int = INDEX_INTERVAL_BYTES
    manifest: Manifest | None = None
    """The newest version known: confirmed once activated."""
    writer: Writer | None = field(default=None, init=False)
    _uploaded: dict[int, Entry] = field(default_factory=dict, init=False)
    _damaged: set[str] = field(default_factory=set, init=False)
    _boundary: int = field(default=0, init=False)

    @property
    def key(self) -> PartitionKey:
        return PartitionKey(self.cluster_id, self.topic_id, self.partition)

    @property
    def tiered_end(self) -> int:
        """The first offset that is not in the bucket; 0 before activation."""
        return self.manifest.archived_end if self.manifest is not None else 0

    @property
    def is_leaving(self) -> bool:
        """Whether objects of a tier that was taken away are not removed yet: nothing is copied before they are."""
        manifest = self.manifest
        return manifest is not None and any(
            entry.state is not SegmentState.COPY_FINISHED
            and entry.last_offset >= manifest.archived_end
            for entry in manifest.segments
        )

    @property
    def start_offset(self) -> int:
        """The first offset that can be read from the bucket; `tiered_end` where there is none."""
        return self.manifest.start_offset if self.manifest is not None else 0

    @property
    def log_start_offset(self) -> int:
        """The log start that the bucket's retention has reached: the partition's own is never below it."""
        return self.manifest.log_start_offset if self.manifest is not None else 0

    def entry_for(self, offset: int) -> RemoteSegment | None:
        """The segment that covers `offset`; None below `start_offset` and from `tiered_end` on."""
        return self.manifest.segment_for(offset) if self.manifest is not None else None

    def entry_for_timestamp(self, timestamp: int, start_offset: int = 0) -> RemoteSegment | None:
        """The first segment that ends at `start_offset` or later and has a record of `timestamp` (epoch ms) or later.

        That record may lie below `start_offset`: where a search of the segment finds nothing, go on after its end.
        """
        if self.manifest is None:
            return None
        return self.manifest.segment_for_timestamp(timestamp, start_offset)

    def entry_for_max_timestamp(self) -> RemoteSegment | None:
        """The (first) segment with the greatest timestamp."""
        live = list(self.manifest.live()) if self.manifest is not None else []
        return max(live, key=lambda segment: segment.entry.max_timestamp, default=None)

    def manifest_bytes(self) -> bytes:
        """What to keep on local disk for the next `activate`, which then needs no list. Empty before activation."""
        return encode(self.manifest) if self.manifest is not None else b""

    def activate(
        self, leader_epoch: int, local_manifest: bytes | None = None, *, now_ms: int
    ) -> Manifest:
        """Take the partition over: commit a version of `leader_epoch`, which fences earlier leaders.

        `local_manifest` (`manifest_bytes` of an earlier run) is a hint; a damaged or foreign one is ignored.
        """
        self.writer = Writer(self.node_id, leader_epoch)
        self._uploaded.clear()
        if local_manifest:
            with suppress(Corrupt):
                hint = decode(local_manifest, "the local manifest")
                known = self.manifest.version if self.manifest is not None else 0
                if hint.prefix == self.key.prefix and hint.version > known:
                    self.manifest = hint

        return self._commit(lambda tip: tip if tip is not None else self._empty(), now_ms)

    def archive(
        self,
        segments: Sequence[ClosedSegment],
        *,
        last_stable_offset: int,
        log_start_offset: int,
        now_ms: int,
    ) -> Manifest:
        """Upload closed segments in the order of offsets and commit them together.

        Those already in the bucket, and from the first that reaches past `last_stable_offset` on, are left out.
        What was uploaded before a failure is committed before it is raised; what was uploaded when the commit failed
        is not uploaded again.
        """
        assert self.manifest is not None, "activate first"
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

        def added(tip: Manifest | None) -> Manifest | None:
            assert tip is not None, "an activated partition has a manifest"
            return _with_entries(tip, entries, last_stable_offset, log_start_offset)

        manifest = self._commit(added, now_ms)
        self._uploaded.clear()
        if failure is not None:
            raise failure
        return manifest

    def _upload(self, segment: ClosedSegment, start: int, now_ms: int) -> Entry:
        assert self.writer is not None, "activate first"
        last = segment.next_offset - 1
        known = self._uploaded.get(start)
        if known is not None and known.last_offset == last and now_ms < _good_until(known):
            return known
        name = SegmentName(start, last, self.writer.leader_epoch, self.entropy.uuid())
        interval = self.index_interval_bytes
        entry = archive(
            self.store, self.key, segment, name, now_ms=now_ms, index_interval_bytes=interval
        )
        self._uploaded[start] = entry
        return entry

    def expire(self, now_ms: int, retention: Retention) -> Manifest:
        """Give up what retention no longer keeps, then remove the objects given up `grace_ms` ago or earlier.

        The result's `log_start_offset` is the partition's new log start. Only whole segments go, oldest first.
        """
        self._commit(lambda tip: _without_expired(_there(tip), retention, now_ms), now_ms)
        due = self._due(now_ms - retention.grace_ms)
        return self._remove(due, now_ms)

    def mergeable(self, limits: MergeLimits) -> tuple[Entry, ...]:
        """Small neighbours that shall be one segment, none of them known to be damaged; empty where none shall."""
        if self.is_leaving:
            return ()
        finished = SegmentState.COPY_FINISHED
        live = [entry for entry in _there(self.manifest).segments if entry.state is finished]
        return mergeable(live, limits, self._damaged)

    def merge(self, entries: Sequence[Entry], now_ms: int) -> Manifest:
        """Copy what `mergeable` gave into one object, which counts instead of theirs; they are given up.

        May be called where `archive` may, and raises as it does; Corrupt for objects that will not be tried again.
        """
        assert self.writer is not None, "activate first"
        manifest = _there(self.manifest)
        run = [RemoteSegment(manifest.path_of(entry), entry) for entry in entries]
        first, last = entries[0].base_offset, entries[-1].last_offset
        name = SegmentName(first, last, self.writer.leader_epoch, self.entropy.uuid())
        try:
            merged = archive(
                self.store,
                self.key,
                merged_segment(self.store, run),
                name,
                now_ms=now_ms,
                index_interval_bytes=self.index_interval_bytes,
            )
        except Corrupt:
            # Those at fault stay apart; where they read well now, all do: nobody knows which it was.
            found = damaged(self.store, run) or entries
            self._damaged.update(entry.id for entry in found)
            raise
        return self._commit(lambda tip: with_merged(_there(tip), entries, merged, now_ms), now_ms)

    def exists(self) -> bool:
        """Whether anything of the partition was ever in the bucket, as far as a list shows."""
        return (
            self.manifest is not None or run(self.store, load_latest(self.key.prefix)) is not None
        )

    def withdraw(self, now_ms: int, log_start_offset: int) -> Manifest:
        """Give everything up, because the topic's tier is taken away (KIP-950); `expire` removes the objects.

        `log_start_offset`: where the log begins from now on. For readers of the bucket it ends where it did and begins
        there too.
        """

        def emptied(tip: Manifest | None) -> Manifest | None:
            tip = _there(tip)
            segments = tuple(given_up(entry, now_ms) for entry in tip.segments)
            log_start = max(tip.log_start_offset, log_start_offset)
            if segments == tip.segments and log_start == tip.log_start_offset:
                return None
            return replace(tip, segments=segments, log_start_offset=log_start)

        return self._commit(emptied, now_ms)

    def _due(self, since_ms: int) -> list[Entry]:
        """Entries that a confirmed version gave up at `since_ms` or before."""
        manifest = _there(self.manifest)
        gone = SegmentState.DELETE_STARTED
        return [e for e in manifest.segments if e.state is gone and e.state_ms <= since_ms]

    def _remove(self, due: list[Entry], now_ms: int) -> Manifest:
        manifest = _there(self.manifest)
        if not due:
            return manifest
        self.store.delete([manifest.path_of(entry) for entry in due])
        removed = {entry.id for entry in due}

        def forgotten(tip: Manifest | None) -> Manifest | None:
            tip = _there(tip)
            kept = tuple(entry for entry in tip.segments if entry.id not in removed)
            return replace(tip, segments=kept) if len(kept) < len(tip.segments) else None

        return self._commit(forgotten, now_ms)

    def _empty(self) -> Manifest:
        return Manifest(
            cluster_id=self.cluster_id,
            topic_id=topic_id_text(self.topic_id),
            topic=self.topic,
            partition=self.partition,
        )

    def _commit(
        self, change: Callable[[Manifest | None], Manifest | None], now_ms: int
    ) -> Manifest:
        assert self.writer is not None, "activate first"
        prefix = self.key.prefix

        def stamped(tip: Manifest | None) -> Manifest | None:
            changed = change(tip)
            if changed is None:
                return None
            boundary = max(changed.boundary, self._boundary)
            return replace(changed, written_ms=now_ms, boundary=boundary)

        write_id = topic_id_text(self.entropy.uuid())
        program = commit(prefix, self.manifest, stamped, self.writer, write_id)
        manifest = _there(run(self.store, program))
        self.manifest = manifest
        if (manifest.version - KEPT_VERSIONS) // FAN_OUT > max(manifest.boundary, self._boundary):
            with suppress(Unavailable):  # what was committed stays so; the next commit tries again
                self._boundary = run(self.store, prune(prefix, manifest))
        return manifest


def _good_until(uploaded: Entry) -> int:
    """A sweep may take an object that nobody names: well before that (epoch ms) it is copied again."""
    return uploaded.state_ms + ORPHAN_GRACE_MS // 2


def _there(manifest: Manifest | None) -> Manifest:
    assert manifest is not None, "an activated partition has a manifest"
    return manifest


def _with_entries(
    tip: Manifest, entries: Sequence[Entry], last_stable_offset: int, log_start_offset: int
) -> Manifest | None:
    """`tip` with the entries that continue it; None where it has them all."""
    end = tip.archived_end
    log_start = max(tip.log_start_offset, log_start_offset)
    segments = list(tip.segments)
    for entry in entries:
        if entry.last_offset < end:
            continue  # it is there: this commit was made before, or an earlier leader's was late
        if entry.base_offset < end or entry.base_offset > max(end, log_start):
            break  # it does not fit any more; what is missing is copied again from where the tip ends
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


def _without_expired(tip: Manifest, retention: Retention, now_ms: int) -> Manifest | None:
    """`tip` with the segments given up that retention does not keep; None where there are none."""
    log_start = max(tip.log_start_offset, retention.log_start_offset)
    total = tip.live_bytes + retention.local_only_bytes
    segments: list[Entry] = []
    oldest = True
    for entry in tip.segments:
        if entry.state is not SegmentState.COPY_FINISHED:
            segments.append(entry)
            continue
        too_old = retention.ms >= 0 and now_ms - entry.max_timestamp > retention.ms
        too_much = retention.bytes >= 0 and total - entry.data_size >= retention.bytes
        if oldest and (entry.last_offset < log_start or too_old or too_much):
            total -= entry.data_size
            log_start = max(log_start, entry.last_offset + 1)
            segments.append(given_up(entry, now_ms))
        else:
            oldest = False
            segments.append(entry)
    if tuple(segments) == tip.segments and log_start == tip.log_start_offset:
        return None
    return replace(tip, segments=tuple(segments), log_start_offset=log_start)
