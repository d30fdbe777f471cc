"""The fetches from one broker, in one fetch session, for the partitions that it leads.

In: partitions to follow. Out: logs equal to the leader's, and their high watermarks. It decides nothing: `Fetcher`
makes the fetches and `following.py` the steps.

One fetch is under way at a time. The next leaves once the appends of an answer are performed, or after a short while
without those that a stalled drive holds up. A step that rewrites a log runs beside the fetches of other partitions.

Kafka: `ReplicaFetcherThread`, `RemoteLeaderEndPoint`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, NamedTuple

import structlog

from stratalog.broker.coordination.cluster_image import ClusterImage
from stratalog.broker.coordination.registration import Registration
from stratalog.broker.metrics import is_power_of_ten
from stratalog.broker.partitions.partition import HostedPartition
from stratalog.broker.replication.leader_offsets import ask_offsets
from stratalog.broker.replication.throttle import Throttle
from stratalog.broker.storage.directory import Failure
from stratalog.client.calls import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
)
from stratalog.client.peer import Peer
from stratalog.client.security import Dialer
from stratalog.errors import Corrupt, Rejected, Unavailable
from stratalog.log.partition_log import PartitionLog
from stratalog.log.values import TieredHistory
from stratalog.metadata.image import Endpoint
from stratalog.ports import Clock
from stratalog.replication.fetcher import Fetcher, FetchLimits
from stratalog.replication.following import (
    Append,
    AskOffsets,
    BeginAnew,
    Discard,
    FetchFromTier,
    Step,
    Truncate,
    reposition,
)
from stratalog.wire.ids import TopicIdPartition

__all__ = ["Source", "Surroundings"]

_APPENDS_S: Final = 0.1
"""How long an answer's appends hold up the next fetch. Then the partitions that they are for stay out of it."""


FindHistory = Callable[[HostedPartition, int], Awaitable[TieredHistory]]
"""Returns the history of a partition in the bucket, of which the record before the offset is part. Raises Unavailable,
Corrupt.
"""


class Surroundings(NamedTuple):
    """Objects that the sources of one broker share. `finish` runs work that a stop must wait for.

    `find_history` is None without a bucket. `skips_tiered` is `follower.fetch.last.tiered.offset.enable` (KIP-1023).
    """

    node_id: int
    listener: str
    limits: FetchLimits
    timeout_s: float
    clock: Clock
    dialer: Dialer
    image: ClusterImage
    registration: Registration
    throttle: Throttle
    finish: Callable[[Coroutine[Any, Any, None]], None]
    find_history: FindHistory | None
    skips_tiered: Callable[[], bool]


class Source:
    """The fetches from one broker; `slot` numbers its sessions. Call `run`."""

    def __init__(self, around: Surroundings, leader_id: int, slot: int) -> None:
        self.leader_id = leader_id
        self._slot = slot
        self._around = around
        self._followed: dict[TopicIdPartition, HostedPartition] = {}
        self._fetcher = Fetcher(around.node_id, around.registration.broker_epoch, around.limits)
        self._wanted = asyncio.Event()
        self._appending = 0
        self._quiet = asyncio.Event()
        self._peer: Peer | None = None
        self._leader_epoch = -1
        self._is_failing = False
        self._log = structlog.get_logger()

    def __len__(self) -> int:
        return len(self._followed)

    def follow(self, hosted: HostedPartition, leader_epoch: int) -> None:
        """Fetch a partition from now on. Its log must have performed every append."""
        self._followed[hosted.key] = hosted
        self._fetcher.follow(hosted.key, hosted.log, leader_epoch)
        self._wanted.set()

    def unfollow(self, key: TopicIdPartition) -> None:
        """Stop fetching a partition."""
        self._followed.pop(key, None)
        self._fetcher.unfollow(key)

    def look_at_leader(self) -> None:
        """Give up the connection to a process that is gone: the leader is registered again, perhaps elsewhere."""
        broker = self._around.image.image.brokers.get(self.leader_id)
        epoch = -1 if broker is None else broker.epoch
        if epoch != self._leader_epoch:
            self._leader_epoch = epoch
            self.close()

    def close(self) -> None:
        """Give up the connection; a fetch under way fails."""
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.close()

    async def run(self) -> None:
        """Fetch for ever."""
        clock, throttle = self._around.clock, self._around.throttle
        while True:
            self._fetcher.broker_epoch = self._around.registration.broker_epoch
            if throttle.is_spent:
                self._fetcher.hold_up(
                    clock.steady_ms(), lambda key: throttle.names(self._followed[key])
                )
            request = self._fetcher.request(clock.steady_ms())
            if request is None:
                await self._wait()
                continue
            try:
                response = await self._leader().request(request)
            except (Unavailable, Rejected) as error:
                self._fetcher.on_failure(clock.steady_ms())
                self._note_failure(error)
                continue
            self._note_success()
            for key, leader_epoch, taken in self._fetcher.on_response(response, clock.steady_ms()):
                self._carry_out(self._followed[key], leader_epoch, taken)
            await self._await_appends()

    def _leader(self) -> Peer:
        """Return the connection to the leader's present address. Raises Unavailable if that is unknown."""
        if self._peer is None:
            around = self._around
            endpoint = self._endpoint()
            self._peer = Peer(
                around.dialer,
                endpoint.host,
                endpoint.port,
                client_id=f"broker-{around.node_id}-fetcher-{self._slot}",
                timeout_s=around.timeout_s,
            )
        return self._peer

    def _endpoint(self) -> Endpoint:
        broker = self._around.image.image.brokers.get(self.leader_id)
        for endpoint in () if broker is None else broker.endpoints:
            if endpoint.name == self._around.listener:
                return endpoint
        raise Unavailable(f"broker {self.leader_id} has no listener {self._around.listener} yet")

    async def _wait(self) -> None:
        """Wait until a partition is to be fetched."""
        self._wanted.clear()
        wait_ms = self._fetcher.due_ms - self._around.clock.steady_ms()
        try:
            async with asyncio.timeout(None if wait_ms == float("inf") else wait_ms / 1000):
                await self._wanted.wait()
        except TimeoutError:
            pass

    async def _await_appends(self) -> None:
        self._quiet.clear()
        if self._appending:
            try:
                async with asyncio.timeout(_APPENDS_S):
                    await self._quiet.wait()
            except TimeoutError:
                pass

    def _note_failure(self, error: Unavailable | Rejected) -> None:
        if not self._is_failing and self._followed:
            self._is_failing = True
            self._log.warning("no answer from leader", broker=self.leader_id, reason=str(error))

    def _note_success(self) -> None:
        if self._is_failing:
            self._is_failing = False
            self._log.info("leader answers again", broker=self.leader_id)

    # Steps

    def _is_current(self, hosted: HostedPartition, leader_epoch: int) -> bool:
        replica = hosted.replica
        is_followed = self._followed.get(hosted.key) is hosted and not hosted.deleted
        return is_followed and replica.leader_epoch == leader_epoch and not replica.leads

    def _carry_out(self, hosted: HostedPartition, leader_epoch: int, taken: Step) -> None:
        if not self._is_current(hosted, leader_epoch):
            return
        match taken:
            case Append() if self._may_skip(hosted, taken):
                self._around.finish(self._begin_after_tier(hosted, leader_epoch, taken))
            case Append():
                self._append(hosted, leader_epoch, taken)
            case Truncate(offset):
                self._around.finish(self._truncate(hosted, leader_epoch, offset))
            case AskOffsets():
                self._around.finish(self._reposition(hosted, leader_epoch))
            case FetchFromTier():
                self._around.finish(self._begin_after_tier(hosted, leader_epoch))
            case Discard(reason):
                self._refuse(hosted, leader_epoch, reason)
            case _:
                pass  # the fetcher waits

    def _append(self, hosted: HostedPartition, leader_epoch: int, taken: Append) -> None:
        def performed(error: Failure) -> None:
            self._appending -= 1
            if not self._appending:
                self._quiet.set()
            if error is None:
                self._appended(hosted, leader_epoch, taken)

        if not taken.records:
            self._appended(hosted, leader_epoch, taken)
            return
        self._around.throttle.count(hosted, len(taken.records))
        self._appending += 1
        try:
            hosted.append_fetched(memoryview(taken.records), performed)
        except (Corrupt, Rejected) as error:
            self._appending -= 1
            if isinstance(
                error, Corrupt
            ):  # a failed directory has its own line, and does not come back
                self._refuse(hosted, leader_epoch, str(error))

    def _appended(self, hosted: HostedPartition, leader_epoch: int, taken: Append) -> None:
        if not self._is_current(hosted, leader_epoch):
            return
        log = hosted.log
        if hosted.replica.on_leader_high_watermark(taken.high_watermark, log.log_end_offset):
            hosted.advanced()
        if log.log_start_offset < taken.log_start_offset <= log.log_end_offset:
            log.raise_log_start(taken.log_start_offset)
        self._resume(hosted, leader_epoch)

    def _refuse(self, hosted: HostedPartition, leader_epoch: int, reason: str) -> None:
        """Discard a damaged answer and fetch again, without affecting other partitions."""
        hosted.metrics.corrupt_fetches += 1
        count = hosted.metrics.corrupt_fetches
        if is_power_of_ten(count):
            name, broker = str(hosted.name), self.leader_id
            self._log.error(
                "leader sent damaged batches",
                partition=name,
                broker=broker,
                reason=reason,
                count=count,
            )
        self._again_later(hosted, leader_epoch)

    async def _truncate(self, hosted: HostedPartition, leader_epoch: int, offset: int) -> None:
        if self._is_current(hosted, leader_epoch):
            try:
                await hosted.truncate(offset)
            except Rejected:
                return  # deleted, or its directory has failed, which has its own line
            self._resume(hosted, leader_epoch)

    async def _reposition(self, hosted: HostedPartition, leader_epoch: int) -> None:
        """Bring the log back into the leader's range."""
        try:
            start = await self._ask_offset(hosted, leader_epoch, EARLIEST)
            end = await self._ask_offset(hosted, leader_epoch, LATEST)
        except (Unavailable, Rejected) as error:
            self._log.info("leader's offsets", partition=str(hosted.name), reason=str(error))
            self._again_later(hosted, leader_epoch)
            return
        if not self._is_current(hosted, leader_epoch):
            return
        moved = reposition(hosted.log, start, end)
        try:
            match moved:
                case Truncate(offset):
                    await hosted.truncate(offset)
                case BeginAnew(offset):
                    await hosted.restart_at(offset)
                case Discard(reason):
                    self._refuse(hosted, leader_epoch, reason)
                    return
                case None:
                    pass
        except Rejected:
            return
        self._again_later(hosted, leader_epoch)

    # A history in the bucket

    def _may_skip(self, hosted: HostedPartition, taken: Append) -> bool:
        """Return whether an empty replica of a tiered topic has its first answer with records (KIP-1023)."""
        around, log = self._around, hosted.log
        return (
            bool(taken.records)
            and log.log_end_offset == 0
            and log.config.remote_storage_enable
            and around.skips_tiered()
            and around.find_history is not None
        )

    async def _begin_after_tier(
        self, hosted: HostedPartition, leader_epoch: int, fetched: Append | None = None
    ) -> None:
        """Begin after the history in the bucket; where there is none to skip, go on with the `fetched` records."""
        try:
            start, first = await self._ask_untiered(hosted, leader_epoch)
            is_skipped = first > max(start, hosted.log.log_end_offset)
            history = await self._find_history(hosted, first) if is_skipped else None
        except (Unavailable, Rejected, Corrupt) as error:
            name, reason = str(hosted.name), str(error)
            self._log.warning("history in the bucket not found", partition=name, reason=reason)
            self._again_later(hosted, leader_epoch)
            return
        if not self._is_current(hosted, leader_epoch):
            return
        if history is not None:
            try:
                await hosted.restart_after(history, start)
            except (Rejected, Corrupt) as error:
                self._log.warning("log not begun", partition=str(hosted.name), reason=str(error))
                self._again_later(hosted, leader_epoch)
                return
            self._resume(hosted, leader_epoch)
        elif fetched is not None:
            self._append(hosted, leader_epoch, fetched)
        else:
            self._again_later(hosted, leader_epoch)

    async def _ask_untiered(self, hosted: HostedPartition, leader_epoch: int) -> tuple[int, int]:
        """Return the leader's log start, and the first offset to fetch: the first that the bucket lacks, or that the
        leader's disk has.
        """
        start = await self._ask_offset(hosted, leader_epoch, EARLIEST)
        first = -1
        if self._around.skips_tiered():
            first = await self._ask_offset(hosted, leader_epoch, EARLIEST_PENDING_UPLOAD)
        if first < 0:  # not known to the leader yet
            first = await self._ask_offset(hosted, leader_epoch, EARLIEST_LOCAL)
        return start, first

    async def _find_history(self, hosted: HostedPartition, offset: int) -> TieredHistory:
        find = self._around.find_history
        if find is None:
            raise Unavailable("this broker has no bucket; set tier.url as on the leader")
        return await find(hosted, offset)

    async def learn_tiered(self) -> None:
        """Ask the leader how far the bucket has each partition (LATEST_TIERED, KIP-1005): local copies may go then.

        An answer counts in the same leader epoch and with the same settings alone: the topic may have lost its tier
        meanwhile, and have another one now.
        """
        partitions = {
            hosted.name: (hosted, hosted.replica.leader_epoch, hosted.log.config)
            for hosted in self._followed.values()
            if _may_learn(hosted.log)
        }
        if not partitions:
            return
        epochs = {name: epoch for name, (_, epoch, _) in partitions.items()}
        try:
            found = await ask_offsets(self._leader(), self._around.node_id, LATEST_TIERED, epochs)
        except (Unavailable, Rejected):
            return  # the fetches note it, and the next round asks again
        for name, (hosted, epoch, config) in partitions.items():
            newest = found.get(name)
            is_same = self._is_current(hosted, epoch) and hosted.log.config is config
            if not is_same or not isinstance(newest, int):
                continue
            if hosted.log.tiered_end <= newest < hosted.high_watermark:
                hosted.log.mark_tiered(newest + 1)

    async def _ask_offset(self, hosted: HostedPartition, leader_epoch: int, timestamp: int) -> int:
        epochs = {hosted.name: leader_epoch}
        found = await ask_offsets(self._leader(), self._around.node_id, timestamp, epochs)
        offset = found[hosted.name]
        if isinstance(offset, Rejected):
            raise offset
        return offset

    def _resume(self, hosted: HostedPartition, leader_epoch: int) -> None:
        self._fetcher.resume(hosted.key, leader_epoch)
        self._wanted.set()

    def _again_later(self, hosted: HostedPartition, leader_epoch: int) -> None:
        around = self._around
        at_ms = around.clock.steady_ms() + around.limits.backoff_ms
        self._fetcher.resume(hosted.key, leader_epoch, at_ms)
        self._wanted.set()


def _may_learn(log: PartitionLog) -> bool:
    """Return whether a local copy waits for news of the bucket."""
    if not log.config.remote_storage_enable or len(log.segments) < 2:
        return False
    # The cleaner looks at every closed segment that the bucket has, retention only at the oldest one.
    waiting = log.segments[-2 if log.config.is_compacted else 0]
    return waiting.next_offset > log.tiered_end
