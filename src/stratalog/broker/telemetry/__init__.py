"""Metrics that clients push (KIP-714): their subscriptions, and what becomes of the metrics.

In: the sessions and pushes of clients, the cluster's `client-metrics` resources. Out: subscriptions, series for the
monitor, OTLP for a receiver. It never lets a client decide how much it keeps.
"""

from typing import Final

from stratalog.config import BrokerConfig

__all__ = ["OTLP_URL", "SERIES_ENABLE", "is_configured"]

SERIES_ENABLE: Final = "telemetry.series.enable"
OTLP_URL: Final = "telemetry.otlp.url"


def is_configured(config: BrokerConfig) -> bool:
    """Return whether anything becomes of clients' metrics: only then does a broker serve the two APIs."""
    return config.bool(SERIES_ENABLE) or bool(config.str(OTLP_URL))
