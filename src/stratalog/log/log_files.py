"""Manage the files of one partition's log: its segments, and their durable end.

In: a log's parts, the time. Out: effects that roll, flush and close, for the directory's executor to perform in order.
It decides no append and deletes nothing: `partition_log.py` does.

Invariants: segments are contiguous: each one's `next_offset` is the following one's `base_offset`. There is always at
least one segment, and only the last one grows. `recovery_point` <= `next_offset`.
"""

from stratalog.config import LogConfig
from stratalog.log.checkpoints import LEADER_EPOCHS
from stratalog.log.effects import Append, Effect, Sync, SyncDirectory, WriteFile
from stratalog.log.segment import SNAPSHOT, Segment, segment_path
from stratalog.log.values import Contents

__all__ = ["LogFiles"]


class LogFiles:
    """The segments of a log, with the producer snapshots and leader epochs beside them."""

    def __init__(self, directory: str, config: LogConfig, contents: Contents) -> None:
        self.directory = directory
        self.config = config
        self.segments = contents.segments
        self.producers = contents.producers
        self.epochs = contents.epochs
        self.next_offset = contents.segments[-1].next_offset
        self.recovery_point = contents.recovery_point
        self._snapshots = contents.snapshots
        self._sealed: list[Segment] = []
        """Closed segments whose index files may not be written yet."""
        self._entries_unsynced = True
        self._saved = False
        """Whether `close` has nothing to write: no append since a clean load or `close`."""

    @property
    def size(self) -> int:
        """Bytes of local log."""
        return sum(segment.size for segment in self.segments)

    def roll(self, now_ms: int) -> tuple[Effect, ...]:
        """Close the active segment, unless it is empty, and begin another one."""
        if self.segments[-1].size == 0:
            return ()
        effects = self._roll(now_ms)
        # After a restart, the empty file marks the log's next offset.
        return (*effects, Append(self.segments[-1].path, 0, ()))

    def _roll(self, now_ms: int) -> list[Effect]:
        old = self.segments[-1]
        base = old.next_offset
        effects = old.close(self.config)
        self._sealed.append(old)
        effects.append(self._take_snapshot(base))
        if self.epochs.dirty:
            effects.append(self._write_epochs())
        if self.recovery_point >= base:
            # A checkpoint may have the start of the next segment as the recovery point already. Recovery then trusts
            # the files of this segment, so they are made durable before the next one exists. Its records are durable.
            effects += [*self._sync_closed(old), SyncDirectory(self.directory)]
        self.segments.append(Segment(self.directory, base, now_ms))
        self._entries_unsynced = True
        self._saved = False
        return effects

    def _take_snapshot(self, offset: int) -> Effect:
        self._snapshots.add(offset)
        return Append(segment_path(self.directory, offset, SNAPSHOT), 0, (self.producers.encode(),))

    def _write_epochs(self) -> Effect:
        self.epochs.dirty = False
        return WriteFile(f"{self.directory}/{LEADER_EPOCHS}", self.epochs.encode())

    def flush(self) -> tuple[Effect, ...]:
        """Return effects that make all decided appends durable. `recovery_point` moves at once: save it after them."""
        return self._flush_below(self.next_offset)

    def _flush_below(self, end: int) -> tuple[Effect, ...]:
        """Return effects that make the log durable below `end`, which is `next_offset` or a segment's base."""
        if self.recovery_point >= end:
            return ()
        first, syncs = self._making_durable(end)
        self._entries_unsynced = False
        self.recovery_point = end
        return (*first, *syncs)

    def _making_durable(self, end: int) -> tuple[tuple[Effect, ...], list[Effect]]:
        first = (self._write_epochs(),) if self.epochs.dirty else ()
        syncs: list[Effect] = []
        for segment in self.segments:
            if segment.size and self.recovery_point < segment.next_offset <= end:
                is_active = segment is self.segments[-1]
                syncs += segment.sync(closed=False) if is_active else self._sync_closed(segment)
        if self._entries_unsynced:
            syncs.append(SyncDirectory(self.directory))
        return first, syncs

    def _sync_closed(self, segment: Segment) -> list[Effect]:
        """Return the effects that make a closed segment durable, with the producers at its end.

        A directory that another program wrote or copied may lack that snapshot: a load then reads the batches.
        """
        syncs = segment.sync(closed=True)
        if segment.next_offset in self._snapshots:
            syncs.append(Sync(segment_path(self.directory, segment.next_offset, SNAPSHOT)))
        return syncs

    def unsynced(self) -> tuple[int, tuple[Effect, ...], list[Effect]]:
        """Return the end of the closed segments, ordered effects, and syncs in any order; both together make the
        segments durable.

        Call `synced` with that offset afterwards, unless the log was truncated; `due` deletes no segment before.

        Kafka: `UnifiedLog.roll`, which has the closed segment and the producers at its end flushed in the background.
        """
        end = self.segments[-1].base_offset
        return (end, *(self._making_durable(end) if self.recovery_point < end else ((), [])))

    def synced(self, end: int) -> None:
        """Note that the effects and syncs of `unsynced` are performed."""
        self.recovery_point = max(self.recovery_point, end)

    def close(self) -> tuple[Effect, ...]:
        """Return the effects of a clean shutdown. The log accepts no append afterwards."""
        active = self.segments[-1]
        if self.next_offset == 0:
            return ()  # the log never had a record: its creation is durable, and none of its epochs counts
        if self._saved and not self.epochs.dirty:
            return self.flush()
        effects: list[Effect] = []
        if active.size:
            effects += active.close(self.config)
        effects.append(self._take_snapshot(self.next_offset))
        if self.epochs.dirty:
            effects.append(self._write_epochs())
        effects += self.flush()
        if active.size:
            effects += self._sync_closed(active)
        effects.append(SyncDirectory(self.directory))
        self._saved = True
        return tuple(effects)

    def mark_saved(self) -> None:
        """Note that the files are in the state after `close`, so that `close` writes nothing."""
        self._saved = True
        self._entries_unsynced = False

    def _drop_sealed(self, performed_offset: int) -> None:
        # A later append was written, so their index files were written, too.
        while self._sealed and self._sealed[0].next_offset <= performed_offset:
            self._sealed.pop(0).drop_indexes()
