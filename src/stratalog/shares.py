"""How much each client holds of something that all clients share, so that the one with most gives way first.

In: holders (a principal, or the address of an anonymous client) and amounts. Out: one holder's amount, and the holder
of most. It never frees anything, and forgets a holder of nothing.
"""

from collections.abc import Hashable

__all__ = ["Shares"]


class Shares:
    """Amounts by holder; `total` is their sum."""

    __slots__ = ("_amounts", "total")

    def __init__(self) -> None:
        self._amounts: dict[Hashable, int] = {}
        self.total = 0

    def of(self, holder: Hashable) -> int:
        """Return the amount of one holder."""
        return self._amounts.get(holder, 0)

    def add(self, holder: Hashable, amount: int) -> None:
        """Change the amount of one holder; `amount` may be negative."""
        self.total += amount
        now = self._amounts.get(holder, 0) + amount
        if now:
            self._amounts[holder] = now
        else:
            self._amounts.pop(holder, None)

    def largest(self) -> Hashable | None:
        """Return the holder of most; None where none holds anything."""
        return max(self._amounts, key=self._amounts.__getitem__, default=None)

    def yields_to(self, holder: Hashable, amount: int) -> Hashable | None:
        """Return the holder of most, if it has more than `holder` would have with `amount` more; else None."""
        largest = self.largest()
        if largest == holder or self.of(largest) <= self.of(holder) + amount:
            return None
        return largest
