"""AssignReplicasToDirs (key 73), versions 0-0.

On a controller's listener only (KIP-858).
"""

from typing import Final, NamedTuple

from stratalog.broker.coordination.controller_channel import ControllerChannel
from stratalog.broker.network.authorizer import Operation
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.ids import TopicIdPartition
from stratalog.wire.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    AssignReplicasToDirsResponseDirectoryData,
    AssignReplicasToDirsResponsePartitionData,
    AssignReplicasToDirsResponseTopicData,
)

_REPLICAS_MAX: Final = 2250
"""Kafka: AssignReplicasToDirsRequest.MAX_ASSIGNMENTS_PER_REQUEST."""


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    controller: ControllerChannel


async def handle(call: Call[AssignReplicasToDirsRequest, Needs]) -> AssignReplicasToDirsResponse:
    """Note in which of its directories a broker has each replica."""
    body = call.body
    assigned = {
        TopicIdPartition(topic.topic_id, partition.partition_index): directory.id
        for directory in body.directories
        for topic in directory.topics
        for partition in topic.partitions
    }
    try:
        if not call.allows_cluster(Operation.CLUSTER_ACTION):
            raise Rejected(ErrorCode.cluster_authorization_failed, "CLUSTER_ACTION is not allowed")
        if len(assigned) > _REPLICAS_MAX:
            raise Rejected(ErrorCode.invalid_request, f"more than {_REPLICAS_MAX} replicas")
        codes = await call.needs.controller.assign_directories(
            body.broker_id, body.broker_epoch, assigned
        )
    except Rejected as error:
        return AssignReplicasToDirsResponse(error_code=error.code, directories=[])
    return AssignReplicasToDirsResponse(
        error_code=ErrorCode.none,
        directories=[
            AssignReplicasToDirsResponseDirectoryData(
                id=directory.id,
                topics=[
                    AssignReplicasToDirsResponseTopicData(
                        topic_id=topic.topic_id,
                        partitions=[
                            AssignReplicasToDirsResponsePartitionData(
                                partition_index=one.partition_index,
                                error_code=codes[
                                    TopicIdPartition(topic.topic_id, one.partition_index)
                                ],
                            )
                            for one in topic.partitions
                        ],
                    )
                    for topic in directory.topics
                ],
            )
            for directory in body.directories
        ],
    )
