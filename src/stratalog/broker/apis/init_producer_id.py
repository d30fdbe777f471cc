"""InitProducerId (key 22), versions 0-5.

v2 flexible. v3 producer id and epoch in the request (KIP-360). v4 producer fenced. v5 the same fields (KIP-890). The
broker refuses transactional ids until it has a transaction coordinator.
"""

from typing import NamedTuple

from stratalog.broker.coordination.producer_ids import ProducerIds
from stratalog.broker.network.authorizer import DENIED, Operation, Resource
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    producer_ids: ProducerIds


async def handle(call: Call[InitProducerIdRequest, Needs]) -> InitProducerIdResponse:
    """Return a new producer id for each request: without a transactional id the owner of an old id is unknown."""
    try:
        _check(call)
        producer_id = await call.needs.producer_ids.next()
    except Rejected as error:
        return InitProducerIdResponse(error_code=error.code, producer_id=-1, producer_epoch=-1)
    return InitProducerIdResponse(
        error_code=ErrorCode.none, producer_id=producer_id, producer_epoch=0
    )


def _check(call: Call[InitProducerIdRequest, Needs]) -> None:
    """Raise Rejected for a transactional id, and for a client that may not produce."""
    transactional_id = call.body.transactional_id
    if transactional_id is None:
        # WRITE to any topic is enough (KIP-679).
        if not call.allows_cluster(Operation.IDEMPOTENT_WRITE) and not call.allows_any(
            Operation.WRITE, Resource.TOPIC
        ):
            raise Rejected(DENIED[Resource.CLUSTER], "IDEMPOTENT_WRITE CLUSTER is not allowed")
        return
    call.authorize(Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id)
    if transactional_id == "":
        raise Rejected(ErrorCode.invalid_request, "the transactional id is empty")
    raise Rejected(ErrorCode.coordinator_not_available, "there are no transactions here yet")
