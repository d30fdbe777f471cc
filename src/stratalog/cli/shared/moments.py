"""Read moments as people write them: @MS, 2026-11-24T10:00, "2 hours ago".

In: text, the time now. Out: epoch milliseconds, or None for text that is no moment. It never reads a clock.
"""

import re
from datetime import UTC, datetime
from typing import Final

__all__ = ["ACCEPTED", "moment_ms"]

ACCEPTED: Final = "@MS, 2026-11-24T10:00 (UTC unless it has a zone), 2 hours ago"
_AGO: Final = re.compile(r"(\d{1,9}) ?([a-z]+) ago", re.ASCII)
_SECOND_MS: Final = 1000
_UNITS: Final = {
    "second": _SECOND_MS,
    "minute": 60 * _SECOND_MS,
    "hour": 3600 * _SECOND_MS,
    "day": 86_400 * _SECOND_MS,
    "week": 7 * 86_400 * _SECOND_MS,
}
_SHORT: Final = {
    "s": "second",
    "min": "minute",
    "m": "minute",
    "h": "hour",
    "d": "day",
    "w": "week",
}
_INT64_DIGITS: Final = 19


def moment_ms(text: str, now_ms: int) -> int | None:
    """Return epoch ms, at least 0; None for text that is no moment. A time without a zone is in UTC."""
    if text.startswith("@"):
        digits = text[1:]
        is_number = digits.isdecimal() and len(digits) <= _INT64_DIGITS and int(digits) < 1 << 63
        return int(digits) if is_number else None
    ago = _AGO.fullmatch(text.strip().lower())
    if ago is not None:
        unit = _SHORT.get(ago[2], ago[2].removesuffix("s"))
        return max(0, now_ms - int(ago[1]) * _UNITS[unit]) if unit in _UNITS else None
    if "-" not in text:  # fromisoformat reads 20261124 too, which is an offset
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0, int(moment.timestamp() * _SECOND_MS))
