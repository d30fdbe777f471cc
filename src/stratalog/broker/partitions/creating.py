"""Create partitions' directories in batches, each on the drive with the most room.

In: identities and settings of new partitions. Out: their logs, and one write for each log directory. It never decides
which partitions exist: metadata does.

A new partition goes to the drive with the most free bytes per partition, itself included. So equal drives get equally
many partitions (Kafka's rule), and a drive with twice the room gets twice as many. A topic of a hundred partitions does
not fall on one drive that has a little more room today. Between equals the first of `log.dirs` is taken.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import structlog
from msgspec import Struct

from stratalog.broker.storage.asides import Asides
from stratalog.broker.storage.copies import Lost
from stratalog.broker.storage.directory import LogDirectory
from stratalog.config import LogConfig
from stratalog.log.creating import create
from stratalog.log.effects import Together
from stratalog.log.partition_log import PartitionLog
from stratalog.log.tail import TailBudget
from stratalog.metadata.image import Topic
from stratalog.wire.ids import TopicIdPartition, TopicPartition

__all__ = ["Creating", "all_of"]

_log = structlog.get_logger()
_UNIT_BYTES: Final = 64 << 20
"""The unit of free space: a smaller difference between two drives does not count."""


class Made(Struct, frozen=True):
    """A created partition; `leader_epoch` is its newest known leader epoch."""

    name: TopicPartition
    log: PartitionLog
    directory: LogDirectory
    leader_epoch: int


class Creating:
    """The partitions that one metadata change creates. Call `create` for each, and `flush` now and then."""

    def __init__(
        self,
        asides: Asides,
        tails: TailBudget,
        config_of: Callable[[Topic], LogConfig],
        lost: Mapping[TopicPartition, Lost] | None = None,
    ) -> None:
        """`lost`: partitions whose directories are missing; their new logs begin where the old ones ended."""
        self.writes: list[asyncio.Future[None]] = []
        """The writes that the change waits for."""
        self.made: dict[TopicIdPartition, Made] = {}
        """Partitions that wait for `flush` before they enter the tables."""
        self._asides = asides
        self._tails = tails
        self._config_of = config_of
        self._lost = lost or {}
        self._counts: dict[LogDirectory, int] | None = None
        self._effects: dict[LogDirectory, Together] = {}

    def place(
        self, loaded: Collection[LogDirectory], hosted: Mapping[LogDirectory, int]
    ) -> LogDirectory | None:
        """Return the directory for a new partition, one of the sound ones of `loaded`; None where none is left.

        A cordoned directory gets one only where all are: the controller placed it before it knew.
        `hosted`, the partitions of each, is looked at once; those that this change creates are added one by one.
        """
        if self._counts is None:
            self._counts = {one: 1 + hosted.get(one, 0) for one in loaded}
        counts = self._counts
        found = max(
            (one for one in counts if one.failure is None),
            key=lambda one: (
                not one.is_cordoned,
                one.free_bytes // _UNIT_BYTES / counts[one],
                -counts[one],
            ),
            default=None,
        )
        if found is not None:
            counts[found] += 1
        return found

    def create(
        self,
        name: TopicPartition,
        topic: Topic,
        directory: LogDirectory,
        leader_epoch: int,
        now_ms: int,
    ) -> None:
        """Create an empty log; the next `flush` creates its directory. Log a warning where the old directory is
        missing.
        """
        directory_name = str(name)
        config = self._config_of(topic)
        lost = self._lost.get(name)
        log, made = create(
            directory_name,
            topic.id,
            config,
            now_ms=now_ms,
            start_offset=0 if lost is None else lost.end,
            tails=self._tails,
        )
        if lost is not None:
            reason = f"the directory is missing, with offsets {lost.start} to {lost.end - 1}"
            _log.error("file is damaged", partition=directory_name, file=lost.path, reason=reason)
            if config.remote_storage_enable:
                log.log_start_offset = lost.start  # the bucket may have these offsets
        effects = self._effects.setdefault(directory, Together())
        effects.add(self._asides.free(directory, directory_name))
        effects.add(made)
        key = TopicIdPartition(topic.id, name.partition)
        self.made[key] = Made(name, log, directory, leader_epoch)

    def flush(self) -> None:
        """Create the directories, in one write for each log directory, because each write costs a sync."""
        effects, self._effects = self._effects, {}
        for directory, made in effects.items():
            if directory.failure is None:
                self.writes.append(directory.write(made.all()))

    def done(self) -> "asyncio.Future[None] | None":
        """Return a future that waits for every write; None without writes."""
        if not self.writes:
            return None
        return asyncio.get_running_loop().create_task(all_of(self.writes))


async def all_of(writes: "Sequence[asyncio.Future[None]]") -> None:
    """Wait for all writes. A failed directory has its own line in the log, and its partitions answer with an error."""
    if writes:
        await asyncio.wait(writes)
        for write in writes:
            write.exception()
