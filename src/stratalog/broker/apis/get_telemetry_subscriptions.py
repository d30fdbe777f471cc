"""GetTelemetrySubscriptions (key 71), versions 0-0.

The client's instance id, and the metrics that it shall push (KIP-714). Served where something becomes of them: with
`telemetry.series.enable` or `telemetry.otlp.url`. Like PushTelemetry it needs no right, as in Kafka.
"""

from typing import Final, NamedTuple

from stratalog.broker.network.dispatch import Call
from stratalog.broker.telemetry.telemetry import Telemetry
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.compression import GZIP, LZ4, SNAPPY, ZSTD
from stratalog.wire.ids import ZERO_ID
from stratalog.wire.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)

_CODECS: Final = (ZSTD, LZ4, GZIP, SNAPPY)
"""In the order in which Kafka prefers them."""


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    telemetry: Telemetry


def handle(
    call: Call[GetTelemetrySubscriptionsRequest, Needs],
) -> GetTelemetrySubscriptionsResponse:
    """Return the client's subscription; THROTTLING_QUOTA_EXCEEDED before its interval has passed."""
    telemetry = call.needs.telemetry
    instances, now_ms = telemetry.instances, telemetry.clock.steady_ms()
    try:
        name, found = instances.ask(call.session, call.body.client_instance_id, now_ms)
    except Rejected as refusal:
        return GetTelemetrySubscriptionsResponse(
            error_code=refusal.code,
            client_instance_id=ZERO_ID,
            subscription_id=0,
            accepted_compression_types=(),
            push_interval_ms=0,
            telemetry_max_bytes=0,
            delta_temporality=False,
            requested_metrics=(),
        )
    return GetTelemetrySubscriptionsResponse(
        error_code=ErrorCode.none,
        client_instance_id=name,
        subscription_id=found.subscription_id,
        accepted_compression_types=_CODECS,
        push_interval_ms=found.interval_ms,
        telemetry_max_bytes=instances.bytes_max,
        delta_temporality=True,
        requested_metrics=found.metrics,
    )
