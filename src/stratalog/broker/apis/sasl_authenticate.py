"""SaslAuthenticate (key 36), versions 0-2.

v1 the session's lifetime (KIP-368). v2 flexible.
"""

import asyncio
from typing import NamedTuple

from stratalog.broker.network.dispatch import Call
from stratalog.broker.network.sasl import Users
from stratalog.broker.network.session import USER, Principal
from stratalog.config import BrokerConfig
from stratalog.errors import ErrorCode, Rejected
from stratalog.ports import Clock
from stratalog.wire.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    users: Users
    clock: Clock
    config: BrokerConfig


async def handle(call: Call[SaslAuthenticateRequest, Needs]) -> SaslAuthenticateResponse:
    """Take the client's next token; a wrong one is answered after a delay, and the connection is closed."""
    sasl, needs = call.session.sasl, call.needs
    try:
        if sasl is None:
            raise Rejected(ErrorCode.illegal_sasl_state, "the listener has no SASL")
        token, user, lifetime_ms = await sasl.authenticate(
            call.body.auth_bytes, needs.clock.steady_ms()
        )
    except Rejected as error:
        if error.code is ErrorCode.sasl_authentication_failed:
            await asyncio.sleep(
                needs.config.int("connection.failed.authentication.delay.ms") / 1000
            )
        return SaslAuthenticateResponse(
            error_code=error.code, error_message=error.message, auth_bytes=b""
        )
    if user is not None:
        call.session.principal, call.session.by_token = Principal(USER, user), sasl.by_token
    return SaslAuthenticateResponse(
        error_code=ErrorCode.none,
        error_message=None,
        auth_bytes=token,
        session_lifetime_ms=lifetime_ms,
    )
