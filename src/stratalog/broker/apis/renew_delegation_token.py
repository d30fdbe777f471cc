"""RenewDelegationToken (key 39), versions 1-2.

KIP-48. v2 flexible. The token's owner and its renewers may renew it; no ACL decides.
"""

from typing import NamedTuple

from stratalog.broker.coordination.local_controller import LocalController
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    local_controller: LocalController


class Renewed(RenewDelegationTokenResponse, frozen=True, kw_only=True, gc=False):
    """The answer, with the token's id for the audit: the request has only the token's key."""

    token_id: str


async def handle(call: Call[RenewDelegationTokenRequest, Needs]) -> RenewDelegationTokenResponse:
    """Let the token of this key live longer."""
    body, session = call.body, call.session
    if not session.may_handle_tokens:
        code = ErrorCode.delegation_token_request_not_allowed
        return RenewDelegationTokenResponse(error_code=code, expiry_timestamp_ms=-1)
    try:
        token = await call.needs.local_controller.renew_token(
            body.hmac, str(session.principal), body.renew_period_ms
        )
    except Rejected as error:
        return RenewDelegationTokenResponse(error_code=error.code, expiry_timestamp_ms=0)
    return Renewed(
        error_code=ErrorCode.none,
        expiry_timestamp_ms=token.expiration_timestamp,
        token_id=token.token_id,
    )
