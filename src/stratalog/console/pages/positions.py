"""Offsets by partition as text, and times.

In: text from a form or a link. Out: values, and back. Raises UserError for text that is neither.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from stratalog.errors import UserError

__all__ = ["epoch_ms", "offset_of", "positions_of", "written"]

_OFFSET_MAX: Final = 2**63 - 1
_DIGITS_MAX: Final = len(str(_OFFSET_MAX))


def offset_of(name: str, text: str) -> int:
    """Return an offset. Raises UserError, which names the field and the accepted range."""
    if text.isdecimal() and len(text) <= _DIGITS_MAX and int(text) <= _OFFSET_MAX:
        return int(text)
    raise UserError(f"{name}: {text[:40]!r} is not accepted; accepted: 0 to {_OFFSET_MAX}")


def positions_of(name: str, text: str) -> dict[int, int]:
    """Return offsets by partition from `0:12,1:55`. Raises UserError, which names the field."""
    found = {}
    for pair in text.split(",") if text else ():
        index, colon, offset = pair.partition(":")
        if not (colon and index.isdecimal() and len(index) <= 9 and offset.isdecimal()):
            raise UserError(f"{name}: {pair[:40]!r} is not accepted; accepted: PARTITION:OFFSET,…")
        found[int(index)] = offset_of(name, offset)
    return found


def written(positions: Mapping[int, int]) -> str:
    """Return offsets by partition as `positions_of` reads them."""
    return ",".join(f"{index}:{offset}" for index, offset in sorted(positions.items()))


def epoch_ms(text: str) -> int:
    """Return epoch ms from `2026-11-24 10:00`, with a zone or in UTC, or from epoch ms. Raises UserError."""
    if text.isdecimal() and len(text) <= 16:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(
            f"time: {text[:40]!r} is not accepted; accepted: 2026-11-24T10:00:00Z, or epoch milliseconds"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0, int(moment.timestamp() * 1000))
