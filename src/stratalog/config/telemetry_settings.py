"""The settings of metrics that clients push (KIP-714): how large a push may be, and what becomes of it.

In: nothing. Out: `TELEMETRY`, a part of `broker_settings.BROKER_SETTINGS`. Data only. Apache Kafka has a plugin here
(`ClientTelemetryExporter`); docs/decisions/0046 says why ours are settings.
"""

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from stratalog.config.kinds import BadValue, Between, Kind, Setting, Shaped

__all__ = ["TELEMETRY"]

_MIB: Final = 1 << 20


def _check_url(texts: Sequence[str]) -> None:
    (text,) = texts
    parts = urlsplit(text)
    is_url = parts.scheme in {"http", "https"} and bool(parts.hostname) and "@" not in parts.netloc
    if text and not (is_url and parts.port != 0):
        raise BadValue


TELEMETRY: Final = (
    Setting(
        "telemetry.max.bytes",
        Kind.INT,
        _MIB,
        "The most bytes of one push of a client's metrics, as sent and as decompressed (KIP-714).",
        Between(1),
    ),
    Setting(
        "telemetry.series.enable",
        Kind.BOOLEAN,
        False,
        "Whether clients push their metrics and `/metrics` shows them (`monitor.listener`), at most 10,000 series of "
        "each broker. It needs `stratalog[telemetry]`.",
        ours=True,
    ),
    Setting(
        "telemetry.otlp.url",
        Kind.STRING,
        "",
        "Where the metrics that clients push are passed on, as OTLP over HTTP; empty: nowhere. It needs "
        "`stratalog[telemetry]`.",
        Shaped(_check_url, "http://host:4318/v1/metrics, https too, without a user, or nothing"),
        ours=True,
    ),
)
