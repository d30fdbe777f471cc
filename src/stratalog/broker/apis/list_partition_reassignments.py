"""ListPartitionReassignments (key 46), versions 0-0.

Partitions on their way to other brokers (KIP-455): on one node there are none.
"""

from typing import Any

from stratalog.broker.api import Api, Call
from stratalog.errors import ErrorCode


def handle(call: Call) -> Any:
    """Nothing is under way."""
    return call.reply.ListPartitionReassignmentsResponse(
        error_code=ErrorCode.none, error_message=None, topics=[]
    )


API = Api("ListPartitionReassignments", 46, (0, 0), handle)
