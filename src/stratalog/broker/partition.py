"""One hosted partition: its log, its directory and its place in replication, as handlers see it.

In: record batches to append, offsets to read. Out: futures that resolve once committed, slices of batches. It
never decides an offset (the log does) and never touches a disk (the directory does).

An append runs in three steps: the log decides (offsets, duplicates, effects), the directory performs, and only then
do the log end offset and the high watermark move, waiting fetches wake and the answer leaves.
"""

import asyncio
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from stratalog.broker.directory import LogDirectory
from stratalog.errors import ErrorCode, Rejected
from stratalog.log.effects import Effect
from stratalog.log.partition_log import Appended, PartitionLog, ReadPlan, Slices
from stratalog.replication.partition import PartitionReplica
from stratalog.wire.batch import BatchHeader

EMPTY = Slices([], 0, 0)


class FetchWait:
    """A fetch that found too few bytes: resolves once the partitions it watches have grown by what was missing."""

    __slots__ = ("done", "missing_bytes")

    def __init__(self, missing_bytes: int) -> None:
        self.missing_bytes = missing_bytes
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def grown(self, size: int) -> None:
        """A watched partition committed `size` more bytes."""
        self.missing_bytes -= size
        if self.missing_bytes <= 0:
            self.wake()

    def wake(self) -> None:
        """Look again now, whatever has grown: the partition went away or changed leader."""
        if not self.done.done():
            self.done.set_result(None)


@dataclass(frozen=True, slots=True)
class PartitionIdentity:
    """Which partition: the id is the key, the name is what people and records call it."""

    topic_id: uuid.UUID
    topic: str
    index: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"


class HostedPartition:
    """A partition this broker holds a replica of."""

    def __init__(
        self,
        identity: PartitionIdentity,
        log: PartitionLog,
        directory: LogDirectory,
        replica: PartitionReplica,
        *,
        on_rolled: Callable[["HostedPartition"], None] = lambda _partition: None,
    ) -> None:
        self.identity = identity
        self.log = log
        self.directory = directory
        self.replica = replica
        self.deleted = False
        self.watching: set[FetchWait] = set()
        self._uncommitted: deque[tuple[int, asyncio.Future[Appended], Appended]] = deque()
        self._on_rolled = on_rolled

    @property
    def high_watermark(self) -> int:
        """Offset below which every in-sync replica has everything."""
        return self.replica.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Offset below which every transaction is decided; the high watermark while there are none."""
        return self.replica.last_stable_offset(self.log.first_unstable_offset)

    def append(
        self,
        view: memoryview,
        headers: list[BatchHeader],
        now_ms: int,
        *,
        origin: str = "client",
        flush: bool = False,
    ) -> "asyncio.Future[Appended]":
        """Append checked batches as the leader; the future resolves once they are committed.

        Offsets are decided before this returns, so calls from one producer keep their order. `flush` makes the batches
        durable first. Raises `Rejected` (producer rules, timestamps, failed directory, deleted topic).
        """
        self.check_hosted()
        if not self.replica.leads:
            raise Rejected(
                ErrorCode.not_leader_or_follower, f"{self.identity} has no leader here yet"
            )
        log = self.log
        segments = len(log.segments)
        appended = log.append_as_leader(
            view, headers, leader_epoch=self.replica.leader_epoch, now_ms=now_ms, origin=origin
        )
        rolled = len(log.segments) != segments
        effects = appended.effects
        if flush:
            effects = (*effects, *log.flush())
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()

        def performed(work: "asyncio.Future[None]") -> None:
            error = work.exception()
            if error is not None:
                if not answer.cancelled():
                    answer.set_exception(error)
                return
            if not appended.duplicate:
                log.performed(appended)
            self._uncommitted.append((appended.last_offset + 1, answer, appended))
            self.replica.on_append(log.log_end_offset)
            self._commit(appended.size)
            if rolled:
                self._on_rolled(self)

        self.directory.write(effects).add_done_callback(performed)
        return answer

    def read(
        self, offset: int, max_bytes: int, *, end_offset: int, minimum_one_batch: bool = True
    ) -> Slices | Awaitable[Slices]:
        """Whole batches from the one holding `offset`, below `end_offset`; awaitable where the drive must be waited for.

        Raises `Rejected(OFFSET_OUT_OF_RANGE)`, or the log's `Tiered` where the bucket has it.
        """
        self.check_hosted()
        found = self.log.read(
            offset, max_bytes, end_offset=end_offset, minimum_one_batch=minimum_one_batch
        )
        while type(found) is ReadPlan:
            data = self.directory.read(found.path, found.position, found.size)
            if not isinstance(data, bytes):
                return self._finish_read(found, data)
            found = self.log.finish_read(found, data)
        assert isinstance(found, Slices)
        return found

    async def _finish_read(self, plan: ReadPlan, data: "asyncio.Future[bytes]") -> Slices:
        found = self.log.finish_read(plan, await data)
        while isinstance(found, ReadPlan):
            more = self.directory.read(found.path, found.position, found.size)
            found = self.log.finish_read(found, more if isinstance(more, bytes) else await more)
        return found

    async def perform(self, effects: tuple[Effect, ...]) -> None:
        """Have effects of the log performed after all earlier ones (retention, roll, flush, close)."""
        if effects:
            await self.directory.write(effects)

    def become_leader(self, leader_epoch: int) -> None:
        """Lead from `leader_epoch`, which the metadata log has committed."""
        self.log.assign_epoch(leader_epoch)
        self.replica.become_leader(leader_epoch, self.log.log_end_offset)
        self.wake()

    def check_hosted(self) -> None:
        """Raise `Rejected` where the partition cannot be used any more."""
        if self.deleted:
            raise Rejected(ErrorCode.unknown_topic_or_partition, f"{self.identity} was deleted")
        self.directory.check()

    def retire(self) -> None:
        """Serve nothing any more, and let everyone who waits find out."""
        self.deleted = True
        self.wake()

    def _commit(self, size: int) -> None:
        """The high watermark may have moved: answer what it passed, wake who waits to read."""
        high_watermark = self.replica.high_watermark
        waiting = self._uncommitted
        while waiting and waiting[0][0] <= high_watermark:
            _, answer, appended = waiting.popleft()
            if not answer.cancelled():
                answer.set_result(appended)
        for watcher in self.watching:
            watcher.grown(size)

    async def keep_retention(self, now_ms: int) -> None:
        """Delete what need not be kept locally any more, and sync what is closed."""
        await self.perform(self.log.due(now_ms, limit_offset=self.high_watermark))

    def wake(self) -> None:
        """Have every waiting fetch look again."""
        for waiting in self.watching:
            waiting.wake()
