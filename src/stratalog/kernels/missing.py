"""The exception for missing offsets.

In: nothing. Out: an exception. It is apart from the decoder, so that a planner can raise it without loading numba.
"""

from stratalog.errors import Corrupt


class Missing(Corrupt):
    """Offsets [first, found) are missing."""

    def __init__(self, name: str, first: int, found: int) -> None:
        super().__init__(f"{name}: offsets {first} to {found - 1} are missing")
        self.name = name
        self.first = first
        self.found = found

    def __reduce__(self) -> tuple[type["Missing"], tuple[str, int, int]]:
        return Missing, (self.name, self.first, self.found)
