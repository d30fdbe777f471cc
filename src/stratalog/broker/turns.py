"""Whose turn it is: connections with more requests than one turn serves go round.

In: connections that have requests left. Out: calls to each, one after another, a few at a time. It knows no request.

The event loop reads from its sockets between two rounds. So a client that asks for one thing is served after one round
at most, whatever others have piled up. A client that pipelines is served as often as any other that does.

Kafka: `Selector` takes one request of each connection at a time, `KafkaChannel.mute` until it is answered.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

_ROUND_NS: Final = 1_000_000
"""How long a round takes, give or take a turn."""


class Turns:
    """One for all connections of a node; used on one event loop."""

    def __init__(self, elapsed_ns: Callable[[], int]) -> None:
        """`elapsed_ns`: a clock that goes on within a turn of the loop; uvloop's own time does not."""
        self.elapsed_ns = elapsed_ns
        self._waiting: deque[Callable[[], None]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, turn: Callable[[], None]) -> None:
        """Call `turn` once, after those that wait already."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._go_round)
        self._waiting.append(turn)

    def _go_round(self) -> None:
        waiting, elapsed_ns = self._waiting, self.elapsed_ns
        until_ns = elapsed_ns() + _ROUND_NS
        for _ in range(len(waiting)):
            # Not taken off before: a turn that asks for another must find that the next round is scheduled.
            waiting[0]()
            waiting.popleft()
            if elapsed_ns() >= until_ns:
                break
        if waiting:
            asyncio.get_running_loop().call_soon(self._go_round)
