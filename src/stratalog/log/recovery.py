"""Load a partition from its files, after a clean shutdown or a crash.

In: a directory, and the values of its checkpoints. Out: a program that reads (and repairs) files and ends with a
PartitionLog. It trusts bytes above the recovery point only where a CRC confirms them.

After a crash it scans every segment that reaches beyond the recovery point. The first batch that is torn, damaged or
out of order ends the log, and everything after it is removed (Kafka: `LogLoader`, `LogSegment.recover`). It writes
indexes and producer snapshots above the recovery point anew. After a clean shutdown a few small reads suffice, and
nothing is written.
"""

import uuid
from bisect import bisect_right
from itertools import pairwise
from typing import Final

from stratalog.config import LogConfig
from stratalog.errors import Corrupt
from stratalog.log.checkpoints import (
    LEADER_EPOCHS,
    PARTITION_METADATA,
    decode_partition_metadata,
    encode_partition_metadata,
)
from stratalog.log.damage import why_not_torn
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
from stratalog.log.partition import PartitionLog
from stratalog.log.producers import ProducerStates
from stratalog.log.scanning import (
    OFFSET_MAX,
    load_indexes,
    load_producers,
    load_snapshot,
    read_max_timestamp,
    scan_segment,
)
from stratalog.log.segment import (
    DELETED,
    INDEX,
    LOG,
    SNAPSHOT,
    TIME_INDEX,
    TRANSACTION_INDEX,
    Segment,
    segment_path,
)
from stratalog.log.tail import TailBudget
from stratalog.log.truncation import unlink_snapshots
from stratalog.log.values import Contents, Recovered
from stratalog.wire.batch import BatchHeader

__all__ = ["load", "read_topic_id"]

_SMALL_FILE_BYTES: Final = 16 * 1024 * 1024
_LEFTOVERS: Final = (DELETED, ".cleaned", ".swap", ".tmp")


def read_topic_id(directory: str) -> Program[uuid.UUID | None]:
    """The topic id in a partition's directory; None where a crash came before it was written. Raises Corrupt."""
    try:
        data = yield Read(f"{directory}/{PARTITION_METADATA}", 0, _SMALL_FILE_BYTES)
    except FileNotFoundError:
        return None
    assert isinstance(data, bytes)
    return decode_partition_metadata(data)


def load(  # noqa: PLR0913  # each is a fact from a checkpoint
    directory: str,
    config: LogConfig,
    *,
    clean: bool,
    recovery_point: int,
    now_ms: int,
    topic_id: uuid.UUID | None = None,
    log_start_offset: int = 0,
    tiered_end: int = 0,
    synced: bool = False,
    tails: TailBudget | None = None,
) -> Program[PartitionLog]:
    """Load a partition. `clean`, `recovery_point` and `log_start_offset` are what the directory's checkpoints say.

    `tiered_end` is what the last known manifest says: should the disk have lost part of what the bucket holds, the
    log goes on from there. `topic_id` is used where the directory has none; `tails` as in `create`. `synced`: every
    batch was made durable before the next one was written, so damage with anything behind it is no torn tail. Raises
    Corrupt for that, before anything is cut, and where the directory belongs to another topic, or to none.
    """
    found_id = yield from _topic_id(directory, topic_id)
    loading = _Loading(directory, config, now_ms)
    yield from loading.list_files()
    if synced:
        loading.synced_to = max(loading.snapshots, default=0)
        first = min(loading.bases, default=log_start_offset)
        if first > log_start_offset:
            path = segment_path(directory, log_start_offset, LOG)
            raise Corrupt(f"{path} is missing: the first file begins at offset {first}")
    if not (yield from loading.read_epochs()):
        clean, recovery_point = False, 0
    bases = loading.bases
    trusted = len(bases) - 1 if clean else _first_to_scan(bases, recovery_point)
    trusted = max(trusted, 0)
    for base, following in pairwise(bases[: trusted + 1]):
        yield from loading.load_closed(base, following)
    if clean and bases:
        clean = yield from loading.load_active(bases[-1])
    if not clean:
        yield from loading.recover(bases[trusted:])
    clean = (yield from loading.begin_at_least(max(log_start_offset, tiered_end))) and clean
    end = loading.segments[-1].next_offset
    yield from loading.restore_producers(end)
    if loading.epochs.latest >= 0:
        loading.epochs.truncate_end(end)
    if not config.remote_storage_enable:
        log_start_offset = max(log_start_offset, loading.segments[0].base_offset)
    contents = Contents(
        segments=loading.segments,
        producers=loading.producers,
        epochs=loading.epochs,
        snapshots=loading.snapshots,
        log_start_offset=log_start_offset,
        recovery_point=end if clean else min(recovery_point, end),
        recovered=Recovered(loading.bytes_cut, loading.segments_scanned),
    )
    log = PartitionLog(directory, found_id, config, contents, tails=tails or TailBudget())
    log.mark_tiered(tiered_end)
    if clean and end in loading.snapshots:
        log.mark_saved()
    return log


def _topic_id(directory: str, expected: uuid.UUID | None) -> Program[uuid.UUID]:
    found = yield from read_topic_id(directory)
    if found is None:
        if expected is None:
            raise Corrupt(f"{directory} has no {PARTITION_METADATA}")
        path = f"{directory}/{PARTITION_METADATA}"
        yield WriteFile(path, encode_partition_metadata(expected))
        return expected
    if expected is not None and found != expected:
        raise Corrupt(f"{directory} belongs to topic id {found}, not {expected}")
    return found


def _first_to_scan(bases: list[int], recovery_point: int) -> int:
    """Return the first segment that may reach beyond the recovery point; the last one is always scanned."""
    return max(min(bisect_right(bases, recovery_point), len(bases)) - 1, 0)


class _Loading:
    """The state of one load. Each method is one step, and yields its effects."""

    __slots__ = (
        "bases",
        "bytes_cut",
        "config",
        "directory",
        "epochs",
        "now_ms",
        "producers",
        "producers_end",
        "segments",
        "segments_scanned",
        "sizes",
        "snapshots",
        "synced_to",
    )

    def __init__(self, directory: str, config: LogConfig, now_ms: int) -> None:
        self.directory = directory
        self.config = config
        self.now_ms = now_ms
        self.sizes: dict[str, int] = {}
        self.bases: list[int] = []
        self.snapshots: set[int] = set()
        self.epochs = LeaderEpochs()
        self.segments: list[Segment] = []
        self.producers = ProducerStates()
        self.producers_end: int | None = None  # the offset that `producers` is of, once known
        self.bytes_cut = 0
        self.segments_scanned = 0
        self.synced_to: int | None = None  # where a log whose every batch is synced ended at least

    def list_files(self) -> Program[None]:
        """List the files; remove leftovers of deletions and of unfinished writes."""
        entries = yield ListDirectory(self.directory)
        assert isinstance(entries, list)
        for entry in entries:
            path = f"{self.directory}/{entry.name}"
            stem, dot, suffix = entry.name.rpartition(".")
            if entry.name.endswith(_LEFTOVERS):
                yield Unlink(path)
            elif len(stem) == 20 and stem.isascii() and stem.isdigit():
                self.sizes[path] = entry.size
                if dot + suffix == LOG:
                    self.bases.append(int(stem))
                elif dot + suffix == SNAPSHOT:
                    self.snapshots.add(int(stem))
        known = set(self.bases)
        for path in list(self.sizes):
            stem, dot, suffix = path.rpartition(".")
            if dot + suffix in (INDEX, TIME_INDEX) and int(stem[-20:]) not in known:
                yield Unlink(path)
                del self.sizes[path]

    def read_epochs(self) -> Program[bool]:
        """False where the checkpoint makes no sense: every batch must be asked for its epoch then."""
        try:
            data = yield Read(f"{self.directory}/{LEADER_EPOCHS}", 0, _SMALL_FILE_BYTES)
            assert isinstance(data, bytes)
            self.epochs = LeaderEpochs.decode(data)
        except FileNotFoundError:
            return True
        except Corrupt:
            return False
        return True

    def _segment(self, base: int) -> Segment:
        segment = Segment(self.directory, base, self.now_ms)
        segment.index_size = self.sizes.get(segment.index_path, -1)
        segment.time_index_size = self.sizes.get(segment.time_index_path, -1)
        path = segment_path(self.directory, base, TRANSACTION_INDEX)
        segment.has_transaction_index = path in self.sizes
        return segment

    def load_closed(self, base: int, next_base: int) -> Program[None]:
        """A segment below the recovery point: its largest timestamp is all that is read, if its indexes are there."""
        segment = self._segment(base)
        log_size = self.sizes[segment.path]
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
        segment.size = segment.readable = log_size
        self.segments.append(segment)

    def load_active(self, base: int) -> Program[bool]:
        """The last segment after a clean shutdown; False where it must be scanned after all."""
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
            yield from scan_segment(segment, log_size, interval, check_crc=False)
            if segment.size != log_size:
                return False
        self.segments.append(segment)
        return True

    def recover(self, bases: list[int]) -> Program[None]:
        """Scan segments in order up to the first gap in what was written; remove what lies behind it."""
        if not bases:
            return
        yield from self._load_producers(bases[0])
        for at, base in enumerate(bases):
            last = at == len(bases) - 1
            segment = self._segment(base)
            log_size = self.sizes[segment.path]
            yield from scan_segment(
                segment,
                log_size,
                self.config.index_interval_bytes,
                check_crc=True,
                gaps_below=OFFSET_MAX if self.synced_to is None else 0,
                on_batch=self._on_batch,
            )
            self.segments_scanned += 1
            self.segments.append(segment)
            if self.synced_to is not None:
                why = yield from why_not_torn(segment, log_size, self.synced_to, bases[at + 1 :])
                if why is not None:
                    raise Corrupt(why)
            if segment.size < log_size:
                self.bytes_cut += log_size - segment.size
                yield Truncate(segment.path, segment.size)
                yield Sync(segment.path)
            if last or segment.next_offset != bases[at + 1]:
                yield from self._become_active(segment)
                yield from self._remove(bases[at + 1 :])
                break
            yield from _write_indexes(segment)
            self.snapshots.add(segment.next_offset)
            path = segment_path(self.directory, segment.next_offset, SNAPSHOT)
            yield WriteFile(path, self.producers.encode())
        self.producers_end = self.segments[-1].next_offset

    def _on_batch(self, header: BatchHeader) -> None:
        self.epochs.assign(header.leader_epoch, header.base_offset)
        if header.producer_id >= 0:
            self.producers.update(header, header.base_offset, self.now_ms)

    def _become_active(self, segment: Segment) -> Program[None]:
        # What index files there are may be of a longer segment: they are written anew when it is closed.
        for path in (segment.index_path, segment.time_index_path):
            if path in self.sizes:
                yield Unlink(path)

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
        """Where the log ends below `offset`, begin anew there: what was lost is in the bucket or was deleted.

        False if so.
        """
        if self.segments and self.segments[-1].next_offset >= offset:
            return True
        for segment in self.segments:
            for suffix in (LOG, INDEX, TIME_INDEX, TRANSACTION_INDEX):
                yield Unlink(segment_path(self.directory, segment.base_offset, suffix))
        yield from unlink_snapshots(self.directory, self.snapshots, -1)
        fresh = Segment(self.directory, offset, self.now_ms)
        yield Append(fresh.path, 0, ())
        yield SyncDirectory(self.directory)
        self.segments = [fresh]
        self.producers = ProducerStates()
        self.producers_end = offset
        return False

    def restore_producers(self, end: int) -> Program[None]:
        """Producers as of the log's end; snapshots of what is not there any more go."""
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


def _write_indexes(segment: Segment) -> Program[None]:
    """The index files of a segment whose indexes were rebuilt in memory; it is closed afterwards."""
    for effect in segment.seal():
        assert isinstance(effect, Append)
        yield WriteFile(effect.path, b"".join(effect.buffers))
    segment.drop_indexes()
