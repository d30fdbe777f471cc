"""Background work of one node: tasks, and repeated work; and the end of a node's waits for other nodes.

In: coroutines. Out: tasks on the running event loop. It retries nothing: a failure is logged and reported.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import structlog

from stratalog.errors import Unavailable

__all__ = ["Background", "Patience"]


class Background:
    """The tasks of one node. `on_broken` receives every failure, which is always a bug."""

    def __init__(self, on_broken: Callable[[BaseException], None]) -> None:
        self._on_broken = on_broken
        self._tasks: set[asyncio.Task[Any]] = set()
        self._log = structlog.get_logger()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine; a failure is logged, and ends nothing else."""
        self._keep(asyncio.create_task(work))

    def repeat(self, work: Callable[[], Awaitable[float | None]], interval_s: float) -> None:
        """Run `work` after every interval, until `cancel`. A run may return the seconds until the next one."""
        next_s: float | None = None

        async def once() -> None:
            nonlocal next_s
            next_s = await work()

        async def loop() -> None:
            nonlocal next_s
            while True:
                await asyncio.sleep(interval_s if next_s is None else next_s)
                next_s = None
                # Each run is a separate task, so that a failure does not end the repetition.
                task = asyncio.create_task(once())
                self._keep(task)
                await asyncio.wait((task,))

        self.spawn(loop())

    async def cancel(self, wait_s: float) -> None:
        """Cancel all tasks, and wait a bounded time until they end."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=wait_s)

    def _keep(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("background work failed", exc_info=error)
            self._on_broken(error)


class Patience:
    """A starting node's waits for other nodes, one at a time: `end` ends the present one and all later ones."""

    def __init__(self) -> None:
        self._is_over = False
        self._present: asyncio.Timeout | None = None

    def end(self) -> None:
        """Wait no more."""
        if self._present is not None and not self._is_over:
            self._present.reschedule(asyncio.get_running_loop().time())
        self._is_over = True

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """Run a block that waits for other nodes. Raises Unavailable after `end`."""
        over = Unavailable("stopped before it was ready")
        if self._is_over:
            raise over
        try:
            async with asyncio.timeout(None) as self._present:
                yield
        except TimeoutError:
            raise over from None
        finally:
            self._present = None
