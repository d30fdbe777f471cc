"""ListTransactions (key 66), versions 0-2.

From KIP-664. v1 a filter by duration (KIP-994). v2 a filter by a pattern of RE2 that the whole id matches (KIP-1152).
"""

from typing import Final, NamedTuple

from stratalog.broker.coordination.transactions import Transactions
from stratalog.broker.network.authorizer import Resource
from stratalog.broker.network.dispatch import Call
from stratalog.coordinators.patterns import Pattern
from stratalog.coordinators.transactions import State, Transaction
from stratalog.errors import Rejected
from stratalog.ports import Clock
from stratalog.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)

_KNOWN: Final = {state.label for state in State} | {"Dead", "PrepareEpochFence"}
"""The names of states that a filter may have; no transaction here is ever in one of the last two."""
_Request = Call[ListTransactionsRequest, "Needs"]


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    clock: Clock
    transactions: Transactions


async def handle(call: _Request) -> ListTransactionsResponse:
    """Return the transactional ids that this broker coordinates, and the state of each."""
    states = [one async for one in call.pace.once(call.body.state_filters, str)]
    producers = {one async for one in call.pace.each(call.body.producer_id_filters)}
    pattern: Pattern | None = None
    try:
        if call.body.transactional_id_pattern:
            pattern = Pattern(call.body.transactional_id_pattern)
        found = await call.needs.transactions.listed()
    except Rejected as error:
        return ListTransactionsResponse(
            error_code=error.code, unknown_state_filters=[], transaction_states=[]
        )
    now_ms = call.needs.clock.now_ms()

    async def is_wanted(transactional_id: str, one: Transaction) -> bool:
        duration_ms = call.body.duration_filter
        return (
            (not producers or one.producer_id in producers)
            and (not states or one.state.label in states)
            and (duration_ms < 0 or now_ms - one.started_ms > duration_ms)
            and call.shows(Resource.TRANSACTIONAL_ID, transactional_id)
            and (pattern is None or await _matches(call, pattern, transactional_id))
        )

    return ListTransactionsResponse(
        error_code=0,
        unknown_state_filters=[one for one in states if one not in _KNOWN],
        transaction_states=[
            TransactionState(
                transactional_id=key, producer_id=one.producer_id, transaction_state=one.state.label
            )
            async for key, one in call.pace.each(found)
            if await is_wanted(key, one)
        ],
    )


async def _matches(call: _Request, pattern: Pattern, transactional_id: str) -> bool:
    is_match = False
    async for after_character in call.pace.each(pattern.progress(transactional_id)):
        is_match = after_character
    return is_match
