"""The shards of one kind of coordinator: one for each partition of its internal topic that this broker leads.

In: partitions that this broker leads, or leads no more. Out: the shard of a partition, once it has replayed its log. It
decides nothing about groups or transactions, and reads no record.

A shard whose log refused a batch, or that met a bug, is dropped: its state may be wrong. Another one loads the log
after a pause, which doubles each time.
"""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

import structlog

from stratalog.broker.partitions.partition import HostedPartition
from stratalog.errors import Corrupt, ErrorCode, Rejected

__all__ = ["LedShards"]

_PAUSE_S: Final = 1.0
_PAUSE_S_MAX: Final = 30.0
_REMEDY: Final = "stop the broker, run `strata storage repair`"


class LedShard(Protocol):
    """A coordinator of one partition."""

    partition: HostedPartition

    async def load(self) -> None:
        """Replay the log. Raises Corrupt and Rejected."""

    async def start(self) -> None:
        """Act on what the log has; requests are served from now on."""

    def resign(self) -> None:
        """Fail what is not committed: another broker coordinates."""

    def close(self) -> None:
        """Answer every request that waits, and decide nothing more."""


S = TypeVar("S", bound=LedShard)


class LedShards(Generic[S]):
    """The shards that this broker has, by partition index."""

    def __init__(
        self, make: Callable[[HostedPartition, Callable[[BaseException], None]], S]
    ) -> None:
        """`make` returns a new shard, which calls the given function once its state is of no use any more."""
        self._make = make
        self.by_index: dict[int, S] = {}
        """Those that are loaded. Do not change it."""
        self.not_loaded: dict[HostedPartition, str] = {}
        """Partitions that this broker leads and cannot read, with the reason."""
        self._loading: dict[HostedPartition, S] = {}
        self._waiting: dict[HostedPartition, asyncio.Task[None]] = {}
        """Partitions to load again, each after its pause."""
        self._pauses_s: dict[HostedPartition, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._log = structlog.get_logger()

    @property
    def is_loading(self) -> bool:
        """Whether this broker has still to load a partition, other than those that it could not read."""
        return next(self._pending(), None) is not None

    def _pending(self) -> Iterator[HostedPartition]:
        """Yield each partition to load. One that could not be read is tried again, and has no coordinator meanwhile."""
        return (one for one in (*self._loading, *self._waiting) if one not in self.not_loaded)

    def at(self, index: int, topic: str) -> S:
        """Return the shard of a partition. Raises Rejected: COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR."""
        shard = self.by_index.get(index)
        if shard is not None and not self._closed:
            return shard
        if any(one.name.partition == index for one in self._pending()):
            message = f"{topic}-{index} is being loaded"
            raise Rejected(ErrorCode.coordinator_load_in_progress, message)
        raise Rejected(ErrorCode.not_coordinator, f"{topic}-{index} is not led here")

    async def lead(self, partition: HostedPartition) -> None:
        """Load a partition that this broker now leads, then coordinate it.

        A newer epoch of the same leadership changes nothing. A partition that cannot be read has no coordinator
        (NOT_COORDINATOR, as in Kafka): an incomplete state would answer wrongly.
        """
        if partition in self._loading or self._is_led(partition):
            return
        self._stop_waiting(partition)
        await self._load(partition)

    async def _load(self, partition: HostedPartition) -> None:
        shard = self._make(partition, partial(self._fell, partition))
        self._loading[partition] = shard
        try:
            await shard.load()
        except (Corrupt, Rejected) as error:
            if self._loading.get(partition) is shard:
                self._note_failure(partition, error)
            return
        finally:
            is_ours = self._loading.get(partition) is shard  # else it was resigned meanwhile
            if is_ours:
                del self._loading[partition]
        if is_ours and not self._closed:
            self.not_loaded.pop(partition, None)
            self.by_index[partition.name.partition] = shard
            await shard.start()

    def _note_failure(self, partition: HostedPartition, error: Corrupt | Rejected) -> None:
        self.not_loaded[partition] = str(error)
        if isinstance(error, Rejected):  # the partition or its directory has logged the error
            self._load_later(partition)
            return
        self._log.error(
            "coordinator not loaded",
            partition=str(partition.name),
            reason=str(error),
            remedy=_REMEDY,
        )

    def resign(self, partition: HostedPartition) -> None:
        """Coordinate this partition no more: every request that waits gets NOT_COORDINATOR."""
        self._loading.pop(partition, None)
        self._stop_waiting(partition)
        self._pauses_s.pop(partition, None)
        self.not_loaded.pop(partition, None)
        if self._is_led(partition):
            self.by_index.pop(partition.name.partition).resign()

    def close(self) -> None:
        """Answer every request that waits, and load nothing more."""
        self._closed = True
        for shard in self.by_index.values():
            shard.close()
        for task in self._waiting.values():
            task.cancel()

    def _is_led(self, partition: HostedPartition) -> bool:
        shard = self.by_index.get(partition.name.partition)
        return shard is not None and shard.partition is partition

    def _fell(self, partition: HostedPartition, error: BaseException) -> None:
        if not self._is_led(partition) or self._closed:
            return
        self.by_index.pop(partition.name.partition).close()
        self._log.warning(
            "coordinator loads again", partition=str(partition.name), reason=str(error)
        )
        self._load_later(partition)

    def _load_later(self, partition: HostedPartition) -> None:
        pause_s = self._pauses_s.get(partition, _PAUSE_S)
        self._pauses_s[partition] = min(2 * pause_s, _PAUSE_S_MAX)
        task = asyncio.create_task(self._load_after(partition, pause_s))
        self._waiting[partition] = task
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def _load_after(self, partition: HostedPartition, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        del self._waiting[partition]
        await self._load(partition)

    def _stop_waiting(self, partition: HostedPartition) -> None:
        task = self._waiting.pop(partition, None)
        if task is not None:
            task.cancel()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (bug := task.exception()) is not None:
            self._log.error("coordinator failed", exc_info=bug)
