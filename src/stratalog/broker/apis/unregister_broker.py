"""UnregisterBroker (key 64), versions 0-0.

On a controller's listener only: a broker does not forward it yet.
"""

from typing import NamedTuple

from stratalog.broker.coordination.local_controller import LocalController
from stratalog.broker.network.authorizer import Operation
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    local_controller: LocalController


async def handle(call: Call[UnregisterBrokerRequest, Needs]) -> UnregisterBrokerResponse:
    """Remove a broker from the cluster."""
    try:
        if not call.allows_cluster(Operation.ALTER):
            raise Rejected(ErrorCode.cluster_authorization_failed, "ALTER is not allowed")
        await call.needs.local_controller.unregister_broker(call.body.broker_id)
    except Rejected as error:
        return UnregisterBrokerResponse(error_code=error.code, error_message=error.message)
    return UnregisterBrokerResponse(error_code=ErrorCode.none, error_message=None)
