"""A bucket of a simulation that fails as real ones do.

In: a store, chance. Out: the same store; `down` refuses everything, `trouble` is how likely a call fails: before it
did anything, or after (a time-out that had its effect). It never alters a byte.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import TypeVar

from stratalog.errors import Unavailable
from stratalog.ports import Buffer, ObjectInfo, ObjectStore

T = TypeVar("T")


class FaultyStore:
    """See the module."""

    def __init__(self, store: ObjectStore, chance: Random) -> None:
        self.url = store.url
        self.down = False
        self.trouble = 0.0
        self.failures = 0
        self._store = store
        self._chance = chance

    def put(self, path: str, chunks: Iterable[Buffer]) -> None:
        self._call(lambda: self._store.put(path, chunks))

    def put_if_absent(self, path: str, data: Buffer) -> None:
        self._call(lambda: self._store.put_if_absent(path, data))

    def get(self, path: str) -> bytes:
        return self._call(lambda: self._store.get(path))

    def get_range(self, path: str, start: int, size: int) -> bytes:
        return self._call(lambda: self._store.get_range(path, start, size))

    def size(self, path: str) -> int:
        return self._call(lambda: self._store.size(path))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return iter(self._call(lambda: list(self._store.list(prefix))))

    def delete(self, paths: Sequence[str]) -> None:
        self._call(lambda: self._store.delete(paths))

    def _call(self, call: Callable[[], T]) -> T:
        fails = self.down or self._chance.random() < self.trouble
        if fails and (self.down or self._chance.random() < 0.5):
            self.failures += 1
            raise Unavailable(f"{self.url}: 503")
        result = call()
        if fails:
            self.failures += 1
            raise Unavailable(f"{self.url}: timed out")
        return result
