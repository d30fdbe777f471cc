"""AlterPartitionReassignments (key 45), versions 0-1.

v1 whether a replication factor may change (KIP-860). On one node a partition is where it is to be, or cannot be there:
no reassignment is ever under way.

Codes are Kafka's (`ReplicationControlManager.alterPartitionReassignments`).
"""

from typing import NamedTuple

from stratalog.broker.coordination.cluster_view import ClusterView
from stratalog.broker.network.authorizer import Operation
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode, Rejected
from stratalog.quorum.topics import check_replicas
from stratalog.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    cluster: ClusterView


async def handle(
    call: Call[AlterPartitionReassignmentsRequest, Needs],
) -> AlterPartitionReassignmentsResponse:
    """Whether each partition's replicas are what is asked for."""
    is_allowed = call.allows_cluster(Operation.ALTER)
    return AlterPartitionReassignmentsResponse(
        error_code=ErrorCode.none if is_allowed else ErrorCode.cluster_authorization_failed,
        error_message=None,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    _row(call, topic.name, partition, is_allowed=is_allowed)
                    async for partition in call.pace.each(topic.partitions)
                ],
            )
            async for topic in call.pace.each(call.body.topics)
        ],
    )


def _row(
    call: Call[AlterPartitionReassignmentsRequest, Needs],
    name: str,
    asked: ReassignablePartition,
    *,
    is_allowed: bool,
) -> ReassignablePartitionResponse:
    code, message = ErrorCode.none, None
    try:
        if is_allowed:
            _check(call, name, asked)
        else:
            code = ErrorCode.cluster_authorization_failed
    except Rejected as error:
        code, message = error.code, error.message
    return ReassignablePartitionResponse(
        partition_index=asked.partition_index, error_code=code, error_message=message
    )


def _check(
    call: Call[AlterPartitionReassignmentsRequest, Needs], name: str, asked: ReassignablePartition
) -> None:
    metadata = call.needs.cluster
    topic, index = metadata.topic(name), asked.partition_index
    if topic is None or index not in topic.partitions:
        raise Rejected(
            ErrorCode.unknown_topic_or_partition, f"there is no partition {name}-{index}"
        )
    if asked.replicas is None:
        raise Rejected(
            ErrorCode.no_reassignment_in_progress, f"nothing moves {name}-{index} elsewhere"
        )
    replicas = tuple(asked.replicas)
    check_replicas(metadata.image, replicas, len(topic.partitions[index].replicas))
