"""A leader's side of its followers' fetches.

In: the partitions of a follower's fetch; a consumer's rack. Out: the follower's recorded offset; an ISR to propose
where it should join; the follower that the consumer had better read from. It reads no log and sends nothing.

Kafka: `Partition.fetchRecords`, `updateFollowerFetchState`, `Replica.updateFetchStateOrThrow`.
"""

from typing import Final

from stratalog.broker.coordination.cluster_image import ClusterImage
from stratalog.broker.partitions.partition import HostedPartition
from stratalog.broker.replication.isr_proposals import IsrProposals
from stratalog.broker.replication.throttle import Throttle
from stratalog.errors import ErrorCode, Rejected
from stratalog.ports import Clock
from stratalog.replication.partition import NO_EPOCH
from stratalog.replication.selection import nearest_follower
from stratalog.replication.session_changes import Changes
from stratalog.wire.messages.fetch import FetchPartition

__all__ = ["Follower", "Leading"]


class Leading:
    """The followers of the partitions that this broker leads."""

    def __init__(
        self,
        image: ClusterImage,
        clock: Clock,
        proposals: IsrProposals,
        throttle: Throttle,
        *,
        selects_by_rack: bool,
    ) -> None:
        """`selects_by_rack`: `replica.selector.class` is set."""
        self.selects_by_rack: Final = selects_by_rack
        self._throttle = throttle
        self._image = image
        self._clock = clock
        self._proposals = proposals

    def follower(self, node_id: int, broker_epoch: int) -> "Follower":
        """Return the broker that sends a fetch now; `broker_epoch` is the incarnation that it names (KIP-903)."""
        broker = self._image.image.brokers.get(node_id)
        known_epoch = NO_EPOCH if broker is None else broker.epoch
        may_join = (
            broker is not None and broker.is_active and broker_epoch in (NO_EPOCH, known_epoch)
        )
        return Follower(
            node_id,
            broker_epoch,
            self._proposals,
            self._throttle,
            now_ms=self._clock.steady_ms(),
            may_join=may_join,
            is_stale=NO_EPOCH < broker_epoch < known_epoch,
        )

    def nearest(self, hosted: HostedPartition, rack: str, offset: int) -> int | None:
        """Return the follower from which a consumer in `rack` reads; None for this broker (KIP-392)."""
        return nearest_follower(hosted.replica, self._rack_of, rack, offset)

    def _rack_of(self, node_id: int) -> str | None:
        broker = self._image.image.brokers.get(node_id)
        return broker.rack if broker is not None and broker.is_active else None


class Follower:
    """A broker, for one fetch."""

    __slots__ = (
        "_broker_epoch",
        "_is_stale",
        "_may_join",
        "_now_ms",
        "_proposals",
        "_throttle",
        "is_noted",
        "node_id",
    )

    def __init__(  # noqa: PLR0913 - what one fetch is made of
        self,
        node_id: int,
        broker_epoch: int,
        proposals: IsrProposals,
        throttle: Throttle,
        *,
        now_ms: int,
        may_join: bool,
        is_stale: bool,
    ) -> None:
        """`is_stale`: a later incarnation of the broker is registered."""
        self.node_id: Final = node_id
        self._broker_epoch = broker_epoch
        self._proposals = proposals
        self._throttle = throttle
        self._now_ms = now_ms
        self._may_join: Final = may_join
        self._is_stale: Final = is_stale
        self.is_noted = False
        """Whether the fetch's offsets are recorded: a waiting fetch reads again, without news."""

    def continues(self, changes: Changes) -> None:
        """Note a fetch of this broker's session. After a change of the broker itself it looks at every partition."""
        changes.fetched_ms = self._now_ms
        identity = (self.node_id, self._broker_epoch, self._may_join)
        if changes.identity != identity:
            changes.identity = identity
            changes.mark_all()

    def fetches(self, hosted: HostedPartition, wanted: FetchPartition) -> None:
        """Record the follower's offset in a partition.

        A newer high watermark is no reason to answer: each append would take one more fetch, with an answer without
        records (KAFKA-9952). It comes with the next records, or after `replica.fetch.wait.max.ms`.

        Raises Rejected: NOT_LEADER_OR_FOLLOWER to an earlier incarnation, UNKNOWN_LEADER_EPOCH to a broker without a
        replica, OFFSET_MOVED_TO_TIERED_STORAGE where only the bucket has the offset.
        """
        replica, log = hosted.replica, hosted.log
        offset = wanted.fetch_offset
        if self.is_noted or not log.log_start_offset <= offset <= log.log_end_offset:
            return  # the read refuses what is out of range
        if self._is_stale:
            reason = f"broker {self.node_id} has a later epoch than {self._broker_epoch}"
            raise Rejected(ErrorCode.not_leader_or_follower, reason)
        if offset < log.local_start_offset:
            raise Rejected(
                ErrorCode.offset_moved_to_tiered_storage,
                f"{hosted.name}: offset {offset} is in the bucket alone",
            )
        moved = replica.on_follower_fetch(
            self.node_id,
            offset,
            self._now_ms,
            log_start_offset=wanted.log_start_offset,
            lag_ms_max=self._proposals.lag_ms_max,
            broker_epoch=self._broker_epoch,
            may_join=self._may_join,
        )
        if moved:
            hosted.advanced()
        if self._may_join and self.node_id not in replica.isr:
            self._proposals.look(hosted)

    def end_of(self, hosted: HostedPartition) -> int:
        """Return the offset below which the follower may read: 0 while a throttle holds it up, else the log's end.

        In-sync replicas are never held up.
        """
        throttle = self._throttle
        if throttle.is_spent and self.node_id not in hosted.replica.isr and throttle.names(hosted):
            return 0
        return hosted.log.log_end_offset

    def sent(self, hosted: HostedPartition, size: int) -> None:
        """Count bytes of a partition in an answer."""
        hosted.metrics.replication_bytes_out += size
        self._throttle.count(hosted, size)
