"""Record which log directory of a broker holds each replica (AssignReplicasToDirs, KIP-858): refuse, or return records.

In: a broker's assignments, the image. Out: records and one code per partition. It never chooses a directory.

A replica in a directory that the broker does not have online leaves the ISR. Kafka:
ReplicationControlManager.handleAssignReplicasToDirs.
"""

from collections.abc import Mapping
from uuid import UUID

from stratalog.errors import ErrorCode
from stratalog.metadata.image import Image
from stratalog.quorum.brokers import registered
from stratalog.quorum.elections import Target
from stratalog.quorum.electorate import Cluster, is_online
from stratalog.statemachine import Decision
from stratalog.wire.ids import TopicIdPartition
from stratalog.wire.internal.metadata_records import PartitionChangeRecord


def assign_directories(
    cluster: Cluster, broker_id: int, broker_epoch: int, assigned: Mapping[TopicIdPartition, UUID]
) -> Decision[PartitionChangeRecord, dict[TopicIdPartition, ErrorCode]]:
    """Record the directories of the broker's replicas; raises Rejected(STALE_BROKER_EPOCH)."""
    image = cluster.image
    broker = registered(image, broker_id, broker_epoch)
    staying, leaving = cluster.electorate(), cluster.electorate(leaving=broker_id)
    records = []
    codes = {}
    for key, directory in assigned.items():
        codes[key] = _refusal(image, broker_id, key)
        if codes[key] is not ErrorCode.none:
            continue
        before = image.topics_by_id[key.topic_id].partitions[key.partition]
        isr = before.isr
        electorate = staying if is_online(broker, directory) else leaving
        if electorate is leaving:
            isr = tuple(member for member in isr if member != broker_id)
        target = Target(
            isr=isr,
            directories={broker_id: directory},
            election=electorate.election(key.topic_id),
        )
        record = electorate.change_of(key, before, target)
        if record is not None:
            records.append(record)
    return Decision(records, codes)


def _refusal(image: Image, broker_id: int, key: TopicIdPartition) -> ErrorCode:
    if key.topic_id not in image.topics_by_id:
        return ErrorCode.unknown_topic_id
    partition = image.partition(*key)
    if partition is None:
        return ErrorCode.unknown_topic_or_partition
    if broker_id not in partition.replicas:
        return ErrorCode.not_leader_or_follower
    return ErrorCode.none
