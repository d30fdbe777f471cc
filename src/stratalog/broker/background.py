"""Background work of one node: tasks, and repeated work.

In: coroutines. Out: tasks on the running event loop. It retries nothing: a failure is logged and reported.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog


class Background:
    """The tasks of one node. `on_broken` receives every failure, which is always a bug."""

    def __init__(self, on_broken: Callable[[BaseException], None]) -> None:
        self._on_broken = on_broken
        self._tasks: set[asyncio.Task[Any]] = set()
        self._log = structlog.get_logger()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine; a failure is logged, and ends nothing else."""
        self._keep(asyncio.create_task(work))

    def repeat(self, work: Callable[[], Awaitable[None]], interval_s: float) -> None:
        """Run `work` after every interval, until `cancel`."""

        async def once() -> None:
            await work()

        async def loop() -> None:
            while True:
                await asyncio.sleep(interval_s)
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
