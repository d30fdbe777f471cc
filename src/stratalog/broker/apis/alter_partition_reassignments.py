"""AlterPartitionReassignments (key 45), versions 0-1.

v1 whether a replication factor may change (KIP-860).

Codes are Kafka's (`ReplicationControlManager.alterPartitionReassignments`).
"""

from typing import NamedTuple

from stratalog.broker.coordination.local_controller import LocalController
from stratalog.broker.network.authorizer import Operation
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode, Rejected
from stratalog.quorum.reassignment import Reassigned, Reassignment
from stratalog.wire.ids import TopicPartition
from stratalog.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    local_controller: LocalController


async def handle(
    call: Call[AlterPartitionReassignmentsRequest, Needs],
) -> AlterPartitionReassignmentsResponse:
    """Begin, replace or cancel reassignments."""
    body = call.body
    may_change = body.allow_replication_factor_change
    code = ErrorCode.none
    if not call.allows_cluster(Operation.ALTER):
        code = ErrorCode.cluster_authorization_failed
    requested = [
        Reassignment(
            TopicPartition(topic.name, one.partition_index),
            None if one.replicas is None else tuple(one.replicas),
        )
        for topic in body.topics
        async for one in call.pace.each(topic.partitions)
    ]
    results: list[Reassigned] = []
    async for some in call.pace.parts(requested):
        if code is ErrorCode.none:
            try:
                results += await call.needs.local_controller.alter_reassignments(
                    some, may_change_factor=may_change
                )
            except Rejected as error:
                code = error.code
        if code is not ErrorCode.none:
            results += [Reassigned(one.partition, code) for one in some]
    rows = iter(results)
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=may_change,
        error_code=code,
        error_message=None,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    ReassignablePartitionResponse(
                        partition_index=one.partition_index,
                        error_code=result.error,
                        error_message=result.message,
                    )
                    async for one in call.pace.each(topic.partitions)
                    for result in (next(rows),)
                ],
            )
            for topic in body.topics
        ],
    )
