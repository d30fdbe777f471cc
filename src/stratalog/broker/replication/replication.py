"""The parts of one broker that follow other brokers, and that lead with followers.

In: settings, ports, and the parts that a node opens first. Out: the parts by name. It decides nothing.
"""

from stratalog.broker.background import Background
from stratalog.broker.coordination.cluster_metadata import ClusterMetadata
from stratalog.broker.partitions.hosting import Hosting
from stratalog.broker.replication.followed import Followed
from stratalog.broker.replication.isr_proposals import IsrProposals
from stratalog.broker.replication.leading import Leading
from stratalog.broker.replication.source import FindHistory
from stratalog.broker.replication.throttle import Throttle
from stratalog.config import BrokerConfig
from stratalog.ports import Outside

__all__ = ["Replication"]


class Replication:
    """`start` it once the broker is registered, `close` it at a stop, before the logs close."""

    def __init__(
        self,
        config: BrokerConfig,
        outside: Outside,
        cluster: ClusterMetadata,
        hosting: Hosting,
        background: Background,
        find_history: FindHistory | None = None,
    ) -> None:
        """`find_history` reads the bucket (`Surroundings`)."""
        image, registration, spawn = cluster.image, cluster.registration, background.spawn
        self.throttles = {
            "leader": Throttle(
                "leader",
                lambda topic: topic.leader_replication_throttled_replicas,
                config,
                outside.clock,
            ),
            "follower": Throttle(
                "follower",
                lambda topic: topic.follower_replication_throttled_replicas,
                config,
                outside.clock,
            ),
        }
        self.followed = Followed(
            config,
            outside,
            image,
            registration,
            hosting,
            self.throttles["follower"],
            spawn,
            find_history,
            cluster.answers,
        )
        self.proposals = IsrProposals(
            config.int("node.id"),
            config.int("replica.lag.time.max.ms"),
            hosting,
            image,
            registration,
            cluster.controller,
            outside.clock,
            spawn,
        )
        image.on_published.append(self.proposals.forget_fenced)
        self.leading = Leading(
            image,
            outside.clock,
            self.proposals,
            self.throttles["leader"],
            selects_by_rack=bool(config.str("replica.selector.class")),
        )
        self.close = self.followed.close
        self._background = background
        self._learns_tiered = find_history is not None
        self._tier_s = config.int("remote.log.manager.task.interval.ms") / 1000

    def configure(self, in_effect: BrokerConfig) -> None:
        """Apply the settings that may change while the broker runs."""
        self.followed.configure(in_effect)
        for throttle in self.throttles.values():
            throttle.configure(in_effect)

    async def start(self) -> None:
        """Follow other brokers; look regularly for followers that lag, and for news of the bucket."""
        await self.followed.start()
        # Twice in a lag, as Kafka does.
        self._background.repeat(self.proposals.look_at_all, self.proposals.lag_ms_max / 2000)
        if self._learns_tiered:
            self._background.repeat(self.followed.learn_tiered, self._tier_s)
