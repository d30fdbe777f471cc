"""BrokerHeartbeat (key 63), versions 0-2.

v1 failed log directories (KIP-858). v2 cordoned ones (KIP-1066). On a controller's listener only.
"""

from typing import NamedTuple

from stratalog.broker.coordination.controller_channel import ControllerChannel
from stratalog.broker.network.authorizer import Operation
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode, Rejected
from stratalog.quorum.controller import BrokerHeartbeat
from stratalog.wire.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    controller: ControllerChannel


async def handle(call: Call[BrokerHeartbeatRequest, Needs]) -> BrokerHeartbeatResponse:
    """Extend a broker's session; return the state that it is in now."""
    body = call.body
    cordoned = body.cordoned_log_dirs
    heartbeat = BrokerHeartbeat(
        broker_id=body.broker_id,
        broker_epoch=body.broker_epoch,
        metadata_offset=body.current_metadata_offset,
        want_fence=body.want_fence,
        want_shutdown=body.want_shut_down,
        offline_directories=tuple(body.offline_log_dirs),
        cordoned=None if cordoned is None else tuple(cordoned),
    )
    try:
        if not call.allows_cluster(Operation.CLUSTER_ACTION):
            raise Rejected(ErrorCode.cluster_authorization_failed, "CLUSTER_ACTION is not allowed")
        answer = await call.needs.controller.heartbeat(heartbeat)
    except Rejected as error:
        return BrokerHeartbeatResponse(error_code=error.code, should_shut_down=False)
    return BrokerHeartbeatResponse(
        error_code=ErrorCode.none,
        is_caught_up=answer.is_caught_up,
        is_fenced=answer.is_fenced,
        should_shut_down=answer.should_shut_down,
    )
