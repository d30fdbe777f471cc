"""Limit the bytes of replicas that catch up, on the leader's side and on the follower's (KIP-73).

In: settings, partitions, bytes that were sent or fetched. Out: whether a partition must wait. It never limits a
replica that no topic names, and knows nothing of in-sync replicas: its callers ask for the others alone.

A rate permits the bytes of its window at once, and holds on average. One fetch may overdraw it; the next ones wait.

Kafka: `ReplicationQuotaManager`.
"""

from collections.abc import Callable, Sequence
from typing import Final

from stratalog.broker.partitions.pace import RateNames, quota_of
from stratalog.broker.partitions.partition import HostedPartition
from stratalog.config import BrokerConfig, LogConfig
from stratalog.config.kinds import LONG_MAX
from stratalog.ports import Clock
from stratalog.quota import ByteQuota

__all__ = ["Throttle"]

_EVERY: Final = "*"


class Throttle:
    """One side's limit: `side` is `leader` or `follower`. `bytes` counts those of throttled replicas."""

    def __init__(
        self,
        side: str,
        replicas: Callable[[LogConfig], Sequence[str]],
        config: BrokerConfig,
        clock: Clock,
    ) -> None:
        """`replicas` returns the throttled replicas of a topic, as its settings name them."""
        self.rate = LONG_MAX
        self.bytes = 0
        self._names: Final = RateNames(
            f"{side}.replication.throttled.rate",
            "replication.quota.window.num",
            "replication.quota.window.size.seconds",
        )
        self._replicas = replicas
        self._node_id = config.int("node.id")
        self._clock = clock
        self._quota: ByteQuota | None = None
        self.configure(config)

    def configure(self, config: BrokerConfig) -> None:
        """Apply the present rate."""
        if config.int(self._names.rate) != self.rate:
            self.rate = config.int(self._names.rate)
            self._quota = quota_of(config, self._names, self._clock)

    @property
    def is_spent(self) -> bool:
        """Whether the rate permits no bytes now."""
        quota = self._quota
        return quota is not None and quota.wait_ms(self._clock.steady_ms()) > 0

    def count(self, hosted: HostedPartition, size: int) -> None:
        """Count bytes of a replica, where it is throttled."""
        if self._quota is not None and self.names(hosted):
            self.bytes += size
            self._quota.spent(size)

    def names(self, hosted: HostedPartition) -> bool:
        """Return whether the topic names this broker's replica."""
        replicas = self._replicas(hosted.log.config)
        return _EVERY in replicas or f"{hosted.name.partition}:{self._node_id}" in replicas
