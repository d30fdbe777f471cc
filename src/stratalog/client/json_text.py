"""Lay out JSON again without a change of its values.

In: JSON of unknown origin. Out: the same numbers, strings and names, with other blanks. It makes no number of digits:
1.10, 1E400 and a field that comes twice stay as they are.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NoReturn

__all__ = ["indented", "on_one_line"]

_TOKEN: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[][{},:]|[^][{},:"\s]+')
_INDENT: Final = "  "
_DEPTH_MAX: Final = 40
"""Levels with an indent of their own: a hostile record has a thousand levels, and a million items in the last one."""


def on_one_line(text: str) -> str:
    """Return the JSON as `json.dumps` lays it out. Raises ValueError for text that is no JSON."""
    return "".join({",": ", ", ":": ": "}.get(one, one) for one in _tokens(text))


def indented(text: str) -> str:
    """Return the JSON with a line for each field and item. Raises ValueError for text that is no JSON."""
    parts: list[str] = []
    depth, before = 0, ""
    for one in _tokens(text):
        if one in {"}", "]"}:
            depth -= 1
            parts.append("" if before in {"{", "["} else _line(depth))
        elif before in {"{", "[", ","}:
            parts.append(_line(depth))
        parts.append(": " if one == ":" else one)
        if one in {"{", "["}:
            depth += 1
        before = one
    return "".join(parts)


def _line(depth: int) -> str:
    return "\n" + _INDENT * min(depth, _DEPTH_MAX)


def _tokens(text: str) -> Iterator[str]:
    """Yield strings, signs, numbers and words. Raises ValueError."""
    try:
        json.loads(
            text,
            parse_int=_kept,
            parse_float=_kept,
            parse_constant=_refuse,
            object_pairs_hook=_kept,
        )
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    return (found[0] for found in _TOKEN.finditer(text))


def _kept(value: Any) -> Any:
    return value


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
