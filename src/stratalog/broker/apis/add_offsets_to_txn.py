"""AddOffsetsToTxn (key 25), versions 0-4.

v2 PRODUCER_FENCED in place of INVALID_PRODUCER_EPOCH. v3 flexible. v4 the same fields (KIP-890).
"""

from typing import Final, NamedTuple

from stratalog.broker.coordination.cluster_view import ClusterView
from stratalog.broker.coordination.groups import OFFSETS_TOPIC, Groups
from stratalog.broker.coordination.transactions import Transactions
from stratalog.broker.network.authorizer import Operation, Resource
from stratalog.broker.network.dispatch import Call
from stratalog.coordinators.placement import partition_for
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.ids import TopicPartition
from stratalog.wire.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)

_FENCED_FROM: Final = 2


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    cluster: ClusterView
    groups: Groups
    transactions: Transactions


async def handle(call: Call[AddOffsetsToTxnRequest, Needs]) -> AddOffsetsToTxnResponse:
    """Add the partition that keeps a group's offsets to the producer's transaction."""
    code = ErrorCode.none
    try:
        await _add(call)
    except Rejected as error:
        code = error.code
    if code is ErrorCode.producer_fenced and call.version < _FENCED_FROM:
        code = ErrorCode.invalid_producer_epoch
    return AddOffsetsToTxnResponse(error_code=code)


async def _add(call: Call[AddOffsetsToTxnRequest, Needs]) -> None:
    body, needs = call.body, call.needs
    call.authorize(Operation.WRITE, Resource.TRANSACTIONAL_ID, body.transactional_id)
    call.authorize(Operation.READ, Resource.GROUP, body.group_id)
    if not body.transactional_id:
        raise Rejected(ErrorCode.invalid_request, "the transactional id is empty")
    await needs.groups.ensure_topic()
    topic = needs.cluster.topic(OFFSETS_TOPIC)
    if topic is None:  # a client deleted the topic right after its creation
        raise Rejected(ErrorCode.coordinator_not_available, f"{OFFSETS_TOPIC} was deleted")
    index = partition_for(body.group_id, len(topic.partitions))
    await needs.transactions.add_partitions(
        body.transactional_id,
        (body.producer_id, body.producer_epoch),
        frozenset({TopicPartition(OFFSETS_TOPIC, index)}),
    )
