"""Envelope (key 58), versions 0-0.

A client's request that a broker forwards, with the client's principal and address (KIP-590). On a controller's listener
only.
"""

from typing import NamedTuple

from stratalog.broker.coordination.forwarding import Forwarding, forwarded_session
from stratalog.broker.network.authorizer import Operation
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    forwarding: Forwarding


async def handle(call: Call[EnvelopeRequest, Needs]) -> EnvelopeResponse:
    """Answer the request inside, on behalf of the broker's client."""
    body = call.body
    try:
        if not call.allows_cluster(Operation.CLUSTER_ACTION):
            raise Rejected(ErrorCode.cluster_authorization_failed, "CLUSTER_ACTION is not allowed")
        session = forwarded_session(call.session, body.request_principal, body.client_host_address)
        response = await call.needs.forwarding.serve(session, body.request_data)
    except Rejected as error:
        return EnvelopeResponse(error_code=error.code)
    return EnvelopeResponse(error_code=ErrorCode.none, response_data=response)
