"""Index partitions by in-sync broker and by eligible broker; list those without a leader, without the preferred leader,
and in reassignment.

In: the topics of an image once, then each delta. Out: keys of partitions, and counts of elections. It never decides
anything.

With the index, the cost of fencing a broker depends on that broker's partitions, and not on the size of the image.
Kafka: BrokersToIsrs, BrokersToElrs, `reassigningTopics` and `imbalancedPartitions` of ReplicationControlManager;
ControllerMetricsChanges.
"""

from collections import Counter
from collections.abc import Iterable
from enum import Enum
from itertools import groupby, repeat

from stratalog.metadata.delta import Delta
from stratalog.metadata.image import NO_LEADER, Image, Partition, Topic
from stratalog.wire.ids import TopicIdPartition


class Origin(Enum):
    """The place of a new leader before its election; the values are a metric's labels."""

    IN_SYNC = "in_sync"
    ELIGIBLE = "eligible"
    """It was an eligible leader replica (KIP-966)."""
    UNCLEAN = "unclean"
    """It was neither: acknowledged records may be lost."""


class PartitionIndex:
    """The partitions of one image, indexed for the controller.

    `imbalanced` has those that another replica than the first leads. It, `leaderless`, `reassigning` and `elections`
    are read only. The maps without values are sets in the order of their changes: the
    records of a decision come in an order that depends on the log alone.
    """

    def __init__(self, topics: Iterable[Topic] = ()) -> None:
        self.leaderless: dict[TopicIdPartition, None] = {}
        self.imbalanced: dict[TopicIdPartition, None] = {}
        self.reassigning: dict[TopicIdPartition, None] = {}
        self._in_sync: dict[int, dict[TopicIdPartition, None]] = {}
        self._alone: dict[int, dict[TopicIdPartition, None]] = {}
        """Partitions that `in_sync` leaves out without `alone`; they are not in `_in_sync`."""
        self._eligible: dict[int, dict[TopicIdPartition, None]] = {}
        self._led: Counter[int] = Counter()
        self.elections: Counter[Origin] = Counter()
        """Leaders that partitions of `follow` got."""
        for topic in topics:
            self.add(topic)

    def add(self, topic: Topic) -> None:
        """Add a topic with its partitions."""
        partitions = topic.partitions
        # A topic with one replica has one object for all its partitions: the loops over them are the interpreter's.
        for _, alike in groupby(partitions, lambda index: id(partitions[index])):
            indexes = list(alike)
            keys = map(TopicIdPartition, repeat(topic.id), indexes)
            self._add(dict.fromkeys(keys), partitions[indexes[0]])

    def in_sync(self, broker_id: int, *, alone: bool = True) -> list[TopicIdPartition]:
        """Return the partitions whose ISR has the broker.

        Without `alone`: not those whose only replica it is and that it does not lead. It stays in their ISR when it
        goes, so nothing is to be decided about them.
        """
        found = list(self._in_sync.get(broker_id, ()))
        return [*found, *self._alone.get(broker_id, ())] if alone else found

    def eligible(self, broker_id: int) -> list[TopicIdPartition]:
        """Return the partitions whose ELR has the broker."""
        return list(self._eligible.get(broker_id, ()))

    def leads(self, broker_id: int) -> bool:
        """Return whether the broker leads a partition."""
        return self._led[broker_id] > 0

    def follow(self, delta: Delta, after: Image) -> None:
        """Apply the changes of the delta; `after` is the image after it."""
        before = delta.base.topics_by_id
        for topic in delta.deleted_topics.values():
            for index, partition in topic.partitions.items():
                self._remove(TopicIdPartition(topic.id, index), partition)
        for topic_id, indexes in delta.changed_partitions.items():
            now = after.topics_by_id[topic_id].partitions
            if topic_id not in before:
                self.add(after.topics_by_id[topic_id])
                continue
            old_partitions = before[topic_id].partitions
            for index in indexes:
                key = TopicIdPartition(topic_id, index)
                old = old_partitions.get(index)
                if old is not None:
                    self._remove(key, old)
                    if now[index].leader not in (NO_LEADER, old.leader):
                        self.elections[_origin(old, now[index].leader)] += 1
                self._add({key: None}, now[index])

    def _add(self, keys: dict[TopicIdPartition, None], partition: Partition) -> None:
        """Add partitions that are alike."""
        in_sync = self._table_of(partition)
        for broker in partition.isr:
            in_sync.setdefault(broker, {}).update(keys)
        for broker in partition.eligible_leader_replicas:
            self._eligible.setdefault(broker, {}).update(keys)
        if partition.leader == NO_LEADER:
            self.leaderless.update(keys)
        else:
            self._led[partition.leader] += len(keys)
            if partition.leader != partition.replicas[0]:
                self.imbalanced.update(keys)
        if partition.adding_replicas or partition.removing_replicas:
            self.reassigning.update(keys)

    def _remove(self, key: TopicIdPartition, partition: Partition) -> None:
        in_sync = self._table_of(partition)
        for broker in partition.isr:
            in_sync[broker].pop(key, None)
        for broker in partition.eligible_leader_replicas:
            self._eligible[broker].pop(key, None)
        self.leaderless.pop(key, None)
        self.imbalanced.pop(key, None)
        if partition.leader != NO_LEADER:
            self._led[partition.leader] -= 1
        self.reassigning.pop(key, None)

    def _table_of(self, partition: Partition) -> dict[int, dict[TopicIdPartition, None]]:
        return self._alone if is_alone(partition) else self._in_sync


def is_alone(partition: Partition) -> bool:
    """Return whether the partition has one replica, which is in sync and does not lead."""
    return (
        partition.leader == NO_LEADER
        and len(partition.isr) == 1
        and not partition.eligible_leader_replicas
        and partition.replicas == partition.isr
    )


def _origin(before: Partition, leader: int) -> Origin:
    if leader in before.isr:
        return Origin.IN_SYNC
    return Origin.ELIGIBLE if leader in before.eligible_leader_replicas else Origin.UNCLEAN
