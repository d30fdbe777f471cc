"""Translate a scrape into OpenTSDB's points.

In: Prometheus' text, a moment. Out: points as lines of OpenTSDB's `put` or as JSON objects. It opens no connection.

The text of a series is parsed once and kept, so that a point costs a look-up and one string.
Format: http://opentsdb.net/docs/build/html/user_guide/writing/index.html.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

__all__ = ["Points", "is_tag"]

_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPE: Final = re.compile(r"\\(.)")
_NOT_ALLOWED: Final = re.compile(r"[^\w./-]")
_DIGITS: Final = frozenset("0123456789")


class Points:
    """Makes points of scrapes. `as_json` chooses the HTTP protocol; `tags` are added to every point."""

    def __init__(self, tags: Mapping[str, str], *, as_json: bool) -> None:
        self._tags = {_allowed(name): _allowed(value) for name, value in tags.items()}
        self._as_json = as_json
        self._series: dict[str, tuple[str, str, str]] = {}
        self.not_numbers = 0
        """Samples left out so far: OpenTSDB has neither infinity nor NaN."""

    def of(self, lines: Iterable[str], now_s: int) -> list[str]:
        """Return the points of a scrape's lines."""
        points: list[str] = []
        kept: dict[str, tuple[str, str, str]] = {}
        for line in lines:
            if not line or line[0] == "#":
                continue
            series, _, value = line.rpartition(" ")
            if value[-1:] not in _DIGITS:
                self.not_numbers += 1
                continue
            around = self._series.get(series) or self._around(series)
            kept[series] = around
            points.append(f"{around[0]}{now_s}{around[1]}{value}{around[2]}")
        self._series = kept  # series that are gone take no memory
        return points

    def _around(self, series: str) -> tuple[str, str, str]:
        """Return the texts before the time, before the value and after it."""
        name, _, labels = series.partition("{")
        tags = {
            _allowed(label): _allowed(_ESCAPE.sub(_escaped, value))
            for label, value in _LABEL.findall(labels)
            if value
        } | self._tags
        if self._as_json:
            pairs = ",".join(f'"{label}":"{value}"' for label, value in tags.items())
            before = f'{{"metric":"{_allowed(name)}","timestamp":'
            return before, ',"value":', f',"tags":{{{pairs}}}}}'
        pairs = "".join(f" {label}={value}" for label, value in tags.items())
        return f"put {_allowed(name)} ", " ", f"{pairs}\n"


def is_tag(text: str) -> bool:
    """Return whether OpenTSDB accepts this as a tag's name or value."""
    return bool(text) and not _NOT_ALLOWED.search(text)


def _allowed(text: str) -> str:
    """Return a name with `_` for each character that OpenTSDB refuses."""
    return _NOT_ALLOWED.sub("_", text)


def _escaped(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]
