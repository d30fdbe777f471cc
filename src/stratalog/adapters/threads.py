"""Thread pools; the only place that starts threads for blocking calls.

In: blocking calls from the event loop. Out: futures that resolve on the loop; Unavailable once closed. It never runs
a call on the loop's own thread.

One wakeup of the loop carries every call that finished since the last one. So a busy drive costs the loop one
callback per burst, not per write.
"""

import asyncio
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from stratalog.errors import Unavailable

T = TypeVar("T")
_Job = tuple[Callable[[], Any], "asyncio.Future[Any]"]
_TURN_S: Final = 0.0005
_NICE: Final = 5
"""Niceness that leaves a third of a core where the event loop or a client needs it, too. Other threads wait while a
thread holds the interpreter; at 19 such a thread would hardly ever run to release it.
"""
_REST_MAX_S: Final = 0.05
"""Longest rest after one call: a call that the machine held up costs the next one no more."""


def take_short_turns() -> None:
    """Make computing threads release the interpreter after half a millisecond, not after Python's five.

    The event loop releases the interpreter with every system call and then waits for it. Beside a thread that checks a
    segment, each request waited for one or more such intervals.
    """
    sys.setswitchinterval(_TURN_S)


class ThreadWorker:
    """`ports.Worker` over one thread (calls in order) or several (any order). Create it on the event loop."""

    def __init__(self, name: str, threads: int, *, background: bool = False) -> None:
        self._background = background
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._done: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._notified = False
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, call: Callable[[], T]) -> "asyncio.Future[T]":
        future: asyncio.Future[T] = self._loop.create_future()
        if self._threads:
            self._jobs.put((call, future))
        else:
            future.set_exception(Unavailable("its threads have ended"))
        return future

    async def close(self) -> None:
        """End the threads once all queued calls have run."""
        if not self._threads:
            return
        threads, self._threads = self._threads, []
        for _ in threads:
            self._jobs.put(None)
        ended = self._loop.create_future()

        def join() -> None:
            for thread in threads:
                thread.join()
            self._loop.call_soon_threadsafe(ended.set_result, None)

        threading.Thread(target=join, daemon=True).start()
        await ended
        self._deliver()

    def _work(self) -> None:
        if self._background and sys.platform == "linux":  # elsewhere: the whole process
            this = threading.get_native_id()
            # A user may not lower a niceness: that of `nice strata server` stays.
            niceness = max(os.getpriority(os.PRIO_PROCESS, this), _NICE)
            os.setpriority(os.PRIO_PROCESS, this, niceness)
        while (job := self._jobs.get()) is not None:
            call, future = job
            result: Any = None
            failure: BaseException | None = None
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - an exit too; carried to the caller, which awaits it
                failure = error
            self._done.append((future, result, failure))
            del job, call, future, result, failure  # keep nothing alive during the next wait
            if not self._notified:
                self._notified = True
                try:
                    self._loop.call_soon_threadsafe(self._deliver)
                except RuntimeError:  # the loop is closed: no caller waits any more
                    return

    def _deliver(self) -> None:
        self._notified = False  # before the look: a call that ends now requests another wakeup
        while self._done:
            future, result, failure = self._done.popleft()
            if future.cancelled():
                continue
            if failure is None:
                future.set_result(result)
            else:
                future.set_exception(failure)


class Pace:
    """Decides how long a thread rests between calls: after each one as long as that call took. Times are in seconds."""

    def __init__(self) -> None:
        self._rested_at = 0.0

    def rest(self, now: float) -> float:
        """Return how long to wait before the next call."""
        return max(0.0, self._rested_at - now)

    def ran(self, begun: float, ended: float) -> None:
        """Count a call."""
        self._rested_at = ended + min(ended - begun, _REST_MAX_S)


class PacedWorker:
    """One thread that runs calls in order, and uses half of one core at most. Create it on the event loop.

    A result is delivered before the rest that follows it.
    """

    def __init__(self, name: str) -> None:
        self._worker = ThreadWorker(name, 1)
        self._pace = Pace()

    def submit(self, call: Callable[[], T]) -> "asyncio.Future[T]":
        """Queue a call; the future fails with Unavailable once the worker is closed."""
        return self._worker.submit(lambda: self._run(call))

    async def close(self) -> None:
        """End the thread once all queued calls have run."""
        await self._worker.close()

    def _run(self, call: Callable[[], T]) -> T:
        time.sleep(self._pace.rest(time.perf_counter()))
        begun = time.perf_counter()
        try:
            return call()
        finally:
            self._pace.ran(begun, time.perf_counter())
