"""SaslHandshake (key 17), versions 0-1.

v0: tokens come as frames without a header, and so do the answers; a refused login gets none, and the connection is
closed. Clients older than Kafka 1.0 send it. v1: tokens come in SaslAuthenticate (KIP-152).
"""

from typing import NamedTuple

from stratalog.broker.network.dispatch import Call
from stratalog.broker.network.sasl import Users
from stratalog.errors import ErrorCode
from stratalog.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    users: Users


def handle(call: Call[SaslHandshakeRequest, Needs]) -> SaslHandshakeResponse:
    """Begin an authentication; the answer names the listener's mechanisms."""
    sasl = call.session.sasl
    if sasl is None:
        return SaslHandshakeResponse(error_code=ErrorCode.illegal_sasl_state, mechanisms=[])
    code = sasl.handshake(call.body.mechanism, call.needs.users, is_bare=call.version == 0)
    return SaslHandshakeResponse(error_code=code, mechanisms=sasl.listener.mechanisms)
