"""A map whose next version costs what changes, not what the map holds.

In: a large dictionary that changes no more. Out: a map with a few changed keys above it. It never copies the
dictionary, except once for every few hundred changes.

An image of 10,000 topics follows each record. A copy of a dictionary of them takes longer than the rest of a small
change. Kafka has persistent maps here (TopicsImage: pcollections); docs/decisions/0039 says why these are two layers.
"""

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Final, TypeVar

__all__ = ["finished", "next_version"]

K = TypeVar("K")
V = TypeVar("V")
LAYER_MAX: Final = 256
"""Keys of the upper layer, which each version copies; and of a dictionary that is small enough to be copied itself."""
_ABSENT: Final[Any] = object()
_GONE: Final[Any] = object()


class Layered(MutableMapping[K, V]):
    """A dictionary and the keys that changed since. It is written to before it is given away, never after."""

    __slots__ = ("base", "changed", "size")

    def __init__(self, base: dict[K, V], changed: dict[K, V], size: int) -> None:
        """`changed` has `_GONE` for a deleted key; `size` counts the keys that are left."""
        self.base = base
        self.changed = changed
        self.size = size

    def __getitem__(self, key: K) -> V:
        found = self.changed.get(key, _ABSENT)
        if found is _ABSENT:
            return self.base[key]
        if found is _GONE:
            raise KeyError(key)
        value: V = found
        return value

    def get(self, key: K, default: Any = None) -> Any:
        found = self.changed.get(key, _ABSENT)
        if found is _ABSENT:
            return self.base.get(key, default)
        return default if found is _GONE else found

    def __contains__(self, key: object) -> bool:
        return self.get(key, _ABSENT) is not _ABSENT  # type: ignore[arg-type] # any key may be asked for

    def __setitem__(self, key: K, value: V) -> None:
        self.size += key not in self
        self.changed[key] = value

    def __delitem__(self, key: K) -> None:
        if key not in self:
            raise KeyError(key)
        self.size -= 1
        if key in self.base:
            self.changed[key] = _GONE
        else:
            del self.changed[key]

    def __iter__(self) -> Iterator[K]:
        """Yield the keys in the order in which they came, as a dictionary does."""
        base, changed = self.base, self.changed
        for key in base:
            if changed.get(key) is not _GONE:
                yield key
        for key, value in changed.items():
            if value is not _GONE and key not in base:
                yield key

    def __len__(self) -> int:
        return self.size


def next_version(before: Mapping[K, V]) -> MutableMapping[K, V]:
    """Return an equal map that the caller may write to, and `finished` later; `before` stays as it is."""
    if isinstance(before, Layered):
        return Layered(before.base, dict(before.changed), before.size)
    if isinstance(before, dict) and len(before) > LAYER_MAX:
        return Layered(before, {}, len(before))
    return dict(before)


def finished(written: MutableMapping[K, V]) -> Mapping[K, V]:
    """Return the map for its readers: of one layer again, where the upper one has become large."""
    if isinstance(written, Layered) and len(written.changed) > LAYER_MAX:
        return dict(written)
    return written
