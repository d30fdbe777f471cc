"""Clean compacted logs, in processes beside the broker.

In: hosted partitions, settings. Out: logs that keep the last record of each key. It never decides what stays:
`log/cleaning` does, in a process that reads the segments and writes `.cleaned` files. The broker swaps these in.

Each cleaner takes the dirtiest log that is due, until none is; then it waits. A log that cannot be cleaned is set aside
until a restart, with a line, and stops no other. Kafka: `LogCleaner`, `LogCleanerManager`.
"""

import asyncio
import errno
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final

import structlog

from stratalog.broker.partitions.hosting import Hosting
from stratalog.broker.partitions.moves import Moves
from stratalog.broker.partitions.partition import HostedPartition
from stratalog.broker.slices import slices
from stratalog.config import BrokerConfig
from stratalog.config.kinds import LONG_MAX
from stratalog.errors import Corrupt, Rejected, Unavailable
from stratalog.log.cleaning.choosing import (
    Cleanable,
    cleanable,
    plan_cleaning,
    read_first_timestamps,
    tier_of,
)
from stratalog.log.cleaning.cleaner import Cleaned, TooFewKeys, clean_on
from stratalog.ports import Outside, Processes

_LOOKED_AT_A_TURN: Final = 1000
_SPARE_BYTES: Final = 64 << 20
"""A cleaning leaves so much room for appends."""


class Cleaners:
    """The cleaners of one broker. `configure` and `start` them, then `close`."""

    def __init__(self, hosting: Hosting, moves: Moves, outside: Outside) -> None:
        self.uncleanable: dict[HostedPartition, str] = {}
        """The partitions that are set aside, with the reason."""
        self.passes = 0
        self.bytes_read = 0
        self.bytes_written = 0
        self.dirtiest_ratio = 0.0
        """The share of dirty bytes in the dirtiest log, when a cleaner last looked."""
        self._hosting = hosting
        self._moves = moves
        self._outside = outside
        self._config: BrokerConfig | None = None
        self._threads = 0
        self._spawn: Callable[[Coroutine[Any, Any, None]], object] | None = None
        self._running: set[int] = set()
        self._workers: dict[int, Processes] = {}
        self._taken: set[tuple[str, str]] = set()
        """Directories that a process may be writing to: log directory and partition."""
        self._log = structlog.get_logger()

    def configure(self, in_effect: BrokerConfig) -> None:
        """Take settings that may change while the broker runs. With another memory, each log is tried again."""
        if self._config is None or self._config.cleaner_memory != in_effect.cleaner_memory:
            self.uncleanable.clear()
        self._config = in_effect
        is_on = in_effect.bool("log.cleaner.enable")
        self._threads = in_effect.int("log.cleaner.threads") if is_on else 0
        self._start_missing()

    def start(self, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        """Begin to clean, in tasks that the caller cancels before `close`."""
        self._spawn = spawn
        self._start_missing()

    def _start_missing(self) -> None:
        for index in range(self._threads if self._spawn is not None else 0):
            if index not in self._running:
                assert self._spawn is not None
                self._running.add(index)
                self._spawn(self._run(index))

    async def close(self) -> None:
        """End the processes at once; what is being swapped is swapped whole."""
        self._spawn = None
        for worker in self._workers.values():
            worker.kill()
        for hosted in self._hosting.all():
            await hosted.swap_ended()
        for worker in self._workers.values():
            await worker.close()

    async def _run(self, index: int) -> None:
        """One cleaner."""
        while index < self._threads:
            found = await self._choose()
            if found is None:
                await asyncio.sleep(self._settings.int("log.cleaner.backoff.ms") / 1000)
            else:
                await self._clean(index, *found)
        self._running.discard(index)

    @property
    def _settings(self) -> BrokerConfig:
        assert self._config is not None, "it is configured before it is started"
        return self._config

    async def _choose(self) -> tuple[HostedPartition, Cleanable] | None:
        """Take the dirtiest log that is due."""
        best: tuple[HostedPartition, Cleanable] | None = None
        largest = 0.0
        self.uncleanable = {one: why for one, why in self.uncleanable.items() if not one.deleted}
        for part in slices(self._hosting.all(), _LOOKED_AT_A_TURN):
            for hosted in part:
                if not hosted.log.config.is_compacted or not self._may_clean(hosted):
                    continue
                found = await self._look(hosted)
                if found is None:
                    continue
                largest = max(largest, found.ratio)
                if found.is_due and (best is None or found.ratio > best[1].ratio):
                    best = hosted, found
            await asyncio.sleep(0)
        self.dirtiest_ratio = largest
        if best is None or not self._may_clean(best[0]) or self._place(best[0]) in self._taken:
            return None
        self._taken.add(self._place(best[0]))
        return best

    async def _look(self, hosted: HostedPartition) -> Cleanable | None:
        log = hosted.log
        with suppress(Rejected):  # the reader of a damaged log has a line of its own
            if log.config.max_compaction_lag_ms != LONG_MAX:
                await hosted.look(partial(read_first_timestamps, log))
            return cleanable(log, hosted.last_stable_offset, self._outside.clock.now_ms())
        return None

    def _may_clean(self, hosted: HostedPartition) -> bool:
        return (
            hosted not in self.uncleanable
            and self._place(hosted) not in self._taken
            and self._may_swap(hosted)
        )

    def _may_swap(self, hosted: HostedPartition) -> bool:
        if hosted.deleted or hosted.directory.failure is not None:
            return False
        is_moving = hosted.is_holding or self._moves.is_moving(hosted)
        return not is_moving and hosted.rewriting is None

    @staticmethod
    def _place(hosted: HostedPartition) -> tuple[str, str]:
        return hosted.directory.path, hosted.log.directory

    async def _clean(self, index: int, hosted: HostedPartition, found: Cleanable) -> None:
        """One pass over a log."""
        place, name = self._place(hosted), str(hosted.name)
        try:
            done = await self._carry_out(index, hosted, found)
            if done is not None and await self._swap_in(hosted, found, done):
                self._note(name, found, done)
        except Rejected as error:  # it is deleted, or its directory has failed
            self._log.info("not cleaned", partition=name, reason=error.message)
        except Unavailable as error:
            self._log.warning("not cleaned", partition=name, reason=str(error))
            await self._wait()
        except (Corrupt, OSError) as error:
            if hosted.deleted or hosted.directory.failure is not None:
                return
            if isinstance(error, FileNotFoundError) and not _has_all(hosted, found):
                return  # retention took a segment away meanwhile
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                self._log.warning("not cleaned", partition=name, reason=str(error))
                await self._wait()
                return
            self.uncleanable[hosted] = str(error)
            self._log.error(
                "uncleanable partition",
                partition=name,
                reason=str(error),
                remedy=_remedy(hosted, error),
            )
        finally:
            self._taken.discard(place)

    async def _wait(self) -> None:
        await asyncio.sleep(self._settings.int("log.cleaner.backoff.ms") / 1000)

    async def _carry_out(
        self, index: int, hosted: HostedPartition, found: Cleanable
    ) -> Cleaned | None:
        """Have a process write what stays. None where there is no room for it."""
        settings, threads = self._settings, max(self._threads, 1)
        wall_ms = self._outside.clock.now_ms()
        memory_bytes = settings.int("log.cleaner.dedupe.buffer.size") // threads
        load_factor = settings.float("log.cleaner.io.buffer.load.factor")
        clean_end = 0
        if found.log.config.remote_storage_enable and self._hosting.bucket_clean_end is not None:
            clean_end = await self._hosting.bucket_clean_end(hosted)
        plan = plan_cleaning(
            found, wall_ms, memory_bytes, load_factor, bucket_cleaned_end=clean_end
        )
        needed = found.clean_bytes + found.dirty_bytes + _SPARE_BYTES
        _total, free = await hosted.directory.space()
        if free < needed:
            reason = f"{free} bytes are free, a cleaning may need {needed}"
            self._log.warning("not cleaned", partition=str(hosted.name), reason=reason)
            await self._wait()
            return None
        rate = max(settings.float("log.cleaner.io.max.bytes.per.second") / threads, 1.0)
        open_disk = partial(self._outside.paced_disk, hosted.directory.path, rate)
        if index not in self._workers:
            workers = self._outside.workers
            self._workers[index] = workers.start_processes(f"clean {index}", background=True)
        return await self._workers[index].submit(partial(clean_on, open_disk, plan))

    async def _swap_in(self, hosted: HostedPartition, found: Cleanable, done: Cleaned) -> bool:
        """Put what was written in place, segment by segment; return whether all of it is.

        Not where the topic is compacted no more (Kafka: `LogCleaner.abortCleaning`). Not where its tier has changed
        meanwhile: the archiver may read these segments, and the bucket may hold older records than the plan took into
        account.
        """
        originals = {one.base_offset: one for one in found.segments}
        tier = found.tier
        for one in done.rewritten:
            is_as_planned = hosted.log.config.is_compacted and tier_of(hosted.log) == tier
            if not (is_as_planned and self._may_swap(hosted)):
                return False
            old = [originals[base] for base in one.replaced]
            now_ms = self._outside.clock.steady_ms()
            unlink_at_ms = now_ms + hosted.log.config.file_delete_delay_ms
            if not await hosted.swap(one.segment, old, unlink_at_ms):
                return False
        hosted.log.cleaned_end = done.end_offset
        return True

    def _note(self, name: str, found: Cleanable, done: Cleaned) -> None:
        self.passes += 1
        self.bytes_read += done.bytes_read
        self.bytes_written += done.bytes_written
        self._log.info(
            "log cleaned",
            partition=name,
            first=found.first_dirty,
            end=done.end_offset,
            keys=done.keys,
            bytes_read=done.bytes_read,
            bytes_written=done.bytes_written,
        )


def _remedy(hosted: HostedPartition, error: Corrupt | OSError) -> str:
    """Return what an operator can do about a log that is set aside; a restart tries it again."""
    if isinstance(error, TooFewKeys):
        return "raise log.cleaner.dedupe.buffer.size; it is tried again at once"
    if isinstance(error, OSError):
        return "make the file readable, and restart the broker"
    if hosted.name.topic == "__consumer_offsets":
        return "stop the broker, run `strata storage repair`"
    if len(hosted.replica.replicas) > 1:
        return (
            "stop the broker, remove this partition's directory, start: another replica is copied"
        )
    return "delete the records up to the damage with `strata topic trim`, and restart the broker"


def _has_all(hosted: HostedPartition, found: Cleanable) -> bool:
    """Return whether the log still has the very segments that were to be cleaned."""
    present = set(map(id, hosted.log.segments))
    return all(id(one) in present for one in found.segments)
