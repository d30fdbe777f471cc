"""Compare the settings of brokers.

In: each broker's settings. Out: those that differ where they should be equal. It never judges a value.
"""

from collections.abc import Mapping
from typing import Final

__all__ = ["differing"]

_OWN: Final = frozenset(
    "broker.id broker.rack cordoned.log.dirs log.dir log.dirs metadata.log.dir node.id process.roles".split()
)
"""Settings in which brokers may differ, beside listeners, ports and files of their own."""
_OWN_PARTS: Final = ("listener", "keystore", "truststore", "jaas", "audit.log.path")


def differing(
    settings: Mapping[int, Mapping[str, str | None]],
) -> dict[str, dict[int, str | None]]:
    """Return, by name, the values by broker of each setting that differs between brokers that have it."""
    values: dict[str, dict[int, str | None]] = {}
    for node_id, of_broker in settings.items():
        for name, value in of_broker.items():
            values.setdefault(name, {})[node_id] = value
    return {
        name: of
        for name, of in sorted(values.items())
        if len(set(of.values())) > 1 and not _is_own(name)
    }


def _is_own(name: str) -> bool:
    return name in _OWN or any(part in name for part in _OWN_PARTS)
