"""InitProducerId (key 22), versions 0-5.

v2 flexible. v3 producer id and epoch in the request (KIP-360). v4 producer fenced. v5 nothing on the wire (KIP-890).
Transactional ids are refused until there is a transaction coordinator.
"""

from typing import NamedTuple

from stratalog.broker.coordination.producer_ids import ProducerIds
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    producer_ids: ProducerIds


async def handle(call: Call[InitProducerIdRequest, Needs]) -> InitProducerIdResponse:
    """A producer id of its own, always a new one: without a transactional id the owner of an old one is unknown."""
    body = call.body
    if body.transactional_id == "":
        return InitProducerIdResponse(
            error_code=ErrorCode.invalid_request, producer_id=-1, producer_epoch=-1
        )
    if body.transactional_id is not None:
        return InitProducerIdResponse(
            error_code=ErrorCode.coordinator_not_available, producer_id=-1, producer_epoch=-1
        )
    try:
        producer_id = await call.needs.producer_ids.next()
    except Rejected as error:
        return InitProducerIdResponse(error_code=error.code, producer_id=-1, producer_epoch=-1)
    return InitProducerIdResponse(
        error_code=ErrorCode.none, producer_id=producer_id, producer_epoch=0
    )
