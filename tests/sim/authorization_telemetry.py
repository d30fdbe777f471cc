"""Requests of clients' metrics (KIP-714), which need no right in Kafka.

In: nothing. Out: cases by API. It sends nothing.
"""

from uuid import UUID

from tests.sim.authorization_case import NONE, Case, case

TELEMETRY_CASES: dict[str, list[Case]] = {
    "GetTelemetrySubscriptions": [
        case(
            "get_telemetry_subscriptions",
            0,
            NONE,
            lambda _: {"client_instance_id": str(UUID(int=7))},
        )
    ],
    "PushTelemetry": [
        case(
            "push_telemetry",
            0,
            117,  # UNKNOWN_SUBSCRIPTION_ID, with rights or without
            lambda _: {
                "client_instance_id": str(UUID(int=7)),
                "subscription_id": 1,
                "terminating": False,
                "compression_type": 0,
                "metrics": b"",
            },
        )
    ],
}
