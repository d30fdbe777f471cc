"""PushTelemetry (key 72), versions 0-0.

A client's metrics as OTLP (KIP-714). Served as GetTelemetrySubscriptions is.
"""

from typing import NamedTuple

from stratalog.broker.network.dispatch import Call
from stratalog.broker.telemetry.telemetry import Telemetry
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    telemetry: Telemetry


async def handle(call: Call[PushTelemetryRequest, Needs]) -> PushTelemetryResponse:
    """Take a push, or refuse it with Kafka's error."""
    try:
        await call.needs.telemetry.take(call.session, call.body, call.pace)
    except Rejected as refusal:
        return PushTelemetryResponse(error_code=refusal.code)
    return PushTelemetryResponse(error_code=ErrorCode.none)
