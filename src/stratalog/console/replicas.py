"""The metrics of replication and of the quorum, for one scrape.

In: a broker's partitions, one by one; the cluster as the broker knows it. Out: samples without labels or with one. It
counts nothing between scrapes.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from stratalog.broker.broker import Broker
from stratalog.broker.partitions.partition import HostedPartition
from stratalog.console import metrics as m
from stratalog.console.exposition import labelled
from stratalog.console.metrics import Metric
from stratalog.console.pause import Pause

Family = tuple[Metric, list[tuple[str, float]]]


@dataclass(slots=True)
class ReplicaCounts:
    """Counts over the partitions that this broker leads."""

    led: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    lag_max: int = 0

    def add(self, hosted: HostedPartition) -> None:
        """Count one partition."""
        replica = hosted.replica
        if not replica.leads:
            return
        self.led += 1
        self.under_replicated += len(replica.isr) < len(replica.replicas)
        self.under_min_isr += len(replica.isr) < min(
            hosted.log.config.min_insync_replicas, len(replica.replicas)
        )
        for node, follower in replica.followers.items():
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
        ]


async def cluster_families(broker: Broker, pause: Pause) -> AsyncIterator[Family]:
    """Yield the quorum's metrics; those of the whole cluster from the active controller only, as in Kafka."""
    proposals = broker.replication.proposals
    yield m.ISR_SHRINKS, [("", proposals.shrinks)]
    yield m.ISR_EXPANSIONS, [("", proposals.expansions)]
    quorum = broker.quorum
    yield m.ACTIVE_CONTROLLER, [("", int(quorum.active is not None))]
    yield m.QUORUM_LEADER, [("", quorum.leader_id)]
    yield m.QUORUM_EPOCH, [("", quorum.leader_epoch)]
    yield m.QUORUM_HIGH_WATERMARK, [("", quorum.high_watermark)]
    if quorum.active is None:
        return
    image = broker.metadata.image
    fenced = sum(one.fenced for one in image.brokers.values())
    states = (("active", len(image.brokers) - fenced), ("fenced", fenced))
    yield m.BROKERS, [(labelled(m.BROKERS, state), count) for state, count in states]
    leaderless = 0
    for topic in image.topics_by_id.values():
        await pause()
        leaderless += sum(one.leader < 0 for one in topic.partitions.values())
    yield m.LEADERLESS, [("", leaderless)]
