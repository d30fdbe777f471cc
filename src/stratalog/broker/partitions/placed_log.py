"""One partition's log in the log directory where it lives: what is written to it and read from it.

In: effects of the log, offsets to read. Out: effects performed in order, slices of batches. It never decides what is
appended: `partition.py` and the log do.

A partition may move to another log directory (`moves.py`). Its paths say nothing of the directory, so effects that
are held during the end of a move are performed where the partition lives afterwards.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import structlog

from stratalog.broker.metrics import PartitionMetrics
from stratalog.broker.storage.directory import Done, Failure, LogDirectory
from stratalog.errors import Corrupt, ErrorCode, Rejected
from stratalog.log.effects import Effect, Program, Read
from stratalog.log.partition_log import PartitionLog
from stratalog.log.reading import ReadPlan, Slices, segment_at
from stratalog.wire.ids import TopicIdPartition, TopicPartition

T = TypeVar("T")
_log = structlog.get_logger()
_ATTEMPTS_MAX: Final = 5
"""How often retention may take a file from under one read before that is no coincidence."""


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
        """Whether its log is deleted here; `check_hosted` says why."""
        self.metrics = PartitionMetrics()
        self.arriving: LogDirectory | None = None
        """Where a move is about to end: its checkpoints speak for this partition too."""
        self.copies = [directory]
        """Every directory where the partition's name is taken by it: two while a move ends."""
        self._held: list[tuple[Sequence[Effect], Done]] | None = None
        self._held_recovery_point = 0
        self._gone: Rejected | None = None

    def retire(self, error: Rejected) -> None:
        """Serve nothing any more: the log is deleted. All later use gets `error`."""
        self.deleted = True
        self._gone = error
        self.log.tail.clear()

    def check_hosted(self) -> None:
        """Raise `Rejected` where the partition cannot be used any more."""
        if self._gone is not None:
            raise self._gone
        self.directory.check()

    # Reading

    def read(
        self, offset: int, max_bytes: int, *, end_offset: int, minimum_one_batch: bool = True
    ) -> Slices | Awaitable[Slices]:
        """Return whole batches from the one holding `offset`, below `end_offset`; awaitable where the drive takes time.

        Raises, at once or when awaited, `Rejected` (OFFSET_OUT_OF_RANGE, CORRUPT_MESSAGE, failed directory, deleted
        topic), or the log's `NotLocal` where the bucket has it.
        """

        def plan() -> Slices | ReadPlan:
            self.check_hosted()
            return self.log.read(
                offset, max_bytes, end_offset=end_offset, minimum_one_batch=minimum_one_batch
            )

        found = plan()
        try:
            while type(found) is ReadPlan:
                data = self.directory.read(found.path, found.position, found.size)
                if isinstance(data, asyncio.Future):
                    return self._finish_read(found, data, plan)
                found = self.log.finish_read(found, data)
        except Corrupt as error:
            raise self._unreadable(error) from error
        assert isinstance(found, Slices)
        return found

    async def _finish_read(
        self,
        found: Slices | ReadPlan,
        data: "bytes | bytearray | asyncio.Future[bytes]",
        plan: Callable[[], Slices | ReadPlan],
    ) -> Slices:
        """Go on with a read that waits. Retention may take the file away meanwhile: then a new plan is made."""
        for _ in range(_ATTEMPTS_MAX):
            try:
                while isinstance(found, ReadPlan):
                    arrived = await data if isinstance(data, asyncio.Future) else data
                    # The directory may be another topic's of that name by now.
                    self.check_hosted()
                    found = self.log.finish_read(found, arrived)
                    if isinstance(found, ReadPlan):
                        data = self.directory.read(found.path, found.position, found.size)
            except FileNotFoundError:
                found = plan()
                if isinstance(found, ReadPlan):
                    data = self.directory.read(found.path, found.position, found.size)
            except Corrupt as error:
                raise self._unreadable(error) from error
            else:
                return found
        raise self._unreadable(Corrupt(f"{self.log.directory}: files vanish as they are read"))

    async def look(self, program: Callable[[], Program[T]]) -> T:
        """Run a program of the log that only reads; run a new one if retention deleted a file during the read.

        It runs on the event loop, as every read of a log's state does. Raises `Rejected` as `read` does.
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
        arrived = None
        while True:
            self.check_hosted()
            try:
                effect = program.send(arrived)
            except StopIteration as end:
                found: T = end.value
                return found
            assert isinstance(effect, Read)
            data = self.directory.read(effect.path, effect.position, effect.size)
            arrived = await data if isinstance(data, asyncio.Future) else data

    def path_of(self, offset: int) -> str:
        """Return the path of the file that holds `offset`, or would."""
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
        """Have effects of the log performed after all earlier ones (retention, roll, flush, close).

        Raises `Rejected` where the partition is not hosted any more: its directory may be another topic's by now.
        """
        if effects:
            await self.write(effects)

    def write(self, effects: Sequence[Effect]) -> "asyncio.Future[None]":
        """As `perform`, at once: without effects the future waits for the earlier ones."""
        self.check_hosted()
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: Failure) -> None:
            if answer.done():
                return
            if error is None:
                answer.set_result(None)
            else:
                answer.set_exception(error)

        self._perform(effects, done)
        return answer

    def _perform(self, effects: Sequence[Effect], done: Done, *, at_once: bool = False) -> None:
        if self._held is None:
            self.directory.perform(effects, done, at_once=at_once)
        else:
            self._held.append((effects, done))

    async def perform_beside(self, effects: Sequence[Effect]) -> None:
        """Have effects performed whose order among others does not matter, where no append waits behind them.

        Raises as `perform`, and FileNotFoundError where a file is gone by then.
        """
        directory = self.directory
        if self._held is None and effects:
            self.check_hosted()
            # By then another topic of the name may have its directory.
            await directory.perform_beside(effects, unless=lambda: self.deleted)
        if self._held is not None or self.directory is not directory:
            await self.perform(tuple(effects))  # a move may have copied what was there before

    # Moving to another directory (`moves.py`)

    @property
    def is_holding(self) -> bool:
        """Whether effects wait for the end of a move."""
        return self._held is not None

    @property
    def recovery_point(self) -> int:
        """Up to where a checkpoint may say that the log is durable: what is held is not."""
        return self.log.recovery_point if self._held is None else self._held_recovery_point

    def hold(self) -> None:
        """Keep what is decided from here on: paths say nothing of the directory, so it may be performed in another."""
        assert self._held is None
        self._held = []
        self._held_recovery_point = self.log.recovery_point

    def release(self) -> None:
        """Perform what was held, in `directory`, in order."""
        held, self._held = self._held or [], None
        for effects, done in held:
            try:
                self.check_hosted()
            except Rejected as error:
                done(error)
            else:
                self.directory.perform(effects, done)
