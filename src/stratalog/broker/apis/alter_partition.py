"""AlterPartition (key 56), versions 2-3.

v2 topic ids (KIP-841). v3 the broker epochs of the ISR's members (KIP-903). On a controller's listener only.
"""

from typing import NamedTuple

from stratalog.broker.coordination.controller_rpcs import isr_changes_of, isr_response
from stratalog.broker.coordination.local_controller import LocalController
from stratalog.broker.network.authorizer import Operation
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    local_controller: LocalController


async def handle(call: Call[AlterPartitionRequest, Needs]) -> AlterPartitionResponse:
    """Change the ISRs of partitions that the broker leads."""
    body = call.body
    requested = isr_changes_of(body, call.version)
    try:
        if not call.allows_cluster(Operation.CLUSTER_ACTION):
            raise Rejected(ErrorCode.cluster_authorization_failed, "CLUSTER_ACTION is not allowed")
        answers = await call.needs.local_controller.alter_isrs(
            body.broker_id, body.broker_epoch, requested
        )
    except Rejected as error:
        return AlterPartitionResponse(error_code=error.code, topics=[])
    return isr_response(answers)
