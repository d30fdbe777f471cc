"""Whose turn it is: connections with more requests than one turn serves, and large requests, go round.

In: connections that have requests left, and work that is done a slice at a time. Out: calls to each, one after
another, a few at a time. It knows no request.

The event loop reads from its sockets between two rounds. So a client that asks for one thing is served after one round
at most, whatever others have piled up. A client that pipelines is served as often as any other that does.

Kafka: `Selector` takes one request of each connection at a time, `KafkaChannel.mute` until it is answered.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final, TypeVar

T = TypeVar("T")
_ROUND_NS: Final = 1_000_000
"""How long a round takes, give or take a turn."""
_SLICE_NS: Final = 2_000_000
_SLICE_ITEMS: Final = 1000


class Turns:
    """One for all connections of a node; used on one event loop."""

    def __init__(self, elapsed_ns: Callable[[], int]) -> None:
        """`elapsed_ns`: a clock that goes on within a turn of the loop; uvloop's own time does not."""
        self.elapsed_ns = elapsed_ns
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_granted = False

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, turn: Callable[[], None]) -> None:
        """Call `turn` once, after those that wait already."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._go_round)
        self._waiting.append(turn)

    def slice(self) -> "asyncio.Future[None]":
        """Return a future that is done when the caller may work for another slice."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def grant() -> None:
            if not granted.done():  # else its client went away
                granted.set_result(None)
                self._is_granted = True

        self.wait(grant)
        return granted

    def _go_round(self) -> None:
        waiting, elapsed_ns = self._waiting, self.elapsed_ns
        until_ns = elapsed_ns() + _ROUND_NS
        self._is_granted = False
        for _ in range(len(waiting)):
            # Not taken off before: a turn that asks for another must find that the next round is scheduled.
            waiting[0]()
            waiting.popleft()
            # A slice takes more than what is left of a round: one a round.
            if self._is_granted or elapsed_ns() >= until_ns:
                break
        if waiting:
            asyncio.get_running_loop().call_soon(self._go_round)


class Slices:
    """The work for one request, a slice at a time. `items` counts what was worked on."""

    __slots__ = ("_left", "_turns", "_until_ns", "items")

    def __init__(self, turns: Turns) -> None:
        # The rest is set by `_begin`: few requests come so far.
        self._turns = turns
        self.items = 0

    async def each(self, items: Iterable[T]) -> AsyncIterator[T]:
        """Yield each item; between two slices all others have a turn. It may be nested."""
        elapsed_ns = self._turns.elapsed_ns
        if not self.items:
            self._begin()
        for item in items:
            if not self._left or elapsed_ns() >= self._until_ns:
                await self._turns.slice()
                self._begin()
            self._left -= 1
            self.items += 1
            yield item

    def _begin(self) -> None:
        self._until_ns = self._turns.elapsed_ns() + _SLICE_NS
        self._left = _SLICE_ITEMS
