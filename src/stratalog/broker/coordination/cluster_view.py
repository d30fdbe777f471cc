"""The cluster as clients see it: its brokers, its controller, and which partitions have a leader.

In: a question about the cluster. Out: its answer, from the metadata image and this broker's directories. It never
changes anything.

Kafka: `KRaftMetadataCache`.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple
from uuid import UUID

from stratalog.broker.coordination.cluster_image import ClusterImage
from stratalog.broker.coordination.registration import Registration
from stratalog.broker.partitions.hosting import Hosting
from stratalog.errors import ErrorCode
from stratalog.metadata.image import NO_LEADER, Endpoint, Image, Partition, Topic

NO_CONTROLLER: Final = -1
LiveBroker = tuple[int, str, int, str | None]


class Standing(NamedTuple):
    """A partition as clients see it: `leader` is NO_LEADER with LEADER_NOT_AVAILABLE; `offline` are replicas."""

    error: ErrorCode
    leader: int
    offline: list[int]


class CurrentLeader(NamedTuple):
    """A partition's leader, NO_LEADER for none, and its epoch."""

    node_id: int
    epoch: int


class ClusterView:
    """One broker's view. `internal_topics` are names."""

    def __init__(
        self,
        node_id: int,
        metadata: ClusterImage,
        registration: Registration,
        hosting: Hosting,
        internal_topics: frozenset[str],
    ) -> None:
        self.node_id = node_id
        self.cluster_id = metadata.cluster_id
        self.internal_topics = internal_topics
        self._metadata = metadata
        self._registration = registration
        self._hosting = hosting

    @property
    def image(self) -> Image:
        """The metadata as this broker has applied it."""
        return self._metadata.image

    def topic(self, name: str) -> Topic | None:
        """Return the topic of that name."""
        return self._metadata.topic(name)

    def live_brokers(self, listener: str, *, and_fenced: bool = False) -> list[LiveBroker]:
        """Return (node id, host, port, rack) of each live broker, for clients of `listener`; `and_fenced`: of all.

        Live are brokers that are not fenced. Where the whole cluster stops, none is left for a moment. All appear then:
        librdkafka drops every broker that an answer lacks, and after an empty one it never connects again.

        A broker without that listener appears with its first endpoint. The list is empty until this broker registered.
        """
        if not self._registration.is_complete:
            return []
        brokers = self.image.brokers.values()
        live = brokers if and_fenced else [one for one in brokers if not one.fenced]
        return [
            (broker.id, endpoint.host, endpoint.port, broker.rack)
            for broker in live or brokers
            if (endpoint := _endpoint(broker.endpoints, listener)) is not None
        ]

    def live_broker(self, node_id: int, listener: str) -> LiveBroker | None:
        """Return a broker as `live_brokers` does; None for one that is not among them."""
        brokers = self.live_brokers(listener)
        return next((broker for broker in brokers if broker[0] == node_id), None)

    def current_leader(self, topic: str | UUID, index: int) -> CurrentLeader | None:
        """Return the leader that the image names, for a client with an older one (KIP-951); None if unknown."""
        topic_id = topic if isinstance(topic, UUID) else self.image.topic_ids_by_name.get(topic)
        partition = None if topic_id is None else self.image.partition(topic_id, index)
        return (
            None if partition is None else CurrentLeader(partition.leader, partition.leader_epoch)
        )

    def controller_id(self) -> int:
        """Return the broker to which clients send requests for the controller; NO_CONTROLLER while none is active.

        That is this broker where its controller is active. Kafka returns any live broker, because each of them forwards
        (`MetadataCache.getRandomAliveBrokerId`).
        """
        live = [broker.id for broker in self.image.brokers.values() if not broker.fenced]
        return self.node_id if self.node_id in live else min(live, default=NO_CONTROLLER)

    def standing(self, topic_id: UUID, index: int, partition: Partition) -> Standing:
        """Return a partition's leader and offline replicas.

        A replica is offline where its broker is fenced or unknown, or its log directory here has failed. An offline
        leader is no leader.
        """
        offline = [one for one in partition.replicas if self._is_offline(one, topic_id, index)]
        leader = NO_LEADER if partition.leader in offline else partition.leader
        error = ErrorCode.leader_not_available if leader == NO_LEADER else ErrorCode.none
        return Standing(error, leader, offline)

    def _is_offline(self, broker_id: int, topic_id: UUID, index: int) -> bool:
        if broker_id == self.node_id:
            hosted = self._hosting.find(topic_id, index)
            return hosted is None or hosted.directory.failure is not None
        broker = self.image.brokers.get(broker_id)
        return broker is None or broker.fenced


def _endpoint(endpoints: Sequence[Endpoint], listener: str) -> Endpoint | None:
    return next((one for one in endpoints if one.name == listener), next(iter(endpoints), None))
