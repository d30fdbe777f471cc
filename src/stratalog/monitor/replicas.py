"""The metrics of replication and of the quorum, for one scrape.

In: a broker's partitions, one by one; the cluster as the broker knows it. Out: samples without labels or with one. It
counts nothing between scrapes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from stratalog.broker.broker import Broker
from stratalog.broker.partitions.partition import HostedPartition
from stratalog.config.kinds import LONG_MAX
from stratalog.log.partition_log import PartitionLog
from stratalog.metadata.image import Image
from stratalog.monitor import metrics as m
from stratalog.monitor.exposition import labelled
from stratalog.monitor.metrics import Metric
from stratalog.quorum.partition_index import Origin, PartitionIndex
from stratalog.quorum.raft import ROLES

Family = tuple[Metric, list[tuple[str, float]]]


@dataclass(slots=True)
class ReplicaCounts:
    """Counts over the partitions that this broker leads."""

    image: Image
    now_ms: int
    """The steady clock's time."""
    late_ms: int
    """An open transaction without a record for longer is late."""
    led: int = 0
    reassigning: int = 0
    bytes_to_reassign: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    lag_max: int = 0
    late_transactions: int = 0

    def add(self, hosted: HostedPartition) -> None:
        """Count one partition."""
        replica = hosted.replica
        partition = self.image.partition(*hosted.key)
        if not replica.leads or partition is None:
            return
        self.led += 1
        self.late_transactions += hosted.log.producers.has_late(self.now_ms, self.late_ms)
        adding = partition.adding_replicas
        self.under_replicated += len(replica.isr) < len(replica.replicas) - len(adding)
        self.reassigning += bool(adding or partition.removing_replicas)
        self.under_min_isr += len(replica.isr) < min(
            hosted.log.config.min_insync_replicas, len(replica.replicas)
        )
        for node, follower in replica.followers.items():
            if node in adding:
                self.bytes_to_reassign += _bytes_from(hosted.log, follower.log_end_offset)
            if node in replica.isr and follower.log_end_offset >= 0:
                lag = hosted.log.log_end_offset - follower.log_end_offset
                self.lag_max = max(self.lag_max, lag)

    def families(self) -> list[Family]:
        """Return the metrics with their values."""
        return [
            (m.PARTITIONS_LED, [("", self.led)]),
            (m.UNDER_REPLICATED, [("", self.under_replicated)]),
            (m.UNDER_MIN_ISR, [("", self.under_min_isr)]),
            (m.REPLICA_LAG_MAX, [("", self.lag_max)]),
            (m.REASSIGNING, [("", self.reassigning)]),
            (m.BYTES_TO_REASSIGN, [("", self.bytes_to_reassign)]),
            (m.LATE_TRANSACTIONS, [("", self.late_transactions)]),
        ]


def _bytes_from(log: PartitionLog, offset: int) -> int:
    """Return the bytes of the local log from an offset on; of the segment with the offset, the share of its offsets."""
    found = 0
    for segment in reversed(log.segments):
        if segment.base_offset < offset:
            count = segment.next_offset - segment.base_offset
            left = max(segment.next_offset - offset, 0)
            return found + (segment.size * left // count if count else 0)
        found += segment.size
    return found


def cluster_families(broker: Broker) -> Iterator[Family]:
    """Yield the quorum's metrics; those of the whole cluster from the active controller only, as in Kafka."""
    proposals = broker.replication.proposals
    yield m.ISR_SHRINKS, [("", proposals.shrinks)]
    yield m.ISR_EXPANSIONS, [("", proposals.expansions)]
    sides = broker.replication.throttles.items()
    rates = ((side, inf if one.rate == LONG_MAX else one.rate) for side, one in sides)
    yield m.THROTTLE_RATE, [(labelled(m.THROTTLE_RATE, side), rate) for side, rate in rates]
    yield m.THROTTLED_BYTES, [(labelled(m.THROTTLED_BYTES, side), one.bytes) for side, one in sides]
    quorum = broker.quorum
    yield m.ACTIVE_CONTROLLER, [("", int(quorum.active is not None))]
    yield m.QUORUM_LEADER, [("", quorum.leader_id)]
    yield m.QUORUM_EPOCH, [("", quorum.leader_epoch)]
    yield (
        m.QUORUM_STATE,
        [(labelled(m.QUORUM_STATE, one), int(one == quorum.role)) for one in ROLES],
    )
    yield m.QUORUM_HIGH_WATERMARK, [("", quorum.high_watermark)]
    damaged = broker.answers.counts.items()
    yield m.DAMAGED_ANSWERS, [(labelled(m.DAMAGED_ANSWERS, api), count) for api, count in damaged]
    if quorum.active is not None:
        yield from _controller_families(broker.metadata.image, quorum.active.index)


def _controller_families(image: Image, index: PartitionIndex) -> Iterator[Family]:
    fenced = sum(one.fenced for one in image.brokers.values())
    states = (("active", len(image.brokers) - fenced), ("fenced", fenced))
    yield m.BROKERS, [(labelled(m.BROKERS, state), count) for state, count in states]
    yield m.LEADERLESS, [("", len(index.leaderless))]
    yield m.NOT_PREFERRED, [("", len(index.leaderless) + len(index.imbalanced))]
    yield m.ELECTIONS, [(labelled(m.ELECTIONS, one.value), index.elections[one]) for one in Origin]
