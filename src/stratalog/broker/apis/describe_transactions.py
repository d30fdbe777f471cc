"""DescribeTransactions (key 65), versions 0-0.

From KIP-664.
"""

from typing import NamedTuple

from stratalog.broker.coordination.transactions import Transactions
from stratalog.broker.network.authorizer import Operation, Resource
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)

_Request = Call[DescribeTransactionsRequest, "Needs"]


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    transactions: Transactions


async def handle(call: _Request) -> DescribeTransactionsResponse:
    """Return the last transaction of each transactional id, with the partitions that it still has."""
    named = call.body.transactional_ids
    return DescribeTransactionsResponse(
        transaction_states=[await _described(call, one) async for one in call.pace.each(named)]
    )


async def _described(call: _Request, transactional_id: str) -> TransactionState:
    try:
        call.authorize(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, transactional_id)
        if not transactional_id:
            raise Rejected(ErrorCode.invalid_request, "the transactional id is empty")
        found = await call.needs.transactions.describe(transactional_id)
    except Rejected as error:
        return TransactionState(
            error_code=error.code,
            transactional_id=transactional_id,
            transaction_state="",
            transaction_timeout_ms=0,
            transaction_start_time_ms=0,
            producer_id=0,
            producer_epoch=0,
            topics=[],
        )
    topics: dict[str, list[int]] = {}
    async for topic, index in call.pace.each(sorted(found.partitions)):
        topics.setdefault(topic, []).append(index)
    return TransactionState(
        error_code=ErrorCode.none,
        transactional_id=transactional_id,
        transaction_state=found.state.label,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.started_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=[
            TopicData(topic=topic, partitions=indexes)
            for topic, indexes in topics.items()
            if call.allows(Operation.DESCRIBE, Resource.TOPIC, topic)
        ],
    )
