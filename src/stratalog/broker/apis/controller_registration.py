"""ControllerRegistration (key 70), versions 0-0.

On a controller's listener only. Kafka: KIP-919, ControllerApis.handleControllerRegistration.
"""

from typing import NamedTuple

from stratalog.broker.coordination.controller_registration_rpc import controller_of
from stratalog.broker.coordination.local_controller import LocalController
from stratalog.broker.network.authorizer import Operation
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.messages.controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)


class Needs(NamedTuple):
    """The parts of the node that the handler works with."""

    local_controller: LocalController


async def handle(
    call: Call[ControllerRegistrationRequest, Needs],
) -> ControllerRegistrationResponse:
    """Note where a controller listens and which features it supports."""
    try:
        if not call.allows_cluster(Operation.CLUSTER_ACTION):
            raise Rejected(ErrorCode.cluster_authorization_failed, "CLUSTER_ACTION is not allowed")
        await call.needs.local_controller.register_controller(controller_of(call.body))
    except Rejected as error:
        return ControllerRegistrationResponse(error_code=error.code, error_message=error.message)
    return ControllerRegistrationResponse(error_code=ErrorCode.none, error_message=None)
