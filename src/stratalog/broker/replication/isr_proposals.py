"""Propose changed ISRs to the controller (AlterPartition, KIP-497).

In: partitions whose followers fetched, or stopped fetching. Out: one request at a time to the controller, with every
pending change, and its decisions for the partitions. It never changes an ISR: the controller does.

A change that the controller may have accepted stays proposed until an answer or metadata shows the decision: the high
watermark waits for its members. A request that failed is repeated.

Kafka: `AlterPartitionManager`, `Partition.maybeExpandIsr`, `maybeShrinkIsr`.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, NamedTuple

import structlog

from stratalog.broker.coordination.cluster_image import ClusterImage
from stratalog.broker.coordination.controller_channel import ControllerChannel
from stratalog.broker.coordination.registration import Registration
from stratalog.broker.partitions.hosted_partitions import HostedPartitions
from stratalog.broker.partitions.partition import HostedPartition
from stratalog.broker.slices import slices
from stratalog.errors import ErrorCode, Rejected, Unavailable
from stratalog.ports import Clock
from stratalog.quorum.isr import ANY_EPOCH, IsrAnswer, IsrChange
from stratalog.wire.ids import TopicIdPartition

__all__ = ["IsrProposals"]

_RETRY_S: Final = 0.05
_LOOKED_AT_ONCE: Final = 1000


class _Proposal(NamedTuple):
    """A proposed change, and the ISR before it."""

    change: IsrChange
    before: tuple[int, ...]


class IsrProposals:
    """The proposals of one broker. `shrinks` and `expansions` count accepted ones."""

    def __init__(  # noqa: PLR0913, PLR0917 - its parts
        self,
        node_id: int,
        lag_ms_max: int,
        hosting: HostedPartitions,
        image: ClusterImage,
        registration: Registration,
        controller: ControllerChannel,
        clock: Clock,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """`lag_ms_max` is `replica.lag.time.max.ms`."""
        self.lag_ms_max: Final = lag_ms_max
        self.shrinks = 0
        self.expansions = 0
        self._node_id = node_id
        self._hosting = hosting
        self._image = image
        self._active: frozenset[int] = frozenset()
        self._registration = registration
        self._controller = controller
        self._clock = clock
        self._spawn = spawn
        self._unsent: dict[TopicIdPartition, _Proposal] = {}
        self._is_sending = False
        self._is_failing = False
        self._log = structlog.get_logger()

    def look(self, hosted: HostedPartition) -> None:
        """Propose a changed ISR for a partition that this broker leads, if it needs one."""
        replica = hosted.replica
        before = replica.high_watermark
        isr = replica.propose_isr(self._clock.steady_ms(), self.lag_ms_max)
        if replica.high_watermark > before:
            hosted.advanced()
        if isr is None:
            return
        members = tuple([(one, self._epoch_of(hosted, one)) for one in isr])
        change = IsrChange(hosted.key, replica.leader_epoch, replica.partition_epoch, members)
        self._unsent[hosted.key] = _Proposal(change, replica.isr)
        if not self._is_sending:
            self._is_sending = True
            self._spawn(self._send())

    async def look_at_all(self) -> None:
        """Check every partition that this broker leads: only this check notices a follower that stopped fetching."""
        await self._each_led(self.look)

    def forget_fenced(self) -> None:
        """Where brokers were fenced, let no high watermark wait for them; the controller shrinks the ISR."""
        image = self._image.image
        active = frozenset(one for one, broker in image.brokers.items() if broker.is_active)
        fenced, self._active = self._active - active, active
        if fenced:
            self._spawn(self._each_led(partial(self._forget, fenced)))

    @staticmethod
    def _forget(fenced: frozenset[int], hosted: HostedPartition) -> None:
        if hosted.replica.on_inactive(fenced):
            hosted.advanced()

    async def _each_led(self, act: Callable[[HostedPartition], None]) -> None:
        for part in slices(self._hosting.all(), _LOOKED_AT_ONCE):
            for hosted in part:
                if hosted.replica.leads and hosted.replica.followers and not hosted.deleted:
                    act(hosted)
            await asyncio.sleep(0)

    def _epoch_of(self, hosted: HostedPartition, member: int) -> int:
        if member == self._node_id:
            return self._registration.broker_epoch
        follower = hosted.replica.followers.get(member)
        return ANY_EPOCH if follower is None else follower.broker_epoch

    async def _send(self) -> None:
        """Send pending proposals, one request after another, until none is left."""
        try:
            while self._unsent:
                sent, self._unsent = self._unsent, {}
                changes = [one.change for one in sent.values()]
                try:
                    answers = await self._controller.alter_isrs(
                        self._node_id, self._registration.broker_epoch, changes
                    )
                except (Rejected, Unavailable) as error:
                    self._note_failure(error)
                    self._unsent = {**sent, **self._unsent}
                    self._drop_outdated()
                    await asyncio.sleep(_RETRY_S)
                    continue
                self._is_failing = False
                for answer in answers:
                    self._take(sent[answer.key], answer)
        finally:
            self._is_sending = False

    def _note_failure(self, error: Rejected | Unavailable) -> None:
        if not self._is_failing:
            self._is_failing = True
            self._log.warning("isr not altered", reason=str(error))

    def _drop_outdated(self) -> None:
        """Drop outdated proposals: metadata has decided, or another broker leads."""
        self._unsent = {key: one for key, one in self._unsent.items() if self._is_open(one.change)}

    def _is_open(self, change: IsrChange) -> bool:
        """Return whether the leader still waits for this change."""
        hosted = self._hosting.by_id.get(change.key)
        if hosted is None or not hosted.replica.leads or hosted.replica.proposed is None:
            return False
        replica = hosted.replica
        return (replica.leader_epoch, replica.partition_epoch) == (
            change.leader_epoch,
            change.partition_epoch,
        )

    def _take(self, proposal: _Proposal, answer: IsrAnswer) -> None:
        change, before = proposal
        if answer.partition is not None:
            self._count(change, before)
        hosted = self._hosting.by_id.get(change.key)
        if hosted is None or not hosted.replica.leads:
            return
        replica, decided = hosted.replica, answer.partition
        if decided is not None and decided.leader_epoch == replica.leader_epoch:
            replica.on_isr_decided(decided.isr, decided.partition_epoch)
        elif answer.error is ErrorCode.ineligible_replica and self._is_open(change):
            replica.on_isr_refused()
        elif answer.error is ErrorCode.not_controller:
            self._unsent.setdefault(change.key, proposal)  # another controller decides
            return
        else:
            return  # metadata brings what the controller knows and this broker does not
        hosted.advanced()  # also where nothing more is committed: a follower that left the ISR may join again

    def _count(self, change: IsrChange, before: tuple[int, ...]) -> None:
        isr = [member for member, _ in change.members]
        self.shrinks += len(isr) < len(before)
        self.expansions += len(isr) > len(before)
        hosted = self._hosting.by_id.get(change.key)
        name = "" if hosted is None else str(hosted.name)
        self._log.info("isr altered", partition=name, before=list(before), isr=isr)
