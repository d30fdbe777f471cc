"""Changes of partitions against one image: the brokers that may lead, and the rules of each topic.

In: an image, a pending change of one broker, keys of partitions. Out: records. An electorate serves one decision and
never outlives its image.

Kafka: ReplicationControlManager.generateLeaderAndIsrUpdates and its LeaderAcceptor.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from stratalog.metadata.image import (
    DIRECTORY_LOST,
    DIRECTORY_MIGRATING,
    DIRECTORY_UNASSIGNED,
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    Broker,
    Image,
    Partition,
)
from stratalog.quorum.elections import Election, Rules, Target, change_record
from stratalog.quorum.partition_index import PartitionIndex, is_alone
from stratalog.quorum.placement import default_directory
from stratalog.wire.ids import TopicIdPartition
from stratalog.wire.internal.metadata_records import PartitionChangeRecord

MIN_INSYNC_REPLICAS = "min.insync.replicas"
UNCLEAN_ELECTION = "unclean.leader.election.enable"


class ElectionDefaults(Struct, frozen=True):
    """The controller's own values of settings that a topic does not set."""

    min_insync_replicas: int = 1
    unclean_election: bool = False


class Cluster(Struct, frozen=True):
    """The inputs of a decision about brokers and partitions."""

    image: Image
    index: PartitionIndex
    defaults: Callable[[], ElectionDefaults]

    def electorate(
        self,
        *,
        leaving: int | None = None,
        joining: int | None = None,
        lost_data: int | None = None,
    ) -> "Electorate":
        """Return the electorate, where these brokers leave or join it."""
        return Electorate(
            self.image, self.defaults, leaving=leaving, joining=joining, lost_data=lost_data
        )


class _TopicRules(NamedTuple):
    min_isr: int
    is_unclean: bool


class Electorate:
    """Decides changes of partitions.

    `leaving` is a broker that must not lead from now on, `joining` a fenced one that may; `lost_data` is one that shut
    down uncleanly, and counts as leaving.
    """

    def __init__(
        self,
        image: Image,
        defaults: Callable[[], ElectionDefaults],
        *,
        leaving: int | None = None,
        joining: int | None = None,
        lost_data: int | None = None,
    ) -> None:
        self._image = image
        self._defaults = defaults()
        self._leaving = {leaving, lost_data}
        self._joining = joining
        self._lost_data = lost_data
        self._has_elr = has_elr(image)
        self._topics: dict[UUID, _TopicRules] = {}

    def change(self, key: TopicIdPartition, target: Target) -> PartitionChangeRecord | None:
        """Return the record that changes the partition, which must exist; None where nothing changes."""
        return self.change_of(
            key, self._image.topics_by_id[key.topic_id].partitions[key.partition], target
        )

    def change_of(
        self, key: TopicIdPartition, before: Partition, target: Target
    ) -> PartitionChangeRecord | None:
        """Do as `change`, for a partition that earlier records of the same decision have changed."""
        placed = before
        if target.directories:
            current = before.directories or (DIRECTORY_UNASSIGNED,) * len(before.replicas)
            by_broker = {**dict(zip(before.replicas, current, strict=True)), **target.directories}
            placed = replace(before, directories=tuple(by_broker[one] for one in before.replicas))
        rules = Rules(
            min_isr=self._topic(key.topic_id).min_isr,
            has_elr=self._has_elr,
            may_lead=partial(self._may_lead, placed),
            default_directory=self._default_directory,
        )
        return change_record(key, before, replace(target, lost_data=self._lost_data), rules)

    def update(self, keys: Iterable[TopicIdPartition]) -> list[PartitionChangeRecord]:
        """Return the records that take the leaving brokers out of these ISRs, and elect leaders where needed."""
        records = []
        for key in keys:
            before = self._image.topics_by_id[key.topic_id].partitions[key.partition]
            if self._is_alone(before):
                continue
            isr = tuple(broker for broker in before.isr if broker not in self._leaving)
            election = self.election(key.topic_id)
            record = self.change_of(key, before, Target(isr=isr, election=election))
            if record is not None:
                records.append(record)
        return records

    def _is_alone(self, partition: Partition) -> bool:
        """Return whether the leaving broker is the only replica and does not lead: it stays in the ISR."""
        return self._lost_data is None and is_alone(partition) and partition.isr[0] in self._leaving

    def election(self, topic_id: UUID) -> Election:
        """Return UNCLEAN for a topic with `unclean.leader.election.enable`, else ONLINE."""
        return Election.UNCLEAN if self._topic(topic_id).is_unclean else Election.ONLINE

    def min_isr(self, topic_id: UUID) -> int:
        """Return the topic's `min.insync.replicas`, at most its replication factor."""
        return self._topic(topic_id).min_isr

    def _topic(self, topic_id: UUID) -> _TopicRules:
        rules = self._topics.get(topic_id)
        if rules is None:
            topic = self._image.topics_by_id[topic_id]
            own = self._image.topic_configs(topic.name)
            least = int(own.get(MIN_INSYNC_REPLICAS, self._defaults.min_insync_replicas))
            unclean = own.get(UNCLEAN_ELECTION)
            first = topic.partitions[0]
            rules = self._topics[topic_id] = _TopicRules(
                min(least, len(first.replicas)),
                self._defaults.unclean_election if unclean is None else unclean.lower() == "true",
            )
        return rules

    def _may_lead(self, partition: Partition, broker_id: int) -> bool:
        broker = self._image.brokers.get(broker_id)
        if broker is None or broker_id in self._leaving or broker_id not in partition.replicas:
            return False
        if not broker.is_active and broker_id != self._joining:
            return False
        if not partition.directories:
            return True
        return is_online(broker, partition.directories[partition.replicas.index(broker_id)])

    def _default_directory(self, broker_id: int) -> UUID:
        broker = self._image.brokers.get(broker_id)
        return DIRECTORY_UNASSIGNED if broker is None else default_directory(broker)


def has_elr(image: Image) -> bool:
    """Return whether the cluster keeps eligible leader replicas (KIP-966)."""
    return image.features.get(ELIGIBLE_LEADER_REPLICAS_VERSION, 0) > 0


def is_online(broker: Broker, directory: UUID) -> bool:
    """Return whether a replica that is assigned to this directory of the broker can be read (DirectoryId.isOnline)."""
    if directory in (DIRECTORY_UNASSIGNED, DIRECTORY_MIGRATING):
        return True
    if directory == DIRECTORY_LOST:
        return False
    return not broker.directories or directory in broker.directories
