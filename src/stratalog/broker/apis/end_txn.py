"""EndTxn (key 26), versions 0-5.

v2 PRODUCER_FENCED in place of INVALID_PRODUCER_EPOCH. v3 flexible. v4 the same fields. v5 the producer's id and epoch
for its next transaction (KIP-890): clients use it where `transaction.version` is 2.
"""

from typing import Final, NamedTuple

from stratalog.broker.coordination.transactions import Transactions
from stratalog.broker.network.authorizer import Operation, Resource
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.messages.end_txn import EndTxnRequest, EndTxnResponse

_FENCED_FROM: Final = 2
_RAISES_FROM: Final = 5


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    transactions: Transactions


async def handle(call: Call[EndTxnRequest, Needs]) -> EndTxnResponse:
    """Commit or abort the producer's transaction; answer once that is decided for good."""
    body = call.body
    code = ErrorCode.none
    renewed = (-1, -1)
    try:
        call.authorize(Operation.WRITE, Resource.TRANSACTIONAL_ID, body.transactional_id)
        if not body.transactional_id:
            raise Rejected(ErrorCode.invalid_request, "the transactional id is empty")
        producer = (body.producer_id, body.producer_epoch)
        transactions, name = call.needs.transactions, body.transactional_id
        if call.version >= _RAISES_FROM:
            renewed = await transactions.end_raised(name, producer, commit=body.committed)
        else:
            await transactions.end(name, producer, commit=body.committed)
    except Rejected as error:
        code = error.code
    if code is ErrorCode.producer_fenced and call.version < _FENCED_FROM:
        code = ErrorCode.invalid_producer_epoch
    producer_id, epoch = renewed
    return EndTxnResponse(error_code=code, producer_id=producer_id, producer_epoch=epoch)
