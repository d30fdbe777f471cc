"""Share the event loop in turns between connections with many requests, and large requests.

In: connections with pending requests, and work that is done a slice at a time. Out: calls to each, one after another,
a few at a time. It knows no request.

The event loop reads from its sockets between two rounds. So a client with one request waits for one round at most,
however many requests other clients have queued. Clients that pipeline get equal numbers of turns.

Kafka: `Selector` takes one request of each connection at a time, `KafkaChannel.mute` until it is answered.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Sequence
from typing import Final, TypeVar

T = TypeVar("T")
P = TypeVar("P")
_ROUND_NS: Final = 1_000_000
"""Length of a round, within one turn."""
_SLICE_NS: Final = 2_000_000
_SLICE_ITEMS: Final = 1000
_PART_ITEMS: Final = 250


class Turns:
    """The turns of all connections of a node; use it on one event loop."""

    def __init__(self, elapsed_ns: Callable[[], int]) -> None:
        """`elapsed_ns`: a clock that advances within a turn of the loop; uvloop's own time does not."""
        self.elapsed_ns = elapsed_ns
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_granted = False

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, turn: Callable[[], None]) -> None:
        """Call `turn` once, after all earlier waiters."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._go_round)
        self._waiting.append(turn)

    def slice(self) -> "asyncio.Future[None]":
        """Return a future that is done when the caller may work for another slice."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def grant() -> None:
            if not granted.done():  # otherwise its client has disconnected
                granted.set_result(None)
                self._is_granted = True

        self.wait(grant)
        return granted

    def _go_round(self) -> None:
        waiting, elapsed_ns = self._waiting, self.elapsed_ns
        until_ns = elapsed_ns() + _ROUND_NS
        self._is_granted = False
        for _ in range(len(waiting)):
            # Removed only now: a turn that requests another one must find the next round scheduled.
            waiting[0]()
            waiting.popleft()
            # A slice uses up the rest of a round, so each round has one slice at most.
            if self._is_granted or elapsed_ns() >= until_ns:
                break
        if waiting:
            asyncio.get_running_loop().call_soon(self._go_round)


class Pace:
    """The work for one request, a slice at a time. `items` counts finished items."""

    __slots__ = ("_left", "_turns", "_until_ns", "items")

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._left = -1  # `_begin` sets the other attributes, which few requests need
        self.items = 0

    async def each(self, items: Iterable[T]) -> AsyncIterator[T]:
        """Yield each item; between two slices all other waiters get a turn. Calls may be nested."""
        elapsed_ns = self._turns.elapsed_ns
        if self._left < 0:
            self._begin()
        for item in items:
            if not self._left or elapsed_ns() >= self._until_ns:
                await self._turns.slice()
                self._begin()
            self._left -= 1
            self.items += 1
            yield item

    async def once(self, items: Iterable[T], name: Callable[[T], Hashable]) -> AsyncIterator[T]:
        """Yield items as `each`, but only the first item of each name.

        A short request that repeats one name must not get many copies of a large answer.
        """
        seen: set[Hashable] = set()
        async for item in self.each(items):
            key = name(item)
            if key not in seen:
                seen.add(key)
                yield item

    async def parts(self, items: Sequence[T]) -> AsyncIterator[Sequence[T]]:
        """Yield the items some hundreds at a time; each list needs one decision."""
        for start in range(0, max(1, len(items)), _PART_ITEMS):
            if start:
                await self._turns.slice()
            part = items[start : start + _PART_ITEMS]
            self.items += len(part)
            yield part

    async def shares(
        self, topics: Sequence[T], partitions_of: Callable[[T], Sequence[P]]
    ) -> AsyncIterator[list[tuple[int, T, Sequence[P]]]]:
        """Yield topics, each with its place among them, with some hundreds of their partitions at a time.

        Each share needs one decision. A topic with more partitions is in several shares, one after another. No topics
        are one share, too.
        """
        share: list[tuple[int, T, Sequence[P]]] = []
        room = _PART_ITEMS
        for place, topic in enumerate(topics):
            partitions = partitions_of(topic)
            for start in range(0, max(1, len(partitions)), _PART_ITEMS):
                if room <= 0:
                    yield share
                    await self._turns.slice()
                    share, room = [], _PART_ITEMS
                part = partitions[start : start + _PART_ITEMS]
                share.append((place, topic, part))
                room -= max(1, len(part))
                self.items += max(1, len(part))
        if share or not topics:
            yield share

    async def bundles(
        self, items: Sequence[T], name: Callable[[T], Hashable]
    ) -> AsyncIterator[Sequence[T]]:
        """Yield items as `parts`, for a request in which no name may appear twice.

        All items of one name are in one list, and at most two of them, because two already show the repetition.
        """
        if len(items) <= _PART_ITEMS:
            self.items += len(items)
            yield items
            return
        named: dict[Hashable, list[T]] = {}
        async for item in self.each(items):
            same = named.setdefault(name(item), [])
            if len(same) < 2:
                same.append(item)
        bundle: list[T] = []
        for same in named.values():
            bundle += same
            if len(bundle) >= _PART_ITEMS:
                yield bundle
                await self._turns.slice()
                bundle = []
        if bundle:
            yield bundle

    def _begin(self) -> None:
        self._until_ns = self._turns.elapsed_ns() + _SLICE_NS
        self._left = _SLICE_ITEMS
