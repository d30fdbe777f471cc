"""An event loop in a thread of its own, for code without one.

In: coroutines from any other thread. Out: their results there. A caller never touches the loop itself.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

T = TypeVar("T")

_ROUNDS: Final = 3


class LoopThread:
    """A running loop until `close`. The thread is a daemon: it keeps no interpreter from ending."""

    def __init__(self, name: str, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self._loop = new_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Return the coroutine's result. Raises the coroutine's error, or TimeoutError after `timeout_s`."""
        return self.begin(work)(timeout_s)

    def begin(self, work: Coroutine[Any, Any, T]) -> Callable[[float], T]:
        """Start the coroutine, and return a call that waits for its result as `run` does."""
        done: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return done.result

    def close(self) -> None:
        """Cancel what still runs, close the loop and end the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        loop.run_forever()
        for _ in range(_ROUNDS):  # a cancelled task may begin another one
            left = asyncio.all_tasks(loop)
            for task in left:
                # A new task takes its first step before, so that it awaits the coroutines among its arguments.
                loop.call_soon(task.cancel)
            if left:
                loop.run_until_complete(asyncio.wait(left, timeout=1))
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()
