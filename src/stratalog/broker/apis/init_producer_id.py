"""InitProducerId (key 22), versions 0-5.

v2 flexible. v3 producer id and epoch in the request (KIP-360). v4 producer fenced. v5 nothing on the wire (KIP-890).
Transactional ids are refused until there is a transaction coordinator.
"""

from typing import Any

from stratalog.broker.api import Api, Call
from stratalog.errors import ErrorCode

_EPOCH_MAX = (
    32_766  # Kafka never hands out 32767: it is what an exhausted producer fences itself with
)


async def handle(call: Call) -> Any:
    """A producer id of its own for an idempotent producer, or its next epoch."""
    body, reply = call.body, call.reply
    if body.transactional_id is not None:
        return reply.InitProducerIdResponse(
            error_code=ErrorCode.coordinator_not_available, producer_id=-1, producer_epoch=-1
        )
    current = getattr(body, "producer_id", -1), getattr(body, "producer_epoch", -1)
    if current[0] >= 0 and 0 <= current[1] < _EPOCH_MAX:
        return reply.InitProducerIdResponse(
            error_code=ErrorCode.none, producer_id=current[0], producer_epoch=current[1] + 1
        )
    producer_id = await call.broker.next_producer_id()
    return reply.InitProducerIdResponse(
        error_code=ErrorCode.none, producer_id=producer_id, producer_epoch=0
    )


API = Api("InitProducerId", 22, (0, 5), handle)
