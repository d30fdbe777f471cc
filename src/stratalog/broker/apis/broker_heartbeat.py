"""BrokerHeartbeat (key 63), versions 0-2.

v1 failed log directories (KIP-858). v2 cordoned ones (KIP-1066). On a controller's listener only.
"""

from typing import NamedTuple

from stratalog.broker.coordination.controller_rpcs import heartbeat_of, heartbeat_response
from stratalog.broker.coordination.local_controller import LocalController
from stratalog.broker.network.authorizer import Operation
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    local_controller: LocalController


async def handle(call: Call[BrokerHeartbeatRequest, Needs]) -> BrokerHeartbeatResponse:
    """Extend a broker's session; return the state that it is in now."""
    try:
        if not call.allows_cluster(Operation.CLUSTER_ACTION):
            raise Rejected(ErrorCode.cluster_authorization_failed, "CLUSTER_ACTION is not allowed")
        answer = await call.needs.local_controller.heartbeat(heartbeat_of(call.body))
    except Rejected as error:
        return BrokerHeartbeatResponse(error_code=error.code, should_shut_down=False)
    return heartbeat_response(answer)
