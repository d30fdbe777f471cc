"""What the bytes in a bucket cost, by the operator's own price.

In: the names and values of a price file. Out: amounts a month. It asks no vendor, and knows no price by itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Final

from stratalog.errors import UserError

__all__ = ["Prices", "prices_of"]

_GB: Final = 10**9
_STORAGE: Final = "storage.gb.month"
_CURRENCY: Final = "currency"


@dataclass(frozen=True, slots=True)
class Prices:
    """The price of a GB (10^9 bytes) in the bucket for a month."""

    storage_gb_month: float
    currency: str = ""

    def month(self, size: int) -> float:
        """Return what these bytes cost in a month."""
        return size / _GB * self.storage_gb_month


def prices_of(path: str, values: Mapping[str, str]) -> Prices:
    """Return the prices of a file. Raises UserError, which names the file, the name and the value."""
    unknown = sorted(values.keys() - {_STORAGE, _CURRENCY})
    if unknown:
        raise UserError(
            f"{path}: {unknown[0]!r} is not accepted; accepted: {_STORAGE}, {_CURRENCY}"
        )
    text = values.get(_STORAGE, "")
    try:
        price = float(text)
    except ValueError:
        price = -1.0
    if not isfinite(price) or price < 0:
        raise UserError(
            f"{path}: {_STORAGE}={text!r} is not accepted; accepted: a price such as 0.023"
        )
    return Prices(price, values.get(_CURRENCY, "").strip()[:8])
