"""The log of one partition on one disk: read, expire, truncate. Appends: `appending.py`; files: `log_files.py`.

In: checked record batches, offsets to read, the time. Out: offsets at once, and effects for the directory's executor to
perform in order. It never touches a disk, decodes no records in the common case, and never waits.

The log decides an append before it is written, and may decide several. `next_offset`, producers and segments run
ahead; `log_end_offset`, and with it readers, move in `performed`. A failed effect fails the whole directory, so the
log never takes an append back. The caller's duties:

- perform the effects of every method in the order of the calls, then call `performed` for each append, in order;
- answer a duplicate only once `log_end_offset` has passed its `last_offset`;
- write `recovery_point` and `log_start_offset` to checkpoints only after the effects that came with them;
- retry a read that meets FileNotFoundError: retention may have removed the file since the read was planned;
- pass a steady time as `now_ms` (`ports.Clock.steady_ms`), and wall time as `wall_ms`, which is compared with the
  records' timestamps.

Invariant: log_start_offset <= log_end_offset <= next_offset.
"""

import uuid
from bisect import bisect_right
from operator import attrgetter
from typing import Final

from stratalog.config import LogConfig
from stratalog.errors import ErrorCode, Rejected
from stratalog.log.appending import AppendingLog
from stratalog.log.effects import Append, Effect, Program, Sync, SyncDirectory
from stratalog.log.producers import ProducerStates
from stratalog.log.reading import (
    Data,
    NotLocal,
    Places,
    ReadPlan,
    Slices,
    advance,
    read_batches,
)
from stratalog.log.replacing import Swaps
from stratalog.log.retention import DeletedFiles, deleted_paths, expired_segments, is_due_for_tier
from stratalog.log.scanning import load_producers
from stratalog.log.segment import SNAPSHOT, Segment, segment_path
from stratalog.log.tail import TailBudget, TailCache
from stratalog.log.timestamps import latest_record, offset_for_timestamp
from stratalog.log.truncation import restart_segments, truncate_segments, unlink_snapshots
from stratalog.log.values import Contents, TieredHistory

__all__ = ["PartitionLog"]

_base_of: Final = attrgetter("base_offset")


class PartitionLog(AppendingLog):
    """See the module. `create` and `recovery.load` build it; use it from one thread."""

    def __init__(
        self,
        directory: str,
        topic_id: uuid.UUID,
        config: LogConfig,
        contents: Contents,
        *,
        tails: TailBudget,
    ) -> None:
        super().__init__(directory, config, contents, TailCache(tails))
        self.topic_id = topic_id
        self.recovered = contents.recovered
        self.tiered_end = 0
        self.cleaned_end = contents.log_start_offset
        """Below it a cleaning has looked at every record, where the topic is compacted."""
        self.places = Places()
        self._deleted = DeletedFiles()
        self.swaps = Swaps(self.segments, self._snapshots, self._deleted, self.tail)

    @property
    def local_start_offset(self) -> int:
        """The first offset on this disk; the tier has the log below it, from `log_start_offset` on."""
        return max(self.segments[0].base_offset, self.log_start_offset)

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Return the first offset of the oldest transaction without a committed marker; None without one.

        Where retention or DeleteRecords has removed that offset, it is the log's start.
        """
        found = self.producers.first_unstable_offset(high_watermark)
        return None if found is None else max(found, self.log_start_offset)

    def segments_from(self, offset: int) -> list[Segment]:
        """Return the local segments from the one that holds `offset` on. They stay readable after retention for
        `transaction_index.overlapping`.
        """
        return self.segments[max(bisect_right(self.segments, offset, key=_base_of) - 1, 0) :]

    @property
    def first_dirty_offset(self) -> int:
        """The first offset that a cleaning has not looked at; where the log ends below that, its start (Kafka)."""
        if self.log_start_offset <= self.cleaned_end <= self.log_end_offset:
            return self.cleaned_end
        return self.log_start_offset

    @property
    def was_cleaned(self) -> bool:
        """Whether a cleaning has looked at a part of the log: offsets may be absent, whatever the policy is now."""
        return self.cleaned_end > self.log_start_offset

    # Reading

    def read(
        self, offset: int, max_bytes: int, *, end_offset: int, minimum_one_batch: bool = True
    ) -> Slices | ReadPlan:
        """Return whole batches from the one that holds `offset`, below `end_offset`, from memory; else return a read
        plan.

        With `minimum_one_batch` the first batch comes even if it is larger than `max_bytes`. Raises
        Rejected(OFFSET_OUT_OF_RANGE) outside [log_start_offset, log_end_offset], NotLocal below `local_start_offset`.
        """
        log_end = self.log_end_offset
        if offset < self.log_start_offset or offset > log_end:
            raise Rejected(
                ErrorCode.offset_out_of_range,
                f"offset {offset} outside {self.log_start_offset} to {log_end}",
            )
        end = min(end_offset, log_end)
        if offset >= end:
            return Slices([], offset, offset)
        if offset < self.local_start_offset:
            # Memory may still have the batches, but the aborted transactions among them went with their segment.
            raise NotLocal(f"{self.directory}: {offset} is below {self.local_start_offset}")
        found = self.tail.read(offset, max_bytes, end, minimum_one_batch=minimum_one_batch)
        if found is not None:
            return Slices(*found)
        program = read_batches(
            self.segments,
            self.places,
            offset,
            end,
            max_bytes,
            minimum_one_batch=minimum_one_batch,
        )
        return advance(program, None)

    def finish_read(self, plan: ReadPlan, data: Data) -> Slices | ReadPlan:
        """Return the batches in the bytes that a plan's read returned, or another plan. Raises Corrupt."""
        return advance(plan.program, data)

    def offset_for_timestamp(
        self, timestamp: int, *, end_offset: int | None = None
    ) -> Program[tuple[int, int, int] | None]:
        """Return the first local record at or after `timestamp`, as (offset, timestamp, leader epoch), or None."""
        end = self.log_end_offset if end_offset is None else min(end_offset, self.log_end_offset)
        return offset_for_timestamp(self.segments, timestamp, self.local_start_offset, end)

    def latest_record(self) -> Program[tuple[int, int, int] | None]:
        """Return the first local record of the largest timestamp, as (offset, timestamp, leader epoch), or None."""
        return latest_record(self.segments, self.local_start_offset, self.log_end_offset)

    def offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the largest epoch up to `epoch` and its end offset; (-1, -1) if unknown (KIP-101)."""
        return self.epochs.end_of(epoch, self.log_end_offset)

    # Keeping

    def due(
        self, now_ms: int, *, wall_ms: int, limit_offset: int | None = None, tier: bool = False
    ) -> tuple[Effect, ...]:
        """Return the effects that are due; call it regularly. It deletes only below `limit_offset` (high watermark).

        Rolls by `tier_max_lag_ms` with `tier` (for the archiver), else a tiered log's active segment that has expired;
        expires producers; deletes durable segments by retention. Retention uses the records' time, and so does rolling
        by `segment_ms`, at an append.
        """
        config = self.config
        effects: list[Effect] = []
        self.producers.expire(now_ms, config.producer_id_expiration_ms)
        active = self.segments[-1]
        limit = self.log_end_offset if limit_offset is None else limit_offset
        limit = min(limit, self.log_end_offset)
        if tier:
            lag_ms = now_ms - active.first_append_ms if active.size else -1
            is_due = 0 <= config.tier_max_lag_ms <= lag_ms
        else:
            is_due = is_due_for_tier(active, config, now_ms, wall_ms=wall_ms, limit_offset=limit)
        if is_due:
            effects += self.roll(now_ms)
        effects += self._expire(now_ms, wall_ms, limit)
        return tuple(effects)

    def removable(self, now_ms: int) -> list[Effect]:
        """Return effects that unlink the files which left the log long enough ago; call it regularly, after `due`.

        Their order among other effects does not matter, but the renames of an earlier `due` must be performed.
        """
        # During a swap, replaced files may not have their last names yet.
        return [] if self.swaps.is_under_way else self._deleted.unlink(now_ms)

    def _expire(self, now_ms: int, wall_ms: int, limit_offset: int) -> list[Effect]:
        if self.swaps.is_under_way:
            return []  # the files are about to have other names
        count = expired_segments(
            self.segments,
            self.config,
            now_ms,
            wall_ms=wall_ms,
            limit_offset=limit_offset,
            log_start_offset=self.log_start_offset,
            synced_end=self.recovery_point,
            tiered_end=self.tiered_end,
        )
        if count == 0:
            return []
        effects: list[Effect] = []
        if count == len(self.segments):
            effects += self.roll(now_ms)
            # The new file and the producers must be durable before the old ones are deleted: otherwise the next offset
            # and the last sequences could be lost with them.
            effects += self._flush_below(self.segments[-1].base_offset)
            effects.append(SyncDirectory(self.directory))
        gone = self.segments[:count]
        del self.segments[:count]
        paths = deleted_paths(gone, self._snapshots)
        self._snapshots.difference_update(segment.base_offset for segment in gone)
        if not self.config.remote_storage_enable or gone[-1].next_offset > self.tiered_end:
            self.raise_log_start(max(self.segments[0].base_offset, self.log_start_offset))
        return effects + self._deleted.take_out(paths, now_ms + self.config.file_delete_delay_ms)

    def raise_log_start(self, offset: int) -> None:
        """Move the log start to `offset` (retention, DeleteRecords). The next `due` deletes the files.

        Raises Rejected(OFFSET_OUT_OF_RANGE) beyond the log's end; an offset below the present start changes nothing.
        """
        if offset > self.log_end_offset:
            raise Rejected(
                ErrorCode.offset_out_of_range, f"{offset} is beyond {self.log_end_offset}"
            )
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.epochs.truncate_start(offset)

    def mark_tiered(self, end_offset: int) -> None:
        """Note that the bucket has the log below `end_offset`. Without a tier the disk must have all of it."""
        if self.config.remote_storage_enable:
            self.tiered_end = end_offset

    def configure(self, config: LogConfig) -> None:
        """Apply new settings. If they remove the tier, the log begins at its first local offset (KIP-950)."""
        was_tiered, self.config = self.config.remote_storage_enable, config
        if was_tiered and not config.remote_storage_enable:
            self.raise_log_start(min(self.local_start_offset, self.log_end_offset))
            self.tiered_end = 0

    def assign_epoch(self, leader_epoch: int) -> None:
        """Note that `leader_epoch` begins at `next_offset`, with this broker as the leader."""
        self.epochs.assign(leader_epoch, self.next_offset)

    def truncate_to(self, offset: int, now_ms: int) -> Program[None]:
        """Cut off every batch that reaches `offset` or beyond; below the first local offset, restart at `offset`.

        Every decided append must be performed. `log_end_offset` may end below `offset`, because batches stay whole.
        """
        assert self.next_offset == self.log_end_offset, "every append has been performed"
        assert not self.swaps.is_under_way
        # An epoch in which this broker led and appended nothing begins at the log's end. Other leaders lack it.
        self.epochs.truncate_end(offset)
        if offset >= self.next_offset:
            if self.epochs.dirty:
                yield self._write_epochs()
            return
        self._forget_reads()
        interval = self.config.index_interval_bytes
        yield from truncate_segments(self.directory, self.segments, offset, interval, now_ms)
        end = self.segments[-1].next_offset
        self.next_offset = self.log_end_offset = end
        self.recovery_point = min(self.recovery_point, end)
        self.log_start_offset = min(self.log_start_offset, end)
        self.cleaned_end = min(self.cleaned_end, end)
        self.epochs.truncate_end(end)
        if self.epochs.dirty:
            yield self._write_epochs()
        yield from unlink_snapshots(self.directory, self._snapshots, end)
        self.producers = yield from load_producers(
            self.directory, self.segments, self._snapshots, end, now_ms
        )

    def restart_at(self, offset: int, now_ms: int) -> Program[None]:
        """Drop every batch and begin at `offset`, beyond the end. Nothing may be decided and not yet performed."""
        assert self.next_offset == self.log_end_offset < offset, "it goes forward, from a quiet log"
        self._forget_reads()
        yield from restart_segments(self.directory, self.segments, self._snapshots, offset, now_ms)
        yield from unlink_snapshots(self.directory, self._snapshots, -1)
        # Not before: after a crash in between, old batches without epochs could not be compared with a leader's.
        self.epochs.truncate_end(0)
        yield self._write_epochs()
        self.producers = ProducerStates()
        self.next_offset = self.log_end_offset = self.log_start_offset = offset
        self.recovery_point = offset

    def restart_after(
        self, history: TieredHistory, log_start_offset: int, now_ms: int
    ) -> Program[None]:
        """Drop every batch and begin at the end of a history in the bucket, beyond this log's end.

        The log keeps `log_start_offset`, and takes epochs and producers from the history. Nothing may be decided and
        not yet performed. Raises Corrupt, with nothing changed, for a damaged producer snapshot.
        """
        end, snapshot = history.end_offset, history.producer_snapshot
        producers = ProducerStates.decode(snapshot, now_ms) if snapshot else ProducerStates()
        # Durable before the old batches go: a log that begins at `end` without it would accept repeats.
        path = segment_path(self.directory, end, SNAPSHOT)
        yield Append(path, 0, (producers.encode(),))
        yield Sync(path)
        yield from self.restart_at(end, now_ms)
        self.producers = producers
        self._snapshots.add(end)
        self.log_start_offset = log_start_offset
        for epoch, start in history.leader_epochs:
            self.epochs.assign(epoch, start)
        self.epochs.truncate_start(log_start_offset)
        yield self._write_epochs()

    def _forget_reads(self) -> None:
        self.tail.clear()
        self.places.clear()
        self._saved = False
        self._drop_sealed(self.next_offset)  # they have their files: no effect is pending
