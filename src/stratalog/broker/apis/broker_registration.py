"""BrokerRegistration (key 62), versions 0-4.

v1 migrating brokers. v2 log directories (KIP-858). v3 the broker epoch of the last clean shutdown (KIP-966). v4
features with a minimum of 0. On a controller's listener only.
"""

from typing import NamedTuple

from stratalog.broker.coordination.cluster_view import ClusterView
from stratalog.broker.coordination.controller_rpcs import registration_of
from stratalog.broker.coordination.local_controller import LocalController
from stratalog.broker.network.authorizer import Operation
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    local_controller: LocalController
    cluster: ClusterView


async def handle(call: Call[BrokerRegistrationRequest, Needs]) -> BrokerRegistrationResponse:
    """Register a broker of this cluster, fenced; return its epoch."""
    body = call.body
    try:
        if not call.allows_cluster(Operation.CLUSTER_ACTION):
            raise Rejected(ErrorCode.cluster_authorization_failed, "CLUSTER_ACTION is not allowed")
        if body.cluster_id != call.needs.cluster.cluster_id:
            raise Rejected(ErrorCode.inconsistent_cluster_id, f"cluster id {body.cluster_id}")
        if body.is_migrating_zk_broker:
            raise Rejected(ErrorCode.broker_id_not_registered, "a broker that migrates")
        epoch = await call.needs.local_controller.register_broker(registration_of(body))
    except Rejected as error:
        return BrokerRegistrationResponse(error_code=error.code)
    return BrokerRegistrationResponse(error_code=ErrorCode.none, broker_epoch=epoch)
