"""ListPartitionReassignments (key 46), versions 0-0.

Partitions on their way to other brokers (KIP-455): on one node there are none.
"""

from typing import NamedTuple

from stratalog.broker.network.authorizer import Operation
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode
from stratalog.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


class Needs(NamedTuple):
    """None of the broker's parts."""


def handle(
    call: Call[ListPartitionReassignmentsRequest, Needs],
) -> ListPartitionReassignmentsResponse:
    """Nothing is under way."""
    is_allowed = call.allows_cluster(Operation.DESCRIBE)
    return ListPartitionReassignmentsResponse(
        error_code=ErrorCode.none if is_allowed else ErrorCode.cluster_authorization_failed,
        error_message=None,
        topics=[],
    )
