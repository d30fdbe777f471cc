"""A bounded cache of bytes (or of values decoded from them), shared by threads.

In: values with their sizes. Out: values; the least recently used are evicted first. It never computes a value.

It has no lock: each step is one dict operation, which Python makes atomic. Two threads that race may both miss, or
keep a value a moment longer; neither ever gets a wrong one.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["ByteCache"]

Value = TypeVar("Value")


class ByteCache(Generic[Value]):
    """At most `bytes_max` bytes of values, except that the newest value always stays."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._values: dict[Hashable, tuple[Value, int]] = {}

    def __len__(self) -> int:
        return len(self._values)

    @property
    def size(self) -> int:
        """Bytes of the values held."""
        return sum([size for _, size in list(self._values.values())])

    def get(self, key: Hashable) -> Value | None:
        """Return the value, which becomes the most recently used; None where it is not held."""
        held = self._values.pop(key, None)
        if held is None:
            return None
        self._values[key] = held
        return held[0]

    def put(self, key: Hashable, value: Value, size: int) -> None:
        """Add a value of `size` bytes; evict the least recently used ones beyond the bound."""
        self._values.pop(key, None)
        self._values[key] = (value, size)
        # Few values (ranges are about 1 MiB), so adding up is cheaper than a counter that needs a lock.
        held = list(self._values.items())
        excess = sum([size for _, (_, size) in held]) - self.bytes_max
        for old, (_, old_size) in held:
            if excess <= 0 or old == key:
                break
            self._values.pop(old, None)
            excess -= old_size
