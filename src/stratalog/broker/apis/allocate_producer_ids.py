"""AllocateProducerIds (key 67), versions 0-0.

On a controller's listener only (KIP-730).
"""

from typing import NamedTuple

from stratalog.broker.coordination.controller_rpcs import producer_ids_response
from stratalog.broker.coordination.local_controller import LocalController
from stratalog.broker.network.authorizer import Operation
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    local_controller: LocalController


async def handle(call: Call[AllocateProducerIdsRequest, Needs]) -> AllocateProducerIdsResponse:
    """Reserve a block of producer ids for a broker."""
    body = call.body
    try:
        if not call.allows_cluster(Operation.CLUSTER_ACTION):
            raise Rejected(ErrorCode.cluster_authorization_failed, "CLUSTER_ACTION is not allowed")
        block = await call.needs.local_controller.allocate_producer_ids(
            body.broker_id, body.broker_epoch
        )
    except Rejected as error:
        return AllocateProducerIdsResponse(
            error_code=error.code, producer_id_start=0, producer_id_len=0
        )
    return producer_ids_response(block)
