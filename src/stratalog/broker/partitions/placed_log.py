"""Read and write one partition's log in its log directory.

In: effects of the log, offsets to read. Out: effects performed in order, slices of batches. It never decides what is
appended: `partition.py` and the log do.

A partition may move to another log directory (`moves.py`). Its paths say nothing of the directory, so effects that
are held during the end of a move are performed where the partition lives afterwards.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import structlog

from stratalog.broker.metrics import PartitionMetrics
from stratalog.broker.storage.directory import Done, LogDirectory, awaited
from stratalog.errors import Corrupt, ErrorCode, Rejected, again
from stratalog.log.effects import Effect, Program, Read, Rename, Result
from stratalog.log.partition_log import PartitionLog
from stratalog.log.reading import (
    FILE_BYTES_MIN,
    Data,
    NotLocal,
    ReadPlan,
    Slices,
    segment_at,
    suits_a_file,
)
from stratalog.log.segment import Segment
from stratalog.ports import FileRange
from stratalog.wire.ids import TopicIdPartition, TopicPartition

T = TypeVar("T")
_log = structlog.get_logger()
_ATTEMPTS_MAX: Final = 5
"""How often retention may delete a file during one read before that counts as a bug."""


class PlacedLog:
    """A partition's log and its log directory, until the log is deleted."""

    def __init__(
        self,
        key: TopicIdPartition,
        name: TopicPartition,
        log: PartitionLog,
        directory: LogDirectory,
    ) -> None:
        self.key = key
        self.name = name
        self.log = log
        self.directory = directory
        self.deleted = False
        """Whether this broker deleted the log; `check_hosted` raises the reason."""
        self.metrics = PartitionMetrics()
        self.arriving: LogDirectory | None = None
        """The target directory of a move that is about to end: its checkpoints include this partition, too."""
        self.copies = [directory]
        """Every directory that holds the partition's name: two while a move ends."""
        self._swaps_begun = 0
        self._swap: asyncio.Future[None] | None = None
        """The swap under way."""
        self._held: list[tuple[Sequence[Effect], Done]] | None = None
        self._held_recovery_point = 0
        self._gone: Rejected | None = None

    def retire(self, error: Rejected) -> None:
        """Stop serving: the log is deleted. All later calls raise `error`."""
        self.deleted = True
        self._gone = error
        self.log.tail.clear()

    def check_hosted(self) -> None:
        """Raise `Rejected` where the partition cannot be used any more."""
        if self._gone is not None:
            raise again(self._gone)
        self.directory.check()

    # Reading

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        end_offset: int,
        minimum_one_batch: bool = True,
        from_file: bool = False,
    ) -> Slices | Awaitable[Slices]:
        """Return whole batches from the one holding `offset`, below `end_offset`; awaitable where the drive takes time.

        With `from_file`, large batches in the page cache stay there (`Slices.file`).

        Raises, at once or when awaited, `Rejected` (OFFSET_OUT_OF_RANGE, CORRUPT_MESSAGE, failed directory, deleted
        topic), or the log's `NotLocal` where the bucket has it.
        """

        def plan() -> Slices | ReadPlan:
            self.check_hosted()
            return self.log.read(
                offset, max_bytes, end_offset=end_offset, minimum_one_batch=minimum_one_batch
            )

        found = plan()
        if self._swap is not None and type(found) is ReadPlan:
            return self._read_after_swap(plan)
        data: bytes | bytearray | FileRange | asyncio.Future[bytes] | None
        try:
            while type(found) is ReadPlan:
                data = self._in_file(found) if from_file else None
                if data is None:
                    data = self.directory.read(found.path, found.position, found.size)
                if isinstance(data, asyncio.Future):
                    return self._finish_read(found, data, plan, self._swaps_begun)
                found = self.log.finish_read(found, data)
        except Corrupt as error:
            raise self._unreadable(error) from error
        assert isinstance(found, Slices)
        return found

    def read_at_once(
        self, offset: int, max_bytes: int, min_bytes: int, *, end_offset: int, from_file: bool
    ) -> Slices | None:
        """Read as `read` does; return None where that would wait, fail, or find nothing or less than `min_bytes`.

        Then it has noted no failure, and a `read` begins where this one began.
        """
        if self._swap is not None:
            return None
        found: Slices | ReadPlan | None = None
        place = self.log.places.look(offset)
        try:
            found = self.log.read(offset, max_bytes, end_offset=end_offset)
            while type(found) is ReadPlan:
                data: Data | None = self._in_file(found) if from_file else None
                if data is None:
                    data = self.directory.try_read(found.path, found.position, found.size)
                if data is None:
                    break
                found = self.log.finish_read(found, data)
        except (Corrupt, NotLocal, Rejected):
            found = None
        if isinstance(found, Slices) and found.size >= max(min_bytes, 1):
            return found
        self.log.places.put_back(offset, place)
        return None

    def _in_file(self, plan: ReadPlan) -> FileRange | None:
        """Return the bytes of a read where they can stay in the page cache on the way to a socket."""
        if not plan.may_stay or plan.size < FILE_BYTES_MIN:
            return None
        found = self.directory.cached(plan.path, plan.position, plan.size)
        return found if found is not None and suits_a_file(found) else None

    async def _read_after_swap(self, plan: Callable[[], Slices | ReadPlan]) -> Slices:
        await self.swap_ended()
        found = plan()
        if isinstance(found, Slices):
            return found
        data = self.directory.read(found.path, found.position, found.size)
        return await self._finish_read(found, data, plan, self._swaps_begun)

    async def _finish_read(
        self,
        found: Slices | ReadPlan,
        data: "bytes | bytearray | asyncio.Future[bytes]",
        plan: Callable[[], Slices | ReadPlan],
        swaps: int,
    ) -> Slices:
        """Finish a read that waits; plan it again where retention deletes the file, or a cleaning replaces it.

        `swaps` had begun when it was planned.
        """
        for _ in range(_ATTEMPTS_MAX):
            try:
                while isinstance(found, ReadPlan):
                    arrived = await data if isinstance(data, asyncio.Future) else data
                    # The directory may belong to a later topic of that name by now.
                    self.check_hosted()
                    self._check_files(swaps)
                    found = self.log.finish_read(found, arrived)
                    if isinstance(found, ReadPlan):
                        data = self.directory.read(found.path, found.position, found.size)
            except FileNotFoundError:
                await self.swap_ended()
                swaps = self._swaps_begun
                found = plan()
                if isinstance(found, ReadPlan):
                    data = self.directory.read(found.path, found.position, found.size)
            except Corrupt as error:
                raise self._unreadable(error) from error
            else:
                return found
        raise self._unreadable(Corrupt(f"{self.log.directory}: files vanish as they are read"))

    async def look(self, program: Callable[[], Program[T]]) -> T:
        """Run a read-only program of the log; start again if a file was deleted or replaced during the read.

        The program runs on the event loop, like every access to a log's state. Raises `Rejected` as `read` does.
        """
        for _ in range(_ATTEMPTS_MAX):
            try:
                return await self._drive(program())
            except FileNotFoundError:
                continue
            except Corrupt as error:
                raise self._unreadable(error) from error
        raise self._unreadable(Corrupt(f"{self.log.directory}: files vanish as they are read"))

    async def _drive(self, program: Program[T]) -> T:
        await self.swap_ended()
        swaps = self._swaps_begun
        arrived = None
        while True:
            self.check_hosted()
            self._check_files(swaps)
            try:
                effect = program.send(arrived)
            except StopIteration as end:
                found: T = end.value
                return found
            assert isinstance(effect, Read)
            data = self.directory.read(effect.path, effect.position, effect.size)
            arrived = await data if isinstance(data, asyncio.Future) else data

    def _check_files(self, swaps: int) -> None:
        """Raise FileNotFoundError where a swap has begun since there were `swaps`: a path may name another file now."""
        if self._swaps_begun != swaps:
            raise FileNotFoundError(self.log.directory)

    def path_of(self, offset: int) -> str:
        """Return the path of the file that holds `offset`, or would hold it."""
        segment = segment_at(self.log.segments, offset) or self.log.segments[0]
        return f"{self.directory.path}/{segment.path}"

    def _unreadable(self, error: Corrupt) -> Rejected:
        count, is_news = self.metrics.unreadable(error.place or str(error))
        if is_news:
            name, path = str(self.name), self.directory.path
            _log.error("log unreadable", partition=name, path=path, reason=str(error), reads=count)
        return Rejected(ErrorCode.corrupt_message, str(error))

    # Writing

    async def perform(self, effects: tuple[Effect, ...]) -> None:
        """Perform effects of the log after all earlier ones (retention, roll, flush, close).

        Raises `Rejected` where this broker no longer hosts the partition: its directory may belong to a later topic.
        """
        if effects:
            await self.write(effects)

    def write(self, effects: Sequence[Effect]) -> "asyncio.Future[None]":
        """Queue effects as `perform` does, at once; without effects the future waits for the earlier ones."""
        self.check_hosted()
        answer, done = awaited()
        self._perform(effects, done)
        return answer

    def _perform(self, effects: Sequence[Effect], done: Done, *, at_once: int = 0) -> None:
        if self._held is None:
            self.directory.perform(effects, done, at_once=at_once)
        else:
            self._held.append((effects, done))

    async def _rewrite(self, program: Program[None]) -> None:
        """Run a program that writes and reads in turn. The log's state changes on the event loop, between its effects.

        Raises Rejected where this broker no longer hosts the partition, and abandons the program then.
        """
        go_on: Callable[[], Effect] = partial(program.send, None)
        while True:
            self.check_hosted()
            try:
                effect = go_on()
            except StopIteration:
                return
            try:
                go_on = partial(program.send, await self.directory.run(_alone(effect)))
            except FileNotFoundError as missing:
                go_on = partial(program.throw, missing)

    async def perform_beside(self, effects: Sequence[Effect]) -> None:
        """Perform effects whose order among others does not matter, without delaying appends.

        Raises as `perform`, and FileNotFoundError where a file is gone by then.
        """
        directory = self.directory
        if self._held is None and effects:
            self.check_hosted()
            # By then a later topic of that name may own the directory.
            await directory.perform_beside(effects, unless=lambda: self.deleted)
        if self._held is not None or self.directory is not directory:
            await self.perform(tuple(effects))  # a move may have copied the earlier contents

    # Cleaning (`cleaning.py`)

    async def swap(self, fresh: Segment, old: Sequence[Segment], unlink_at_ms: int) -> bool:
        """Put a cleaned segment in the place of `old`; return whether the log still had those. Reads wait meanwhile.

        Raises Rejected as `perform`, and FileNotFoundError where the topic goes meanwhile. The partition must not be
        moving.
        """
        self.check_hosted()
        assert not self.is_holding, "a move takes the files as they are"
        effects = self.log.swaps.begin(fresh, old, unlink_at_ms)
        if not effects:
            return False
        self._swaps_begun += 1
        swap = self._swap = asyncio.get_running_loop().create_task(self._carry_out_swap(effects))
        swap.add_done_callback(lambda _: swap.cancelled() or swap.exception())
        await asyncio.shield(swap)  # it is whole at a stop, too
        return True

    async def _carry_out_swap(self, effects: Sequence[Effect]) -> None:
        """Perform a swap's effects in order, without delaying appends: each sync of the directory takes a journal's
        commit, so it is not among the writes.
        """
        is_done = False
        renames: list[Effect] = []
        try:
            for effect in effects:
                if isinstance(effect, Rename):
                    renames.append(effect)
                    continue
                self.check_hosted()
                if renames:
                    await self.directory.write(renames)
                    renames = []
                await self.directory.perform_beside((effect,), unless=lambda: self.deleted)
            is_done = True
        finally:
            self._swap = None
            self.log.swaps.end(is_done=is_done)

    async def swap_ended(self) -> None:
        """Wait until no swap is under way."""
        while self._swap is not None:
            await asyncio.wait((self._swap,))

    # Moving to another directory (`moves.py`)

    @property
    def is_holding(self) -> bool:
        """Whether effects wait for the end of a move."""
        return self._held is not None

    @property
    def recovery_point(self) -> int:
        """Offset below which a checkpoint may call the log durable: held effects are not."""
        return self.log.recovery_point if self._held is None else self._held_recovery_point

    def hold(self) -> None:
        """Hold all effects from here on. Their paths name no log directory, so another directory may perform them."""
        assert self._held is None
        self._held = []
        self._held_recovery_point = self.log.recovery_point

    def release(self) -> None:
        """Perform the held effects in `directory`, in order."""
        held, self._held = self._held or [], None
        for effects, done in held:
            try:
                self.check_hosted()
            except Rejected as error:
                done(error)
            else:
                self.directory.perform(effects, done)


def _alone(effect: Effect) -> Program[Result]:
    result = yield effect
    return result
