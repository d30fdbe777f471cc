"""ExpireDelegationToken (key 40), versions 1-2.

KIP-48. v2 flexible. The token's owner and its renewers may end it; no ACL decides. Open sessions last until the
end that the token had when they began.
"""

from typing import NamedTuple

from stratalog.broker.coordination.local_controller import LocalController
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    local_controller: LocalController


class Expired(ExpireDelegationTokenResponse, frozen=True, kw_only=True, gc=False):
    """The answer, with the token's id for the audit: the request has only the token's key."""

    token_id: str


async def handle(call: Call[ExpireDelegationTokenRequest, Needs]) -> ExpireDelegationTokenResponse:
    """Let the token of this key end after a period, or remove it at once where the period is below 0."""
    body, session = call.body, call.session
    if not session.may_handle_tokens:
        code = ErrorCode.delegation_token_request_not_allowed
        return ExpireDelegationTokenResponse(error_code=code, expiry_timestamp_ms=-1)
    try:
        token = await call.needs.local_controller.expire_token(
            body.hmac, str(session.principal), body.expiry_time_period_ms
        )
    except Rejected as error:
        return ExpireDelegationTokenResponse(error_code=error.code, expiry_timestamp_ms=0)
    return Expired(
        error_code=ErrorCode.none,
        expiry_timestamp_ms=token.expiration_timestamp,
        token_id=token.token_id,
    )
