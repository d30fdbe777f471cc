"""An asyncio event loop in virtual time: it never sleeps, it moves the clock to the next timer.

In: coroutines. Out: their results, in the same order every time. It never looks at a real clock and never waits for
a real descriptor. A loop with nothing to do and no timer is stuck, and says so.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_LEFT_S = 3600.0


class _NoWaiting(selectors.SelectSelector):
    """Instead of waiting for descriptors, lets virtual time pass."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "the simulation is stuck: nothing to run and no timer"
        if timeout > 0:
            self.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose `time()` is virtual seconds from 0."""

    def __init__(self) -> None:
        self._virtual = _NoWaiting()
        super().__init__(self._virtual)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._virtual.now


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end in virtual time, on a loop of its own."""
    loop = VirtualLoop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        for task in (left := asyncio.all_tasks(loop)):
            task.cancel()
        if left:  # a story that failed
            loop.run_until_complete(asyncio.wait(left, timeout=_LEFT_S))
        asyncio.set_event_loop(None)
        loop.close()
