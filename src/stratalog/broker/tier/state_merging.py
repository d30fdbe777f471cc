"""Merge a broker's part of the cluster's state with the newest version in the bucket.

In: that version, what the broker knows, the partitions of the offsets topic that it coordinates. Out: the next version.
It reads and writes nothing.
"""

from collections.abc import Collection

from msgspec import UNSET
from msgspec.structs import replace

from stratalog.broker.coordination.groups import OFFSETS_TOPIC
from stratalog.coordinators.placement import partition_for
from stratalog.tier.bucket.cluster_state import ClusterState, StatePartition

__all__ = ["merged"]


def merged(
    before: ClusterState | None, mine: ClusterState, coordinated: Collection[int]
) -> ClusterState | None:
    """Return the next version: topics and settings of `mine`, and what only other brokers know from `before`.

    In `mine` the ends of partitions are -1 where another broker leads them. `coordinated` are the partitions of the
    offsets topic whose groups `mine` has. None where `before` has newer metadata: a broker that was paused knows former
    leaders.
    """
    if before is None:
        return mine
    assert mine.metadata_offset is not UNSET, "a broker knows its metadata"
    if before.metadata_offset is not UNSET and before.metadata_offset > mine.metadata_offset:
        return None
    former = {
        (topic.topic_id, index): partition
        for topic in before.topics
        for index, partition in enumerate(topic.partitions)
    }
    topics = tuple(
        replace(
            topic,
            partitions=tuple(
                _newer(one, former.get((topic.topic_id, index)))
                for index, one in enumerate(topic.partitions)
            ),
        )
        for topic in mine.topics
    )
    count = next((len(one.partitions) for one in mine.topics if one.name == OFFSETS_TOPIC), 0)
    others = {
        group: offsets
        for group, offsets in before.groups.items()
        if count and partition_for(group, count) not in coordinated
    }
    return replace(mine, topics=topics, groups=others | mine.groups)


def _newer(mine: StatePartition, before: StatePartition | None) -> StatePartition:
    if before is None or mine.end_offset >= 0:
        return mine
    epoch = max(mine.leader_epoch, before.leader_epoch)
    return StatePartition(epoch, before.log_start_offset, before.end_offset)
