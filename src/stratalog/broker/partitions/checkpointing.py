"""Write the checkpoint files of log directories: recovery points, high watermarks, log starts, the mark of a clean
close.

In: hosted partitions. Out: files in their directories. It never reads a checkpoint: `survey.py` does, at the start.

A file has a line for each partition of a directory. So the broker collects the lines in steps, and the event loop does
other work between two steps. Each line is correct by itself, because its offset only grows.
"""

import asyncio
from collections.abc import Generator, Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import Final, TypeVar

import structlog

from stratalog.broker.partitions.hosted_partitions import HostedPartitions
from stratalog.broker.partitions.partition import HostedPartition
from stratalog.broker.slices import slices
from stratalog.broker.storage.directory import LogDirectory
from stratalog.broker.storage.survey import CheckpointLines
from stratalog.errors import Rejected
from stratalog.log.checkpoints import CLEAN_SHUTDOWN, encode_clean_shutdown
from stratalog.log.effects import Together, WriteFile
from stratalog.wire.ids import TopicPartition

T = TypeVar("T")
_PARTITIONS_A_STEP: Final = 2000


class _Collecting:
    """One collection of checkpoint lines in progress."""

    __slots__ = ("is_outdated", "lines")

    def __init__(self) -> None:
        self.lines = CheckpointLines()
        self.is_outdated = False
        """Whether a later collection has already queued its files."""


class Checkpoints:
    """The checkpoints of all completely loaded log directories: a checkpoint covers every partition of its
    directory.
    """

    def __init__(self, hosted: HostedPartitions) -> None:
        self._hosted = hosted
        self._names: dict[LogDirectory, AbstractSet[TopicPartition]] = {}
        self._collecting: dict[LogDirectory, list[_Collecting]] = {}
        """In the order of their start."""
        self._log = structlog.get_logger()

    @property
    def directories(self) -> list[LogDirectory]:
        """The directories that were loaded."""
        return list(self._names)

    def loaded(self, directory: LogDirectory, names: set[TopicPartition]) -> None:
        """Note that a directory was loaded, with the partition names in its files."""
        self._names[directory] = names

    def names_any(self, directory: LogDirectory, gone: Iterable[HostedPartition]) -> bool:
        """Return whether the directory's checkpoint files name one of these partitions."""
        names = self._names[directory]
        return any(one.name in names for one in gone)

    def forget(self, directory: LogDirectory, gone: Iterable[HostedPartition]) -> None:
        """Leave these partitions out of the collection in progress: they have left the directory."""
        for collecting in self._collecting.get(directory, ()):
            for one in gone:
                collecting.lines.remove(one.name)

    def collect(self, directory: LogDirectory) -> Generator[bool, None, CheckpointLines | None]:
        """Return the lines of the directory's files; yield True where the next turn should continue.

        The caller writes them at once. Return None where a later collection finished first: its lines are newer.
        """
        collections = self._collecting.setdefault(directory, [])
        mine = _Collecting()
        collections.append(mine)
        try:
            for count, part in enumerate(self._in(directory)):
                if count:
                    yield True
                for one in part:
                    if self._hosted.by_id.get(one.key) is one:
                        log = one.log
                        is_compacted = log.config.is_compacted or log.was_cleaned
                        mine.lines.add(
                            one.name,
                            one.recovery_point,
                            one.high_watermark,
                            log.log_start_offset,
                            log.cleaned_end if is_compacted else None,
                        )
        finally:
            place = collections.index(mine)
            earlier = collections[:place]
            del collections[place]
        if mine.is_outdated:
            return None
        for other in earlier:
            other.is_outdated = True
        self._names[directory] = mine.lines.names
        return mine.lines

    def write_in_steps(
        self, directory: LogDirectory
    ) -> "Generator[bool, None, asyncio.Future[None]]":
        """Queue the directory's files; yield True where the next turn should continue.

        The directory performs later effects after these writes. Raises Rejected where the directory has failed.
        """
        lines = yield from self.collect(directory)
        return directory.write(() if lines is None else lines.files())

    async def write(self, directory: LogDirectory) -> None:
        """Write the directory's files. Raises Rejected where it has failed."""
        await (await _drive(self.write_in_steps(directory)))
        await directory.space()

    async def close(self, broker_epoch: int) -> None:
        """Close every log cleanly, checkpoint, and leave the mark that nothing needs recovery.

        The mark has the broker epoch: the next registration shows that this incarnation lost nothing (KIP-966).
        """
        mark = WriteFile(CLEAN_SHUTDOWN, encode_clean_shutdown(broker_epoch))
        closing = []
        for directory in self._names:
            if directory.failure is not None or await self._any_holds(directory):
                continue
            effects = Together()
            for part in self._in(directory):
                for one in part:
                    effects.add(one.log.close())
                await asyncio.sleep(0)
            lines = await _drive(self.collect(directory))
            if directory.failure is None:
                files = () if lines is None else lines.files()
                closing.append((directory, directory.write([*effects.all(), *files, mark])))
        for directory, work in closing:
            try:
                await work
            except Rejected as error:
                self._log.error("not closed cleanly", path=directory.path, reason=error.message)

    async def _any_holds(self, directory: LogDirectory) -> bool:
        """Return whether a partition of the directory holds effects back: a move of it did not end."""
        for part in self._in(directory):
            if any(one.is_holding for one in part):
                return True
            await asyncio.sleep(0)
        return False

    def _in(self, directory: LogDirectory) -> Iterator[list[HostedPartition]]:
        """Yield the partitions of the directory, and those whose move to it is about to end, in steps."""
        for part in slices(self._hosted.all(), _PARTITIONS_A_STEP):
            yield [one for one in part if directory in (one.directory, one.arriving)]


async def _drive(steps: Generator[bool, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found
        await asyncio.sleep(0)
