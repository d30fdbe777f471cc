"""Requests that wait for offsets to move: produces for their acknowledgement, fetches for enough to read.

In: requests with a deadline and what they watch, and news (a high watermark moved, bytes came). Out: the tokens whose
wait is over. It never answers a request and sets no timer: the shell wakes it at `next_deadline_ms`.

Both purgatories hold at most `waiting_max` requests; one more is refused, and answered at once with what there is. A
request is found from its token and each partition it watches, and forgotten from all of them in one step each.

Kafka: `DelayedOperationPurgatory`, `DelayedProduce`, `DelayedFetch`.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping
from heapq import heappop, heappush
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound=Hashable)


class Deadlines(Generic[T]):
    """When each waiting token gives up. Ended ones are dropped as they come up, or when most are such."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, T]] = []
        self._live: dict[T, int] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, token: T) -> bool:
        return token in self._live

    def add(self, token: T, deadline_ms: int) -> None:
        """Let `token`, which must not be waiting, wait until `deadline_ms`."""
        assert token not in self._live, f"{token} waits already"
        self._count += 1
        self._live[token] = self._count
        heappush(self._heap, (deadline_ms, self._count, token))

    def end(self, token: T) -> bool:
        """Stop waiting; False where it did not."""
        if self._live.pop(token, None) is None:
            return False
        if len(self._heap) > 64 and len(self._heap) > 2 * len(self._live):
            self._heap = sorted(one for one in self._heap if self._live.get(one[2]) == one[1])
        return True

    def next_ms(self) -> int | None:
        """The first deadline, or None."""
        heap = self._heap
        while heap and self._live.get(heap[0][2]) != heap[0][1]:
            heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now_ms: int) -> list[T]:
        """End and give the tokens whose deadline is `now_ms` or before, in the order of their deadlines."""
        over: list[T] = []
        while (first := self.next_ms()) is not None and first <= now_ms:
            token = heappop(self._heap)[2]
            del self._live[token]
            over.append(token)
        return over


class ProduceWaits(Generic[K, T]):
    """Produces with acks=all: each token waits for the high watermarks of its partitions (`K`) to pass its offsets."""

    def __init__(self, waiting_max: int) -> None:
        self._waiting_max = waiting_max
        self._deadlines: Deadlines[T] = Deadlines()
        self._missing: dict[T, set[K]] = {}
        self._watched: dict[K, OrderedDict[T, int]] = {}
        """Offsets per key in the order of the log; OrderedDict because a dict that loses its front gets slow."""

    def __len__(self) -> int:
        return len(self._deadlines)

    def wait(self, token: T, needs: Mapping[K, int], deadline_ms: int) -> bool:
        """Let `token` wait until each key's high watermark is at or past its offset (last offset + 1).

        A key's offsets never fall from one call to the next: logs append in order. False where the purgatory is full.
        """
        assert needs, f"{token} waits for nothing"
        if len(self._deadlines) >= self._waiting_max:
            return False
        self._deadlines.add(token, deadline_ms)
        self._missing[token] = set(needs)
        for key, offset in needs.items():
            watched = self._watched.setdefault(key, OrderedDict())
            last = next(reversed(watched.values()), offset)
            assert last <= offset, f"{key}: {offset} after {last}"
            watched[token] = offset
        return True

    def on_high_watermark(self, key: K, high_watermark: int) -> list[T]:
        """Tokens that waited for nothing else, in the order in which they came."""
        watched = self._watched.get(key)
        over: list[T] = []
        while watched:
            token, offset = next(iter(watched.items()))
            if offset > high_watermark:
                break
            missing = self._missing[token]
            self._unwatch(token, {key})
            missing.discard(key)
            if not missing:
                self._deadlines.end(token)
                del self._missing[token]
                over.append(token)
        return over

    def expire(self, now_ms: int) -> list[tuple[T, frozenset[K]]]:
        """Tokens whose time is over, with what each still misses: that timed out."""
        return [(token, self._forget(token)) for token in self._deadlines.due(now_ms)]

    def drop(self, key: K) -> list[T]:
        """The partition is gone or has a new leader: tokens that waited for it, which wait for nothing any more."""
        over = list(self._watched.get(key, ()))
        for token in over:
            self.end(token)
        return over

    def end(self, token: T) -> bool:
        """Stop waiting (the connection closed); False where it did not wait."""
        if not self._deadlines.end(token):
            return False
        self._forget(token)
        return True

    def next_deadline_ms(self) -> int | None:
        """When to call `expire`, or None."""
        return self._deadlines.next_ms()

    def _forget(self, token: T) -> frozenset[K]:
        missing = frozenset(self._missing.pop(token))
        self._unwatch(token, missing)
        return missing

    def _unwatch(self, token: T, keys: Iterable[K]) -> None:
        for key in keys:
            watched = self._watched[key]
            del watched[token]
            if not watched:
                del self._watched[key]


class FetchWaits(Generic[K, T]):
    """Fetches that found less than `min_bytes`: each token waits for its partitions to grow by what is missing."""

    def __init__(self, waiting_max: int) -> None:
        self._waiting_max = waiting_max
        self._deadlines: Deadlines[T] = Deadlines()
        self._missing_bytes: dict[T, int] = {}
        self._keys: dict[T, tuple[K, ...]] = {}
        self._watched: dict[K, dict[T, None]] = {}

    def __len__(self) -> int:
        return len(self._deadlines)

    def wait(self, token: T, keys: Iterable[K], missing_bytes: int, deadline_ms: int) -> bool:
        """Let `token` wait for `missing_bytes` more in all of `keys` together. False where the purgatory is full."""
        assert missing_bytes > 0, f"{token} has enough"
        if len(self._deadlines) >= self._waiting_max:
            return False
        self._deadlines.add(token, deadline_ms)
        self._missing_bytes[token] = missing_bytes
        self._keys[token] = tuple(dict.fromkeys(keys))
        for key in self._keys[token]:
            self._watched.setdefault(key, {})[token] = None
        return True

    def on_bytes(self, key: K, size: int) -> list[T]:
        """`size` more bytes of `key` can be read: tokens that now have enough, in the order in which they came."""
        missing_bytes = self._missing_bytes
        over = []
        for token in self._watched.get(key, ()):
            missing_bytes[token] -= size
            if missing_bytes[token] <= 0:
                over.append(token)
        for token in over:
            self.end(token)
        return over

    def expire(self, now_ms: int) -> list[T]:
        """Tokens whose time is over: answer with what there is."""
        over = self._deadlines.due(now_ms)
        for token in over:
            self._unwatch(token)
        return over

    def drop(self, key: K) -> list[T]:
        """The partition is gone, or something else about it must be told at once: all tokens that watch it."""
        over = list(self._watched.get(key, ()))
        for token in over:
            self.end(token)
        return over

    def end(self, token: T) -> bool:
        """Stop waiting (the connection closed); False where it did not wait."""
        if not self._deadlines.end(token):
            return False
        self._unwatch(token)
        return True

    def next_deadline_ms(self) -> int | None:
        """When to call `expire`, or None."""
        return self._deadlines.next_ms()

    def _unwatch(self, token: T) -> None:
        del self._missing_bytes[token]
        for key in self._keys.pop(token):
            watched = self._watched[key]
            del watched[token]
            if not watched:
                del self._watched[key]
