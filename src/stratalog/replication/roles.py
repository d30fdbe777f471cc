"""Decide a broker's role for each partition that a metadata change touches: lead, follow, stop or delete.

In: a delta, the image after it, the broker's id. Out: a role for each touched partition of which the broker has, or
had, a replica. It never looks at a log or a disk, and does not know the broker's present roles.

The cost follows the change, not the size of the image. Deletions come first: a topic that is created again under the
same name has another id, and needs the name of the old one.

Kafka: `TopicsDelta.localChanges`, `LocalReplicaChanges`.
"""

from collections.abc import Iterator
from enum import Enum, auto

from msgspec import Struct

from stratalog.metadata.delta import Delta
from stratalog.metadata.image import (
    DIRECTORY_LOST,
    NO_LEADER,
    RECOVERING,
    Image,
    Partition,
    Topic,
)
from stratalog.wire.ids import TopicIdPartition

__all__ = ["Delete", "Follow", "Lead", "Role", "Stop", "Transition", "replicas_of", "roles"]


class Lead(Struct, frozen=True):
    """Lead in `leader_epoch`. `is_new`: the broker had no replica before, so its log begins empty.

    `is_recovering`: the broker was elected uncleanly, so its log may lack committed records (KIP-704).
    """

    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    is_new: bool = False
    is_recovering: bool = False


class Follow(Struct, frozen=True):
    """Follow `leader` in `leader_epoch`; `is_new` as in `Lead`."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    is_new: bool = False


class Stop(Struct, frozen=True):
    """Stop serving and keep the log: the partition has no leader, or its log directory on this broker failed."""

    leader_epoch: int


class Delete(Struct, frozen=True):
    """Delete the log: the topic is deleted, or else the replica was reassigned to another broker."""

    topic_is_deleted: bool


Role = Lead | Follow | Stop | Delete


class Transition(Enum):
    """A change in a hosted partition's role. For a leader, RESIGNED comes before the last three."""

    LED = auto()
    """The broker leads, from a new leader epoch."""
    RESIGNED = auto()
    """The broker stopped leading, and answered pending requests."""
    FOLLOWED = auto()
    """The broker follows another one, from a new leader epoch."""
    STOPPED = auto()
    """The broker stopped serving and keeps the log: no broker leads, or the log directory failed."""
    DELETED = auto()
    """The broker deletes the log: the topic was deleted, or the replica was reassigned."""


def roles(delta: Delta, after: Image, node_id: int) -> dict[TopicIdPartition, Role]:
    """Return the role of each partition that `delta` touches; `after` is the image that `delta` leads to."""
    found: dict[TopicIdPartition, Role] = {}
    for topic in delta.deleted_topics.values():
        for index, partition in topic.partitions.items():
            if node_id in partition.replicas:
                found[TopicIdPartition(topic.id, index)] = Delete(topic_is_deleted=True)
    kept: dict[TopicIdPartition, Role] = {}
    for topic_id, indexes in delta.changed_partitions.items():
        now = after.topics_by_id[topic_id].partitions
        topic_before = delta.base.topics_by_id.get(topic_id)
        before = {} if topic_before is None else topic_before.partitions
        for index in sorted(indexes):
            had_replica = index in before and node_id in before[index].replicas
            partition = now[index]
            if node_id in partition.replicas:
                key = TopicIdPartition(topic_id, index)
                kept[key] = _role(partition, node_id, is_new=not had_replica)
            elif had_replica:
                found[TopicIdPartition(topic_id, index)] = Delete(topic_is_deleted=False)
    found.update(kept)
    return found


def replicas_of(image: Image, node_id: int) -> Iterator[tuple[Topic, int, Partition]]:
    """Yield (topic, partition's index, partition) for each replica that the broker has."""
    for topic in image.topics_by_id.values():
        for index, partition in topic.partitions.items():
            if node_id in partition.replicas:
                yield topic, index, partition


def _role(now: Partition, node_id: int, *, is_new: bool) -> Lead | Follow | Stop:
    directory = now.directories[now.replicas.index(node_id)] if now.directories else None
    if directory == DIRECTORY_LOST or now.leader == NO_LEADER:
        return Stop(now.leader_epoch)
    if now.leader == node_id:
        return Lead(
            now.leader_epoch,
            now.partition_epoch,
            now.replicas,
            now.isr,
            is_new,
            now.leader_recovery_state == RECOVERING,
        )
    return Follow(now.leader, now.leader_epoch, now.replicas, now.isr, is_new)
