"""AssignReplicasToDirs (key 73), versions 0-0.

On a controller's listener only (KIP-858).
"""

from typing import NamedTuple

from stratalog.broker.coordination.controller_rpcs import (
    REPLICAS_MAX,
    assignment_of,
    assignment_response,
)
from stratalog.broker.coordination.local_controller import LocalController
from stratalog.broker.network.authorizer import Operation
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    local_controller: LocalController


async def handle(call: Call[AssignReplicasToDirsRequest, Needs]) -> AssignReplicasToDirsResponse:
    """Record which of its directories a broker chose for each replica."""
    body = call.body
    assigned = assignment_of(body)
    try:
        if not call.allows_cluster(Operation.CLUSTER_ACTION):
            raise Rejected(ErrorCode.cluster_authorization_failed, "CLUSTER_ACTION is not allowed")
        if len(assigned) > REPLICAS_MAX:
            raise Rejected(ErrorCode.invalid_request, f"more than {REPLICAS_MAX} replicas")
        codes = await call.needs.local_controller.assign_directories(
            body.broker_id, body.broker_epoch, assigned
        )
    except Rejected as error:
        return AssignReplicasToDirsResponse(error_code=error.code, directories=[])
    return assignment_response(body, codes)
