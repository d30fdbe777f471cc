"""ListPartitionReassignments (key 46), versions 0-0.

Partitions on their way to other brokers (KIP-455).
"""

from typing import NamedTuple

from stratalog.broker.coordination.local_controller import LocalController
from stratalog.broker.network.authorizer import Operation
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.image import Partition
from stratalog.wire.ids import TopicPartition
from stratalog.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    local_controller: LocalController


async def handle(
    call: Call[ListPartitionReassignmentsRequest, Needs],
) -> ListPartitionReassignmentsResponse:
    """Return the reassignments in progress, of some partitions or of all."""
    if not call.allows_cluster(Operation.DESCRIBE):
        return ListPartitionReassignmentsResponse(
            error_code=ErrorCode.cluster_authorization_failed, error_message=None, topics=[]
        )
    try:
        ongoing = await _ongoing(call)
    except Rejected as error:
        return ListPartitionReassignmentsResponse(
            error_code=error.code, error_message=error.message, topics=[]
        )
    found: dict[str, list[OngoingPartitionReassignment]] = {}
    async for (name, index), partition in call.pace.each(ongoing):
        row = OngoingPartitionReassignment(
            partition_index=index,
            replicas=partition.replicas,
            adding_replicas=partition.adding_replicas,
            removing_replicas=partition.removing_replicas,
        )
        found.setdefault(name, []).append(row)
    return ListPartitionReassignmentsResponse(
        error_code=ErrorCode.none,
        error_message=None,
        topics=[
            OngoingTopicReassignment(name=name, partitions=rows) for name, rows in found.items()
        ],
    )


async def _ongoing(
    call: Call[ListPartitionReassignmentsRequest, Needs],
) -> list[tuple[TopicPartition, Partition]]:
    controller = call.needs.local_controller
    if call.body.topics is None:
        return await controller.reassignments(None)
    requested = [
        TopicPartition(topic.name, index)
        for topic in call.body.topics
        async for index in call.pace.each(topic.partition_indexes)
    ]
    return [
        one
        async for some in call.pace.parts(requested)
        for one in await controller.reassignments(some)
    ]
