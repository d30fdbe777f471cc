"""The settings of a `client-metrics` resource (KIP-714).

In: a resource's name and its settings' text. Out: a `Subscription`, entries for DescribeConfigs, or Rejected. It knows
no client.

Names, defaults, limits and error codes are those of Apache Kafka 4.3's `ClientMetricsConfigs`. Patterns are Java's, or
refused (`java_patterns`).
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from msgspec import Struct, field

from stratalog.config.describe import ConfigEntry, ConfigSource, Synonym
from stratalog.config.java_patterns import java_pattern
from stratalog.config.kinds import INTEGER_RANGES, BadValue, Between, Kind, Setting
from stratalog.errors import ErrorCode, Rejected

__all__ = [
    "CLIENT_METRICS_SETTINGS",
    "INTERVAL_MS",
    "MATCHED",
    "Subscription",
    "describe_client_metrics",
    "parse_subscription",
]

MATCHED: Final = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
"""What `match` may compare of a client."""
INTERVAL_MS: Final = 5 * 60 * 1000
"""The push interval where no subscription says another."""

_METRICS, _INTERVAL, _MATCH = "metrics", "interval.ms", "match"
CLIENT_METRICS_SETTINGS: Final = (
    Setting(
        _INTERVAL,
        Kind.INT,
        INTERVAL_MS,
        "How often the clients push their metrics, in milliseconds.",
        Between(100, 3_600_000),
    ),
    Setting(
        _MATCH,
        Kind.LIST,
        (),
        "The clients: name=pattern, of which all must match. None: every client.",
    ),
    Setting(
        _METRICS,
        Kind.LIST,
        (),
        "Prefixes of the metrics' names; * for every metric, none for no metric.",
    ),
)
_BY_NAME: Final = {one.name: one for one in CLIENT_METRICS_SETTINGS}
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,19}")


class Subscription(Struct, frozen=True):
    """The metrics that the matching clients push. `match` is by a name of MATCHED; every pattern must match whole."""

    metrics: frozenset[str] = frozenset()
    interval_ms: int = INTERVAL_MS
    match: Mapping[str, re.Pattern[str]] = field(default_factory=dict)

    def matches(self, client: Mapping[str, str | None]) -> bool:
        """Return whether the subscription is for a client, whose attributes have the names of MATCHED."""
        return all(
            (value := client.get(name)) is not None and pattern.fullmatch(value) is not None
            for name, pattern in self.match.items()
        )


def parse_subscription(name: str, values: Mapping[str, str]) -> Subscription:
    """Return the subscription of a resource.

    Raises Rejected: INVALID_REQUEST for a name that is empty, an unknown setting and an interval beyond its limits;
    INVALID_CONFIG for text that is no value.
    """
    if not name:
        raise Rejected(ErrorCode.invalid_request, "a client-metrics resource needs a name")
    for unknown in sorted(values.keys() - _BY_NAME.keys()):
        raise Rejected(
            ErrorCode.invalid_request,
            f"unknown client-metrics setting {unknown}; known: {', '.join(_BY_NAME)}",
        )
    interval_ms = INTERVAL_MS if _INTERVAL not in values else _interval(values[_INTERVAL])
    return Subscription(
        frozenset(_items(_METRICS, values.get(_METRICS, ""))),
        interval_ms,
        dict(_pattern(one) for one in _items(_MATCH, values.get(_MATCH, ""))),
    )


def describe_client_metrics(values: Mapping[str, str]) -> list[ConfigEntry]:
    """Return every setting of a resource, in order of name."""
    return [_entry(setting, values.get(setting.name)) for setting in CLIENT_METRICS_SETTINGS]


def _entry(setting: Setting, text: str | None) -> ConfigEntry:
    own = None if text is None else setting.stored(text)
    is_default = own is None
    shown = setting.text(setting.default if own is None else own)
    source = ConfigSource.DEFAULT_CONFIG if is_default else ConfigSource.CLIENT_METRICS_CONFIG
    return ConfigEntry(
        name=setting.name,
        value=shown,
        source=source,
        is_default=is_default,
        type=setting.kind,
        doc=setting.doc,
        synonyms=() if is_default else (Synonym(setting.name, shown, source),),
        read_only=False,
        sensitive=False,
    )


def _interval(text: str) -> int:
    setting = _BY_NAME[_INTERVAL]
    try:
        value = setting.parse(text)
    except BadValue as bad:
        low, high = INTEGER_RANGES[setting.kind]
        is_number = _WHOLE.fullmatch(text.strip()) is not None and low <= int(text) <= high
        code = ErrorCode.invalid_request if is_number else ErrorCode.invalid_config
        raise Rejected(code, str(bad)) from None
    assert isinstance(value, int)
    return value


def _items(name: str, text: str) -> list[str]:
    if not text.strip():
        return []
    items = [one.strip() for one in text.split(",")]
    if "" in items:
        message = f"{name}: {text!r} is not accepted; accepted: items that are not empty"
        raise Rejected(ErrorCode.invalid_config, message)
    return items


def _pattern(text: str) -> tuple[str, re.Pattern[str]]:
    # As Java's split, which leaves out empty texts at the end.
    name, _, pattern = text.rstrip("=").partition("=")
    name, pattern = name.strip(), pattern.strip()
    if name in MATCHED and pattern and "=" not in pattern:
        with suppress(BadValue):
            return name, java_pattern(pattern)
    message = f"{_MATCH}: {text!r} is not accepted; accepted: a pattern for one of "
    raise Rejected(ErrorCode.invalid_config, message + ", ".join(f"{one}=" for one in MATCHED))
