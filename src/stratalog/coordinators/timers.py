"""Deadlines by key, for a shell that sets one timer.

In: keys and deadlines. Out: the keys that are due, and the time to look next. It never reads a clock or calls a
function.

Most deadlines move back long before they pass: every heartbeat moves one. So moving back costs one dictionary write.
The heap keeps the old time; when that comes up, the key returns to the heap with its new time. Invariants: a live key
has exactly one valid entry in the heap, no later than its deadline; `due` drops other entries as they come up.
"""

from collections.abc import Hashable, Iterator
from heapq import heappop, heappush
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Timers(Generic[K]):
    """Keys with a deadline in ms. Keys of the same millisecond are due in the order of queueing."""

    def __init__(self) -> None:
        self._deadlines: dict[K, int] = {}
        self._queued: dict[K, tuple[int, int]] = {}
        self._heap: list[tuple[int, int, K]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._deadlines)

    def set(self, key: K, deadline_ms: int) -> None:
        """Give `key` a deadline, in place of the one it had."""
        self._deadlines[key] = deadline_ms
        queued = self._queued.get(key)
        if queued is None or deadline_ms < queued[0]:
            self._queue(key, deadline_ms)

    def cancel(self, key: K) -> None:
        """Forget `key`; it need not have a deadline."""
        if self._deadlines.pop(key, None) is not None:
            del self._queued[key]

    def deadline(self, key: K) -> int | None:
        """Return when `key` is due, in ms, or None."""
        return self._deadlines.get(key)

    def next_ms(self) -> int | None:
        """Return when to call `due` next: no later than the first deadline, maybe before it. None: no keys."""
        heap = self._heap
        while heap and self._queued.get(heap[0][2]) != heap[0][:2]:
            heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now_ms: int) -> Iterator[K]:
        """Remove and yield each key whose deadline is `now_ms` or before; the caller may set and cancel meanwhile."""
        while (first := self.next_ms()) is not None and first <= now_ms:
            key = heappop(self._heap)[2]
            deadline_ms = self._deadlines[key]
            if deadline_ms > first:
                self._queue(key, deadline_ms)
                continue
            del self._deadlines[key], self._queued[key]
            yield key

    def _queue(self, key: K, deadline_ms: int) -> None:
        self._count += 1
        self._queued[key] = (deadline_ms, self._count)
        heappush(self._heap, (deadline_ms, self._count, key))
        self._tidy()

    def _tidy(self) -> None:
        """Rebuild the heap where invalid entries outnumber valid ones (members that come and go)."""
        if len(self._heap) > 64 and len(self._heap) > 2 * len(self._queued):
            self._heap = sorted((*at, key) for key, at in self._queued.items())
