"""Parse and print quantities such as 100MB, 1GiB/s and 7d, and lists of node ids.

In: text. Out: numbers, and numbers as text. Raises UserError for text that is none of these. Decimal units are powers
of 1000, those with an `i` powers of 1024.
"""

import re
from typing import Final

from stratalog.errors import UserError

__all__ = ["age_text", "node_ids", "parse_bytes", "parse_duration_s", "quantity_text"]

_BYTES: Final[dict[str, int]] = {
    "": 1,
    **{f"{prefix}": 1000**power for power, prefix in enumerate("kMGTP", 1)},
    **{f"{prefix}i": 1024**power for power, prefix in enumerate("KMGTP", 1)},
    "K": 1000,
}
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_YEARS: Final = {"y": 365 * 86400}
_NUMBER: Final = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*([A-Za-z/]*)", re.ASCII)


def parse_bytes(text: str, what: str) -> float:
    """Return bytes, or bytes a second: 100MB, 1GiB, 50MB/s, 1000. Raises UserError naming `what`."""
    number, unit = _split(text)
    unit = unit.removesuffix("/s").removesuffix("B").removesuffix("b")
    if number is None or unit not in _BYTES:
        raise UserError(f"{what}: {text!r} is no number of bytes; accepted: 500000, 100MB, 1GiB …")
    return number * _BYTES[unit]


def parse_duration_s(text: str, what: str) -> float:
    """Return seconds: 7d, 12h, 30m, 90s, 500ms, 10y. Raises UserError naming `what`."""
    number, unit = _split(text)
    units = _SECONDS | _YEARS
    if number is None or unit not in units:
        raise UserError(f"{what}: {text!r} is no time; accepted: 7d, 12h, 30m, 90s, 10y …")
    return number * units[unit]


def _split(text: str) -> tuple[float | None, str]:
    found = _NUMBER.fullmatch(text.strip())
    return (float(found[1]), found[2]) if found else (None, "")


def quantity_text(value: float, unit: str) -> str:
    """Return a value for people: bytes in decimal units, seconds in the largest that fit."""
    match unit:
        case "bytes" | "bytes/s":
            return _scaled(value) + unit.removeprefix("bytes")
        case "s":
            return _duration(value)
        case "x":
            return f"{value:,.4g}x"
        case "%":
            return f"+{value:.3g} %"
        case "":
            return f"{value:,.6g}"
        case _:
            return f"{value:,.2f} {unit}"


def _scaled(value: float) -> str:
    for power, prefix in ((5, "P"), (4, "T"), (3, "G"), (2, "M"), (1, "k")):
        if value >= 1000**power:
            return f"{value / 1000**power:.4g} {prefix}B"
    return f"{value:.4g} B"


def _duration(seconds: float) -> str:
    text = f"{seconds:,.3g} s" if seconds < 10 else f"{seconds:,.0f} s"
    for unit, name in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{text} ({seconds / unit:,.3g} {name})"
    return text


def age_text(ms: int) -> str:
    """Return a time of `ms` milliseconds in its largest unit: `3 hours`, `5 seconds`."""
    seconds = max(0, ms) // 1000
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}s"
    return f"{seconds} second{'s' if seconds != 1 else ''}"


def node_ids(option: str, text: str) -> tuple[int, ...]:
    """Return the ids in `1,2,3`. Raises UserError, which names the option."""
    words = [word.strip() for word in text.split(",")] if text else []
    if not all(word.isdecimal() for word in words) or len(set(words)) < len(words):
        raise UserError(f"{option}: {text!r} is not accepted; accepted: node ids, each once: 1,2,3")
    return tuple(map(int, words))
