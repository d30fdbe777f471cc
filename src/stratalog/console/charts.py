"""Draw numbers over time as small SVG lines, on the server.

In: points of one or more lines. Out: a value that a template draws and JSON shows. It writes no text into the picture:
labels stand beside it, so they stay readable at every width.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

__all__ = ["Point", "chart"]

Point = tuple[int, float]
"""A time (epoch ms) and a value."""
_WIDTH: Final = 300.0
_HEIGHT: Final = 64.0
_LINES_MAX: Final = 6
_GAP: Final = 3.0
"""A gap of three times the usual distance of points breaks a line."""


def chart(title: str, unit: str, lines: Mapping[str, Sequence[Point]]) -> dict[str, Any]:
    """Return `{title, unit, max, first_ms, last_ms, lines: [{name, last, points, path}]}`; of at most six lines."""
    shown = {name: points for name, points in list(lines.items())[:_LINES_MAX] if points}
    every = [point for points in shown.values() for point in points]
    first = min((at for at, _ in every), default=None)
    last = max((at for at, _ in every), default=None)
    top = max((value for _, value in every), default=0.0)
    return {
        "title": title,
        "unit": unit,
        "max": top,
        "first_ms": first,
        "last_ms": last,
        "left_out": max(0, len(lines) - _LINES_MAX),
        "lines": [
            {
                "name": name,
                "last": points[-1][1],
                "points": [[at, value] for at, value in points],
                "path": _path(points, first or 0, last or 0, top),
            }
            for name, points in shown.items()
        ],
    }


def _path(points: Sequence[Point], first: int, last: int, top: float) -> str:
    """Return the `d` of an SVG path in a box of 300 by 64; a lone point is a short line."""
    width = max(last - first, 1)
    steps = sorted(after[0] - before[0] for before, after in pairwise(points))
    usual = steps[len(steps) // 2] if steps else 0
    pieces = []
    before: int | None = None
    for at, value in points:
        x = (at - first) / width * _WIDTH
        y = _HEIGHT - (max(value, 0.0) / top if top else 0.0) * (_HEIGHT - 2) - 1
        is_joined = before is not None and at - before <= _GAP * usual
        pieces.append(f"{'L' if is_joined else 'M'}{x:.1f} {y:.1f}")
        if not is_joined:
            pieces.append("h0.5")
        before = at
    return "".join(pieces)
