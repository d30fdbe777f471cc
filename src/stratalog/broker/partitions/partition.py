"""One hosted partition: its place in replication over its placed log, for the handlers.

In: record batches to append, roles to take, what followers fetched. Out: calls back once batches are committed. It
never decides an offset (the log does), and never reads or writes (`placed_log.py` does).

An append runs in three steps. The log decides (offsets, duplicates, effects). The directory performs the effects.
Only then does the log end offset move. Followers' fetches that wait for the log end wake. With the high watermark the
answers leave, and consumers' fetches wake.

A follower appends what its leader has, and cuts off what its leader lacks. A role that comes during a cut waits for its
end (`Hosting`): a leader's log is whole.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import structlog

from stratalog.broker.partitions.acknowledgements import Acknowledgements
from stratalog.broker.partitions.gaps import refused
from stratalog.broker.partitions.placed_log import PlacedLog
from stratalog.broker.partitions.purgatory import FetchWait, Waiting
from stratalog.broker.storage.directory import Done, Failure, LogDirectory, awaited
from stratalog.config import LogConfig
from stratalog.config.kinds import LONG_MAX
from stratalog.errors import ErrorCode, Rejected, again
from stratalog.log.effects import Program
from stratalog.log.partition_log import PartitionLog
from stratalog.log.reading import Slices
from stratalog.log.retention import unconfirmed
from stratalog.log.timestamps import confirm_time
from stratalog.log.values import Appended, Placed, TieredHistory
from stratalog.ports import Clock
from stratalog.replication.partition import NO_EPOCH, PartitionReplica
from stratalog.replication.roles import Follow, Lead, Stop, Transition
from stratalog.wire.batch import BatchHeader
from stratalog.wire.ids import TopicIdPartition, TopicPartition

_log = structlog.get_logger()
EMPTY: Final = Slices([], 0, 0)
_ANY_SIZE: Final = 1 << 31
_NO_FOLLOWERS: Final = Waiting()
_Row = tuple[int, bool, Done, float | None]
"""A row's last offset, whether it is a repeat, its callback, and the time to wait for a commit."""
_Decided = tuple[Appended, bool, list[_Row]]
"""Rows that are not performed, and whether they began a segment."""


class HostedPartition(PlacedLog):
    """A partition this broker holds a replica of."""

    def __init__(  # noqa: PLR0913 - both identities: clients and the disk know the name, the tables the id
        self,
        key: TopicIdPartition,
        name: TopicPartition,
        log: PartitionLog,
        directory: LogDirectory,
        replica: PartitionReplica,
        clock: Clock,
        *,
        was_tiered: bool = False,
        on_rolled: Callable[["HostedPartition"], None] = lambda _partition: None,
    ) -> None:
        super().__init__(key, name, log, directory)
        self.replica = replica
        replica.min_isr = log.config.min_insync_replicas
        self.hosted_from = log.log_end_offset
        """The log's end when the broker loaded it: later records came in since."""
        self.was_tiered: Final = was_tiered
        """Whether a tier's manifest lay beside the log when it was loaded."""
        self.watching: dict[FetchWait, None] = {}
        self.followers: Waiting = _NO_FOLLOWERS
        self.rewriting: asyncio.Future[None] | None = None
        """Done when the log, of which the end or everything is being cut off, is whole again."""
        self.rewrites = 0
        """How often that was begun: a copy of the log's files that was begun before is worth nothing."""
        self.wakes = 0
        """Number of wake-ups of waiting fetches; a fetch compares it before and after its own look-up."""
        self._decided: deque[_Decided] = deque()
        self._uncommitted = Acknowledgements()
        self._unseen: deque[tuple[int, int]] = deque()
        """Where each append above the high watermark ends, and its bytes: consumers wait for them. Unused alone."""
        self._on_rolled = on_rolled
        self._syncing = asyncio.Lock()
        self._clock = clock
        self._flush_is_set = False

    @property
    def high_watermark(self) -> int:
        """Offset below which every in-sync replica has everything."""
        return self.replica.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Offset below which every transaction is decided; the high watermark while there are none."""
        return self.replica.last_stable_offset(self.log.first_unstable_offset(self.high_watermark))

    def configure(self, config: LogConfig) -> None:
        """Take the topic's settings."""
        self.log.configure(config)
        self.replica.min_isr = config.min_insync_replicas
        self.followers.mark(self.key)  # more may be committed

    def append(  # noqa: PLR0913 - how far it goes before the call
        self,
        view: memoryview,
        header: BatchHeader,
        wall_ms: int,
        then: Done,
        *,
        origin: str = "client",
        flush: bool = False,
        commit_timeout_ms: float | None = math.inf,
    ) -> Appended:
        """Append a checked batch as the leader, as one row of `append_rows`; raises its refusal."""
        rows, appended = self.append_rows(
            view,
            (header,),
            wall_ms,
            (then,),
            origin=origin,
            flush=flush,
            commit_timeouts_ms=(commit_timeout_ms,),
        )
        row = rows[0]
        if type(row) is not tuple:
            assert isinstance(row, Rejected), row
            raise row
        return appended

    def append_rows(  # noqa: PLR0913 - as above
        self,
        view: memoryview,
        headers: Sequence[BatchHeader],
        wall_ms: int,
        thens: Sequence[Done],
        *,
        commit_timeouts_ms: Sequence[float | None],
        origin: str = "client",
        flush: bool = False,
    ) -> tuple[list[Placed | Rejected], Appended]:
        """Append checked batches, one after another in `view`, as the leader; return each row's place or refusal.

        `thens` has a callback for each row. It is called with None once the row is committed, or with a failure; never
        for a refused row. A row's commit timeout counts from the local append on: then it gets REQUEST_TIMED_OUT. With
        None the local append is enough. Offsets are decided before this returns, so calls from one producer keep their
        order. Callbacks may come before this returns. `flush` makes the batches durable first. Raises `Rejected`
        (failed directory, deleted topic, another leader) and appends nothing then.
        """
        if self.deleted or self.directory.failure is not None:
            self.check_hosted()
        if not self.replica.leads:
            raise self._not_leading()
        log = self.log
        segments = len(log.segments)
        rows, appended = log.append_rows(
            view,
            headers,
            leader_epoch=self.replica.leader_epoch,
            now_ms=self._clock.steady_ms(),
            wall_ms=wall_ms,
            origin=origin,
        )
        waiting = [
            (row[1], row[3], then, timeout_ms)
            for row, then, timeout_ms in zip(rows, thens, commit_timeouts_ms, strict=True)
            if type(row) is tuple
        ]
        if len(waiting) < len(rows):
            rows = refused(rows, headers, log, self.replica, self._clock.steady_ms())
        if not waiting:
            return rows, appended
        effects = appended.effects
        if flush:
            effects = (*effects, *log.flush())
        self.metrics.bytes_in += appended.size
        rolled = len(log.segments) != segments
        self._decided.append((appended, rolled, waiting))
        self._perform(effects, self._performed, at_once=len(headers))
        if log.config.flush_ms != LONG_MAX:
            self._set_flush()
        return rows, appended

    def _set_flush(self) -> None:
        if not self._flush_is_set:
            self._flush_is_set = True
            asyncio.get_running_loop().call_later(self.log.config.flush_ms / 1000, self._flush)

    def _flush(self) -> None:
        """Flush the log, `flush.ms` after the first append that may be unsynced."""
        self._flush_is_set = False
        if not self.deleted and self.directory.failure is None:
            # The directory reports its own failures.
            self._perform(self.log.flush(), lambda _error: None)

    def commit(
        self, view: memoryview, header: BatchHeader, wall_ms: int, *, flush: bool
    ) -> "asyncio.Future[None]":
        """Append one batch of the broker's own; resolves once it is committed."""
        answer, then = awaited()
        self.append(view, header, wall_ms, then, origin="coordinator", flush=flush)
        return answer

    def all_committed(self) -> "asyncio.Future[None]":
        """Return a future of the commit of all that the leader's log has now; Rejected where another leads first."""
        if not self.replica.leads:
            raise self._not_leading()
        return self._uncommitted.reached(self.log.log_end_offset, self.high_watermark)

    def _performed(self, error: Failure) -> None:
        """Note that the directory performed the oldest decided append, or that it failed."""
        appended, rolled, waiting = self._decided.popleft()
        if error is not None:
            for _, _, then, _ in waiting:
                then(error)
            return
        log = self.log
        try:
            if not appended.duplicate:
                log.performed(appended)
            if not self.replica.leads:
                return  # the partition resigned or was deleted, and answered every pending append then
            for node_id, fetched_ms in self.followers.quiet(self.key):
                self.replica.on_quiet_fetches(node_id, fetched_ms)
            moved = self.replica.on_append(log.log_end_offset)
        except BaseException as bug:  # the callbacks get it too; raised on to the directory
            for _, _, then, _ in waiting:
                then(bug)
            raise
        self._acknowledge(waiting)
        if self.replica.followers:
            self._grown(appended.size, moved=moved)
        else:
            self._commit(appended.size)
        if rolled:
            self._on_rolled(self)

    def _acknowledge(self, waiting: list[_Row]) -> None:
        for last_offset, is_repeat, then, timeout_ms in waiting:
            if timeout_ms is None:
                then(None)
            elif last_offset < self.replica.high_watermark:
                then(self.replica.too_few_in_sync() if is_repeat else None)
            else:
                self._uncommitted.add(last_offset, then, timeout_ms)

    def _commit(self, size: int) -> None:
        """Answer the appends below the high watermark, and wake waiting fetches."""
        self.log.producers.committed(self.replica.high_watermark)
        self._uncommitted.commit(self.replica.high_watermark)
        for watcher in self.watching:
            watcher.grown(size)

    def waiting_followers(self) -> Waiting:
        """Return the followers' fetches that wait here, to add one."""
        if self.followers is _NO_FOLLOWERS:
            self.followers = Waiting()
        return self.followers

    def _grown(self, size: int, *, moved: bool) -> None:
        """Wake followers' fetches for an append; what consumers wait for comes with the high watermark."""
        self._unseen.append((self.log.log_end_offset, size))
        self.followers.grown(self.key, size)
        if moved:
            self.advanced()

    def advanced(self) -> None:
        """Answer what is committed, and wake consumers' fetches: the high watermark has moved."""
        high_watermark, unseen = self.replica.high_watermark, self._unseen
        size = 0
        while unseen and unseen[0][0] <= high_watermark:
            size += unseen.popleft()[1]
        self.followers.mark(self.key)
        self._commit(size)

    # Following a leader

    def check_readable(self, current_leader_epoch: int) -> None:
        """Refuse a consumer's fetch, which any replica may serve. Raises as `PartitionReplica.check_epoch`.

        Raises `Rejected(OFFSET_NOT_AVAILABLE)`, which clients retry, during a truncation.
        """
        self.replica.check_epoch(current_leader_epoch)
        if self.rewriting is not None:
            raise Rejected(ErrorCode.offset_not_available, f"{self.name} is being truncated")

    def append_fetched(self, view: memoryview, then: Done) -> None:
        """Append batches of the leader; `then` is called once they are performed, perhaps before this returns.

        Raises Corrupt where they are not whole and sound, not behind the log's end or of a later epoch than the leader,
        Rejected where the partition is not hosted any more.
        """
        self.check_hosted()
        log = self.log
        segments = len(log.segments)
        appended = log.append_as_follower(
            view, self._clock.steady_ms(), leader_epoch=self.replica.leader_epoch
        )
        rolled = len(log.segments) != segments
        self.metrics.replication_bytes_in += appended.size

        def performed(error: Failure) -> None:
            if error is None and not self.deleted:
                log.performed(appended, is_fetched=True)
                if self.replica.leads:  # meanwhile
                    self._grown(appended.size, moved=self.replica.on_append(log.log_end_offset))
                else:
                    self._unseen.append((log.log_end_offset, appended.size))
                if rolled:
                    self._on_rolled(self)
            then(error)

        self._perform(appended.effects, performed, at_once=1)
        if log.config.flush_ms != LONG_MAX:
            self._set_flush()

    async def truncate(self, offset: int) -> None:
        """Cut off every batch that reaches `offset` or beyond: the leader lacks them.

        Cancelling leaves the log in pieces: `broker/replication` lets this end. Raises Rejected where the partition is
        not hosted any more.
        """
        _log.info(
            "log truncated", partition=str(self.name), offset=offset, end=self.log.log_end_offset
        )
        await self._cut(lambda: self.log.truncate_to(offset, self._clock.steady_ms()))

    async def restart_at(self, offset: int) -> None:
        """Drop the whole log and begin at `offset`, where the leader's log starts. As `truncate`."""
        _log.warning(
            "log begins anew", partition=str(self.name), offset=offset, end=self.log.log_end_offset
        )
        await self._cut(lambda: self.log.restart_at(offset, self._clock.steady_ms()))

    async def restart_after(self, history: TieredHistory, log_start_offset: int) -> None:
        """Drop the whole log and begin where the bucket's history ends: all of that is committed. As `truncate`."""
        end = history.end_offset
        name = str(self.name)
        _log.info("log begins after the bucket", partition=name, start=log_start_offset, end=end)
        now_ms = self._clock.steady_ms()
        await self._cut(lambda: self.log.restart_after(history, log_start_offset, now_ms))
        self.replica.on_leader_high_watermark(end, end)
        self.advanced()

    async def _cut(self, program: Callable[[], Program[None]]) -> None:
        assert not self.replica.leads, "a leader's log is what counts"
        self.rewriting = done = asyncio.get_running_loop().create_future()
        self.rewrites += 1
        try:
            async with self._syncing:  # what it syncs must not go meanwhile
                await self.swap_ended()
                await self.write(())
                while self.is_holding:
                    await self.write(())  # performed once the move has ended
                await self._rewrite(program())
                self.replica.on_truncated(self.log.log_end_offset)
                self._wait_for_all()
        finally:
            self.rewriting = None
            done.set_result(None)

    # Roles (`replication/roles.py`)

    def take(self, role: Lead | Follow | Stop) -> list[Transition]:
        """Take a role; return the transitions, in order."""
        begins = role.leader_epoch > self.replica.leader_epoch
        if isinstance(role, Lead):
            led = self.lead(
                role.leader_epoch, role.replicas, role.isr, partition_epoch=role.partition_epoch
            )
            return [Transition.LED] if led else []
        changed = [Transition.RESIGNED] if self.resign(role.leader_epoch) else []
        if isinstance(role, Follow):
            self.replica.follow(role.replicas, role.isr)
        if begins:
            follows = isinstance(role, Follow)
            changed.append(Transition.FOLLOWED if follows else Transition.STOPPED)
            self._wait_for_all()
            self.wake()  # a waiting fetch may name the former leader epoch
        return changed

    def lead(
        self,
        leader_epoch: int,
        replicas: tuple[int, ...],
        isr: tuple[int, ...],
        *,
        partition_epoch: int = NO_EPOCH,
    ) -> bool:
        """Lead with these replicas; return whether a new leader epoch begins. The metadata log has committed both.

        An epoch that the broker led in before it was restarted is not led again: the controller names a new one.
        """
        begins = leader_epoch > self.replica.leader_epoch
        if not begins and not self.replica.leads:
            return False
        if begins:
            self.log.assign_epoch(leader_epoch)
            self._wait_for_all()
        self.replica.become_leader(
            leader_epoch,
            self.log.log_end_offset,
            isr=isr,
            replicas=replicas,
            partition_epoch=partition_epoch,
            now_ms=self._clock.steady_ms(),
        )
        self.advanced()  # with a smaller ISR, more records may be committed
        if begins:
            self.wake()
        return begins

    def _wait_for_all(self) -> None:
        """Let consumers look once all is committed: how many bytes they wait for is not known."""
        self._unseen = deque([(self.log.log_end_offset, _ANY_SIZE)])

    def resign(self, leader_epoch: int, error: Rejected | None = None) -> bool:
        """Stop leading; return whether the partition led. Each pending append gets `error`, NOT_LEADER_OR_FOLLOWER by
        default; each pending fetch looks again.
        """
        led = self.replica.leads
        self.replica.become_follower(leader_epoch)
        if led:
            self._unseen.clear()
            self._answer_pending(error or self._not_leading())
            self.wake()
        return led

    def retire(self, error: Rejected) -> None:
        """Stop serving: the log is deleted. Each pending append, and every later call, gets `error`."""
        super().retire(error)
        self.resign(self.replica.leader_epoch, error)
        self.wake()  # also where the partition did not lead

    def _answer_pending(self, error: Rejected) -> None:
        decided = list(self._decided)
        # The directory still performs them, or fails them, one by one.
        self._decided = deque((one[0], one[1], []) for one in decided)
        self._uncommitted.fail(error)
        for one in decided:
            for _, _, then, _ in one[2]:
                then(again(error))

    def _not_leading(self) -> Rejected:
        return Rejected(ErrorCode.not_leader_or_follower, f"{self.name} is not led here")

    # Upkeep (`upkeep.py`)

    async def sync_closed(self) -> None:
        """Make closed segments durable, one call after another; the directory's syncing thread does it.

        Raises `Rejected` where the partition is not hosted any more.
        """
        async with self._syncing:
            epoch = self.replica.leader_epoch
            end, first, syncs = self.log.unsynced()
            if not syncs:
                return
            await self.write(first)  # and earlier effects: indexes
            try:
                await self.perform_beside(syncs)
            except FileNotFoundError:
                return  # retention deleted the segment first
            if self.replica.leader_epoch == epoch:  # else it may have been truncated meanwhile
                self.log.synced(end)

    async def keep_retention(self) -> None:
        """Sync closed segments, and delete local segments that retention no longer keeps."""
        await self.sync_closed()
        for segment in unconfirmed(
            self.log.segments, self.log.config, self._clock.steady_ms(), self._clock.now_ms()
        ):
            await self.look(partial(confirm_time, segment))
        if self.rewriting is None:
            await self.keep_due()

    async def keep_due(self, *, tier: bool = False) -> None:
        """Perform the effects that are due (`PartitionLog.due`). Log a line if they delete segments.

        The syncing thread unlinks the files whose delay has passed: that takes ext4 0.4 ms a MiB.
        """
        log, now_ms = self.log, self._clock.steady_ms()
        first, limit = log.segments[0].base_offset, self.high_watermark
        due = log.due(now_ms, wall_ms=self._clock.now_ms(), limit_offset=limit, tier=tier)
        end = log.segments[0].base_offset
        if end > first:
            self.followers.mark(self.key)
            _log.info("segments deleted", partition=str(self.name), first=first, end=end)
        await self.perform(due)
        await self.perform_beside(log.removable(now_ms))

    def wake(self) -> None:
        """Let every waiting fetch look again."""
        self.wakes += 1
        for waiting in self.watching:
            waiting.wake()
        self.followers.wake(self.key)
