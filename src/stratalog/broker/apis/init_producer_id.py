"""InitProducerId (key 22), versions 0-5; also 6 where `transaction.two.phase.commit.enable` is true.

v2 flexible. v3 producer id and epoch in the request (KIP-360). v4 PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH. v5
the same fields (KIP-890). v6 transactions without a time-out, and those that a new producer keeps open (KIP-939).
"""

from typing import Final, NamedTuple

from stratalog.broker.coordination.producer_ids import ProducerIds
from stratalog.broker.coordination.transactions import Transactions
from stratalog.broker.network.authorizer import DENIED, Operation, Resource
from stratalog.broker.network.dispatch import Call
from stratalog.coordinators.transactions import Initialised
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

_FENCED_FROM: Final = 4


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    producer_ids: ProducerIds
    transactions: Transactions


async def handle(call: Call[InitProducerIdRequest, Needs]) -> InitProducerIdResponse:
    """Return a producer id and its epoch: always new ones without a transactional id."""
    try:
        found = await _initialise(call)
    except Rejected as error:
        found = Initialised(error=error.code)
    code = found.error
    if code is ErrorCode.producer_fenced and call.version < _FENCED_FROM:
        code = ErrorCode.invalid_producer_epoch
    return InitProducerIdResponse(
        error_code=code,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        ongoing_txn_producer_id=found.ongoing[0],
        ongoing_txn_producer_epoch=found.ongoing[1],
    )


async def _initialise(call: Call[InitProducerIdRequest, Needs]) -> Initialised:
    body = call.body
    transactional_id = body.transactional_id
    if transactional_id is None:
        # WRITE to any topic is enough (KIP-679).
        if not call.allows_cluster(Operation.IDEMPOTENT_WRITE) and not call.allows_any(
            Operation.WRITE, Resource.TOPIC
        ):
            raise Rejected(DENIED[Resource.CLUSTER], "IDEMPOTENT_WRITE CLUSTER is not allowed")
        return Initialised(await call.needs.producer_ids.next(), 0)
    call.authorize(Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id)
    if body.enable2_pc:
        call.authorize(Operation.TWO_PHASE_COMMIT, Resource.TRANSACTIONAL_ID, transactional_id)
    if transactional_id == "":
        raise Rejected(ErrorCode.invalid_request, "the transactional id is empty")
    expected = (body.producer_id, body.producer_epoch)
    if (body.producer_id < 0) != (body.producer_epoch < 0):
        raise Rejected(ErrorCode.invalid_request, f"producer id and epoch are {expected}")
    if body.keep_prepared_txn and body.producer_id >= 0:
        raise Rejected(ErrorCode.invalid_request, f"producer {expected} cannot keep a transaction")
    return await call.needs.transactions.initialise(
        transactional_id,
        body.transaction_timeout_ms,
        expected if body.producer_id >= 0 else None,
        two_phase=body.enable2_pc,
        keep=body.keep_prepared_txn,
    )
