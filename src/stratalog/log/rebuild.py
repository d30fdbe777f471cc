"""Rebuild a partition's log from its files, step by step.

In: a partition's directory. Out: programs that list, trust, scan and repair its files, and the log's state after them.
It never chooses the steps: `recovery.py` does.
"""

from functools import partial
from typing import Final

from stratalog.config import LogConfig
from stratalog.errors import Corrupt
from stratalog.log.checkpoints import LEADER_EPOCHS, LOG_START_OFFSETS
from stratalog.log.damage import Damage, next_sound, why_not_torn
from stratalog.log.effects import (
    Append,
    ListDirectory,
    Program,
    Read,
    Sync,
    SyncDirectory,
    Truncate,
    Unlink,
    WriteFile,
)
from stratalog.log.epochs import LeaderEpochs
from stratalog.log.producers import ProducerStates
from stratalog.log.scanning import (
    OFFSET_MAX,
    load_indexes,
    load_producers,
    load_snapshot,
    read_max_timestamp,
    scan_segment,
    visit,
)
from stratalog.log.segment import (
    CLEANED,
    DELETED,
    INDEX,
    LOG,
    SNAPSHOT,
    TIME_INDEX,
    TRANSACTION_INDEX,
    Segment,
    segment_path,
)
from stratalog.log.swaps import complete_swaps
from stratalog.log.transaction_index import check_index
from stratalog.log.truncation import unlink_snapshots
from stratalog.wire.batch import BatchHeader

__all__ = ["Rebuild"]

_SMALL_FILE_BYTES: Final = 16 * 1024 * 1024
_LEFTOVERS: Final = (DELETED, CLEANED, ".tmp")


class Rebuild:
    """The state of one load. Each method is one step, and yields its effects."""

    __slots__ = (
        "bases",
        "bytes_cut",
        "config",
        "damage",
        "directory",
        "durable_end",
        "ends_at_hole",
        "epochs",
        "gaps_below",
        "missing",
        "now_ms",
        "producers",
        "producers_end",
        "resume_at",
        "segments",
        "segments_scanned",
        "sizes",
        "snapshots",
        "synced_to",
    )

    def __init__(
        self,
        directory: str,
        config: LogConfig,
        now_ms: int,
        *,
        replicated: bool,
        was_cleaned: bool,
    ) -> None:
        """`replicated`: other brokers have replicas. The log then ends at its first hole, and the other replicas fill
        it.

        Without other replicas, the records behind a hole must stay, because no other copy exists. A log that is
        compacted, or was once (`was_cleaned`), has legitimate gaps, and other replicas have them too.
        """
        self.ends_at_hole = replicated and not (was_cleaned or "compact" in config.cleanup_policy)
        self.directory = directory
        self.config = config
        self.now_ms = now_ms
        self.sizes: dict[str, int] = {}
        self.bases: list[int] = []
        self.snapshots: set[int] = set()
        self.epochs = LeaderEpochs()
        self.segments: list[Segment] = []
        self.producers = ProducerStates()
        self.producers_end: int | None = None  # the offset of the state in `producers`, once known
        self.bytes_cut = 0
        self.segments_scanned = 0
        self.synced_to: int | None = None  # least end of a log that syncs every batch
        self.durable_end = 0  # bytes below it must not be cut
        self.resume_at = 0  # next offset of a log that does not reach `durable_end`
        self.gaps_below = OFFSET_MAX  # batches with gaps in their offsets end below it
        self.damage: list[Damage] = []
        self.missing: set[int] = set()  # segments in the index

    @property
    def _is_compacted(self) -> bool:
        return "compact" in self.config.cleanup_policy

    def take_checkpoints(self, recovery_point: int, high_watermark: int, *, clean: bool) -> None:
        """Note the least end of the log. One checkpoint alone is no proof, because it may be damaged."""
        self.durable_end = min(recovery_point, high_watermark)
        self.resume_at = max(recovery_point, high_watermark)
        if clean and recovery_point == high_watermark:
            self.gaps_below = recovery_point

    def take_for_synced(self, log_start_offset: int) -> None:
        """Treat the log as one that syncs every batch. Raises Corrupt where its first file is missing."""
        self.gaps_below = 0
        self.synced_to = max(self.snapshots, default=0)
        first = min(self.bases, default=log_start_offset)
        if first > log_start_offset:
            path = segment_path(self.directory, log_start_offset, LOG)
            raise Corrupt(f"{path} is missing: the first file begins at offset {first}")

    def list_files(self, start_offset: int) -> Program[None]:
        """List the files; complete replacements, remove leftovers of deletions and of unfinished writes."""
        entries = yield ListDirectory(self.directory)
        assert isinstance(entries, list)
        entries = yield from complete_swaps(self.directory, entries)
        leftovers = []
        for entry in entries:
            path = f"{self.directory}/{entry.name}"
            stem, dot, suffix = entry.name.rpartition(".")
            if entry.name.endswith(_LEFTOVERS):
                leftovers.append(path)
            elif len(stem) == 20 and stem.isascii() and stem.isdigit():
                self.sizes[path] = entry.size
                if dot + suffix == LOG:
                    self.bases.append(int(stem))
                elif dot + suffix == SNAPSHOT:
                    self.snapshots.add(int(stem))
        segment_bases = set(self.bases)
        orphans = [
            path
            for path in self.sizes
            if path.endswith((INDEX, TIME_INDEX, TRANSACTION_INDEX))
            and _base(path) not in segment_bases
        ]
        for base in sorted({_base(path) for path in orphans}):
            # An interrupted deletion has renamed the log before its indexes.
            log = segment_path(self.directory, base, LOG)
            if start_offset <= base < self.durable_end and log + DELETED not in leftovers:
                end = min((one for one in segment_bases if one > base), default=self.resume_at)
                self.missing.add(base)
                self.damage.append(
                    Damage(log, f"it is missing: so are offsets {base} to {end - 1}")
                )
        for path in orphans:
            yield Unlink(path)
            del self.sizes[path]
        for path in leftovers:
            yield Unlink(path)

    def read_epochs(self) -> Program[bool]:
        """Read the epoch checkpoint; return False where it is malformed: then each batch's header must provide the
        epoch.
        """
        try:
            data = yield Read(f"{self.directory}/{LEADER_EPOCHS}", 0, _SMALL_FILE_BYTES)
            assert isinstance(data, bytes)
            self.epochs = LeaderEpochs.decode(data)
        except FileNotFoundError:
            return True
        except Corrupt:
            return False
        return True

    def confirmed_start(self, log_start_offset: int) -> int:
        """Return the log's start, lower than in the checkpoint if the epochs begin earlier.

        The clean stop wrote both, and neither has a checksum.
        """
        begins = max(self.epochs.first_offset, self.bases[0])
        if not 0 <= self.epochs.first_offset <= begins < log_start_offset:
            return log_start_offset
        reason = f"it begins with offset {begins}, and {LOG_START_OFFSETS} has {log_start_offset}"
        self.damage.append(Damage(f"{self.directory}/{LEADER_EPOCHS}", reason))
        return begins

    def _segment(self, base: int) -> Segment:
        segment = Segment(self.directory, base, self.now_ms)
        segment.index_size = self.sizes.get(segment.index_path, -1)
        segment.time_index_size = self.sizes.get(segment.time_index_path, -1)
        return segment

    def _load_aborted(self, segment: Segment) -> Program[None]:
        """Load the transaction index of a closed or cleanly stopped segment; rebuild one that is damaged."""
        path = segment.transaction_index_path
        if path not in self.sizes:
            return
        data = yield Read(path, 0, self.sizes[path])
        assert isinstance(data, bytes | bytearray)
        segment.transaction_index = bytearray(data)
        try:
            check_index(data, path, segment.base_offset)
        except Corrupt:
            yield from self._rebuild_aborted(segment)

    def _rebuild_aborted(self, segment: Segment) -> Program[None]:
        segment.transaction_index.clear()
        producers = yield from load_producers(
            self.directory, self.segments, self.snapshots, segment.base_offset, self.now_ms
        )

        def take(header: BatchHeader, view: memoryview) -> bool:
            if header.producer_id >= 0:
                aborted = producers.take(header, view, header.base_offset, self.now_ms)
                if aborted is not None:
                    segment.add_aborted(aborted)
            return True

        yield from visit(segment.path, 0, self.sizes[segment.path], take)
        yield from _write_transaction_index(segment)

    def load_closed(self, base: int, next_base: int) -> Program[None]:
        """Load a segment below the recovery point; read only its largest timestamp, if its indexes exist."""
        segment = self._segment(base)
        log_size = self.sizes[segment.path]
        if not log_size:
            self._damaged(segment, 0, next_base)
            yield from self._drop_empty(segment, next_base)
            return
        segment.next_offset = next_base
        indexed = (
            segment.index_size >= 0
            and segment.index_size % 8 == 0
            and segment.time_index_size >= 0
            and (yield from read_max_timestamp(segment))
        )
        if indexed:
            segment.drop_indexes()
        else:
            segment = self._segment(base)
            yield from scan_segment(
                segment, log_size, self.config.index_interval_bytes, check_crc=False
            )
            segment.next_offset = next_base
            yield from _write_indexes(segment)
        yield from self._load_aborted(segment)
        segment.size = segment.readable = log_size
        self.segments.append(segment)

    def load_active(self, base: int) -> Program[bool]:
        """Load the last segment after a clean shutdown; return False where it needs a scan after all."""
        segment = self._segment(base)
        log_size = self.sizes[segment.path]
        if log_size:
            loaded = yield from load_indexes(
                segment,
                index_size=max(segment.index_size, 0),
                time_index_size=max(segment.time_index_size, 0),
                log_size=log_size,
            )
            if not loaded:
                return False
            interval = self.config.index_interval_bytes
            yield from scan_segment(
                segment, log_size, interval, check_crc=False, gaps_below=self.gaps_below
            )
            if segment.size != log_size:
                return False
        if segment.next_offset < self.durable_end:
            return False
        yield from self._load_aborted(segment)
        self.segments.append(segment)
        return True

    def recover(self, bases: list[int]) -> Program[None]:
        """Scan segments in order up to the log's end; remove everything behind it."""
        yield from self._load_producers(bases[0] if bases else 0)
        for at, base in enumerate(bases):
            segment = self._segment(base)
            log_size = self.sizes[segment.path]
            yield from self._scan(segment, log_size)
            self.segments_scanned += 1
            if self.synced_to is not None:
                why = yield from why_not_torn(segment, log_size, self.synced_to, bases[at + 1 :])
                if why is not None:
                    raise Corrupt(why)
            behind = bases[at + 1] if at + 1 < len(bases) else self.resume_at
            was_durable = segment.next_offset < self.durable_end
            is_whole = at + 1 < len(bases) and segment.next_offset == behind
            is_kept = not is_whole and not self.ends_at_hole
            if is_kept and not was_durable:
                is_kept = yield from self._is_before_gap(segment, log_size, bases[at + 1 :])
            if is_kept:
                yield from self._keep_damaged(segment, log_size, behind)
                continue
            self.segments.append(segment)
            if segment.size < log_size:
                self.bytes_cut += log_size - segment.size
                yield Truncate(segment.path, segment.size)
                yield Sync(segment.path)
            if not is_whole:
                yield from self._become_active(segment)
                yield from self._remove(bases[at + 1 :])
                break
            yield from self._close(segment)
        else:
            if self.durable_end:
                if not bases:
                    path = segment_path(self.directory, 0, LOG)
                    reason = f"no file is there: offsets below {self.resume_at} are missing"
                    self.damage.append(Damage(path, reason))
                yield from self._begin(0 if self.ends_at_hole else self.resume_at)
        if self.segments:
            self.producers_end = self.segments[-1].next_offset

    def _scan(self, segment: Segment, log_size: int) -> Program[None]:
        """Read the sound batches of a segment: up to the first unsound one, but all in its durable part."""
        interval = self.config.index_interval_bytes
        while True:
            yield from scan_segment(
                segment,
                log_size,
                interval,
                check_crc=True,
                gaps_below=self.gaps_below,
                on_batch=partial(self._on_batch, segment),
            )
            offset, position = segment.next_offset, segment.size
            if position == log_size or offset >= self.durable_end or self.synced_to is not None:
                return
            if self.ends_at_hole:
                return
            found = yield from next_sound(segment.path, position + 1, log_size, offset)
            if found is None:
                return
            self._damaged(segment, found[0], found[1].base_offset)
            segment.skip_to(found[0], found[1].base_offset)

    def _is_before_gap(self, segment: Segment, log_size: int, later: list[int]) -> Program[bool]:
        """Return whether a sound segment ends before the next one begins, and a sound batch lies behind the gap.

        As in Kafka, a gap ends no log: the cleaner leaves gaps. Behind a torn batch, the log ends. So it does at a gap
        with nothing behind it, or only the bucket before it: until an append or an upload a fetch there gets nothing.
        """
        is_torn = self.synced_to is not None or segment.size < log_size
        is_at_bucket = self.config.remote_storage_enable and not (self.segments or segment.size)
        if is_torn or is_at_bucket or not later or segment.next_offset >= later[0]:
            return False
        for base in later:
            behind = self._segment(base)
            size = self.sizes[behind.path]
            if size:
                interval = self.config.index_interval_bytes
                yield from scan_segment(
                    behind, size, interval, check_crc=True, gaps_below=self.gaps_below
                )
                return behind.size > 0
        return False

    def _damaged(self, segment: Segment, end: int, end_offset: int) -> None:
        """Note that bytes from the end of the sound batches up to `end` cannot be read.

        In a compacted log a gap alone is no damage.
        """
        is_gap = end == segment.size
        if is_gap and (segment.next_offset in self.missing or self._is_compacted):
            return
        lost = f"offsets {segment.next_offset} to {end_offset - 1}"
        if end > segment.size:
            reason = (
                f"bytes {segment.size} to {end - 1} are damaged: {lost} cannot be read, or not all"
            )
        else:
            reason = f"it ends at byte {end}: {lost} are missing"
        self.damage.append(Damage(segment.path, reason))

    def _keep_damaged(self, segment: Segment, log_size: int, behind: int) -> Program[None]:
        """Keep a file that lacks durable bytes unchanged, and continue the log behind it, at offset `behind`."""
        self._damaged(segment, log_size, behind)
        if not log_size:
            yield from self._drop_empty(segment, behind)
            return
        self.segments.append(segment)
        segment.next_offset = behind
        segment.size = segment.readable = log_size
        yield from self._close(segment)

    def _close(self, segment: Segment) -> Program[None]:
        yield from _write_indexes(segment)
        yield from _write_transaction_index(segment)
        self.snapshots.add(segment.next_offset)
        path = segment_path(self.directory, segment.next_offset, SNAPSHOT)
        yield WriteFile(path, self.producers.encode())

    def _drop_empty(self, segment: Segment, behind: int) -> Program[None]:
        for path in (segment.index_path, segment.time_index_path, segment.path):
            yield Unlink(path)
        if self.segments:
            self.segments[-1].next_offset = behind

    def _begin(self, offset: int) -> Program[None]:
        fresh = Segment(self.directory, offset, self.now_ms)
        yield Append(fresh.path, 0, ())
        yield SyncDirectory(self.directory)
        self.segments.append(fresh)

    def _on_batch(self, segment: Segment, header: BatchHeader, view: memoryview) -> None:
        self.epochs.assign(header.leader_epoch, header.base_offset)
        if header.producer_id >= 0:
            aborted = self.producers.take(header, view, header.base_offset, self.now_ms)
            if aborted is not None:
                segment.add_aborted(aborted)

    def _become_active(self, segment: Segment) -> Program[None]:
        # Existing index files may belong to a longer segment: closing this one writes them again.
        for path in (segment.index_path, segment.time_index_path):
            if path in self.sizes:
                yield Unlink(path)
        yield from _write_transaction_index(segment)

    def _remove(self, bases: list[int]) -> Program[None]:
        for base in bases:
            self.bytes_cut += self.sizes[segment_path(self.directory, base, LOG)]
            for suffix in (LOG, INDEX, TIME_INDEX, TRANSACTION_INDEX):
                path = segment_path(self.directory, base, suffix)
                if path in self.sizes:
                    yield Unlink(path)
        if bases:
            yield SyncDirectory(self.directory)

    def begin_at_least(self, offset: int) -> Program[bool]:
        """Restart a log that ends below `offset` there: the missing records are in the bucket or were deleted.

        Return False then.
        """
        if self.segments and self.segments[-1].next_offset >= offset:
            return True
        for segment in self.segments:
            for suffix in (LOG, INDEX, TIME_INDEX, TRANSACTION_INDEX):
                yield Unlink(segment_path(self.directory, segment.base_offset, suffix))
        yield from unlink_snapshots(self.directory, self.snapshots, -1)
        self.segments = []
        yield from self._begin(offset)
        self.producers = ProducerStates()
        self.producers_end = offset
        return False

    def restore_producers(self, end: int) -> Program[None]:
        """Restore the producers at the log's end; remove snapshots beyond it."""
        yield from unlink_snapshots(self.directory, self.snapshots, end)
        if self.producers_end != end:
            yield from self._load_producers(end)

    def _load_producers(self, offset: int) -> Program[None]:
        if self.segments:
            self.producers = yield from load_producers(
                self.directory, self.segments, self.snapshots, offset, self.now_ms
            )
            return
        self.producers = yield from load_snapshot(
            self.directory, self.snapshots, offset, self.now_ms
        )


def _base(path: str) -> int:
    """Return the base offset in the name of one of a segment's files."""
    return int(path.rpartition(".")[0][-20:])


def _write_indexes(segment: Segment) -> Program[None]:
    """Write the index files of a segment whose indexes were rebuilt in memory, and close it."""
    for effect in segment.seal():
        assert isinstance(effect, Append)
        yield WriteFile(effect.path, b"".join(effect.buffers))
    segment.drop_indexes()


def _write_transaction_index(segment: Segment) -> Program[None]:
    """Write the transaction index that was rebuilt in memory; without an entry there is no file."""
    path = segment.transaction_index_path
    if segment.transaction_index:
        yield WriteFile(path, bytes(segment.transaction_index))
    else:
        yield Unlink(path)
