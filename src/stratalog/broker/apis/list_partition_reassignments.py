"""ListPartitionReassignments (key 46), versions 0-0.

Partitions on their way to other brokers (KIP-455): on one node there are none.
"""

from typing import NamedTuple

from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode
from stratalog.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


class Needs(NamedTuple):
    """None of the broker's parts."""


def handle(
    _call: Call[ListPartitionReassignmentsRequest, Needs],
) -> ListPartitionReassignmentsResponse:
    """Nothing is under way."""
    return ListPartitionReassignmentsResponse(
        error_code=ErrorCode.none, error_message=None, topics=[]
    )
