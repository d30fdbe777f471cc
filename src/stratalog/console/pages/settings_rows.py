"""Settings with their sources, as rows.

In: a resource's settings. Out: rows for a page. It never changes a setting.
"""

from collections.abc import Iterable
from typing import Any, Final

from stratalog.client.calls import ConfigEntry

__all__ = ["rows_of"]

_SOURCES: Final = {
    1: "topic",
    2: "broker, dynamic",
    3: "cluster, dynamic",
    4: "broker's file",
    5: "default",
    6: "broker's log level",
    7: "client metrics",
    8: "group",
}
"""Kafka's numbers: `DescribeConfigsResponse.ConfigSource`."""
_DEFAULT: Final = 5


def rows_of(entries: Iterable[ConfigEntry]) -> list[dict[str, Any]]:
    """Return a row for each setting, those that are not the default first."""
    rows = [
        {
            "name": one.name,
            "value": None if one.sensitive else one.value,
            "source": _SOURCES.get(one.source, str(one.source)),
            "is_default": one.source == _DEFAULT,
            "is_sensitive": one.sensitive,
            "is_read_only": one.read_only,
            "documentation": one.documentation or "",
        }
        for one in entries
    ]
    return sorted(rows, key=lambda row: (row["is_default"], row["name"]))
