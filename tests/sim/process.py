"""One process of a simulated machine: its callbacks run only while it lives, and wait while it is paused.

In: a coroutine to run as the process. Out: its tasks and callbacks, which carry the process in their context. The loop
(`tests/sim/loop.py`), disks and connections ask `current()` on whose behalf they are called.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

T = TypeVar("T")
_ROUNDS = 10
_CURRENT: ContextVar["Process | None"] = ContextVar("process", default=None)


class Process:
    """Made by `Machine.start`. It ends once, by `kill`."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.is_dead = False
        """Whether the process is dead: its later actions have no effect outside."""
        self.tasks: dict[asyncio.Task[Any], None] = {}
        """In the order of their start: the order of their end must not depend on where they lie in memory."""
        self.context = copy_context()
        self.context.run(_CURRENT.set, self)
        self._is_paused = False
        self._is_gone = False
        self._held: list[tuple[Context, Callable[..., object], tuple[Any, ...]]] = []

    def run(self, main: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Start `main` as a task of this process."""
        return asyncio.get_running_loop().create_task(main, context=self.context)

    def pause(self) -> None:
        """As SIGSTOP: nothing of the process runs until `resume`; its clocks, disks and the kernel's buffers go on."""
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        held, self._held = self._held, []
        for context, callback, args in held:
            asyncio.get_running_loop().call_soon(callback, *args, context=context)

    async def kill(self) -> None:
        """End every task. Their cleanup has no effect on disks, buckets and connections."""
        self.is_dead = True
        self.resume()
        for _ in range(_ROUNDS):  # a cancelled task may begin another one
            tasks = [task for task in self.tasks if not task.done()]
            if not tasks:
                break
            for task in tasks:
                # A new task takes its first step before, so that it awaits the coroutines among its arguments.
                asyncio.get_running_loop().call_soon(task.cancel)
            await asyncio.wait(tasks)
            for task in tasks:
                if not task.cancelled():
                    task.exception()  # what a dead process does at its end is no bug
        self._is_gone = True

    def call(
        self, context: Context, callback: Callable[..., object], args: tuple[Any, ...]
    ) -> None:
        """Run a scheduled callback, unless the process is paused or dead. Called in `context`."""
        if self._is_paused:
            self._held.append((context, callback, args))
        elif not self._is_gone:
            callback(*args)


def current(context: Context | None = None) -> Process | None:
    """Return the process that runs now, or in `context`; None for the story itself and its clients."""
    return _CURRENT.get() if context is None else context.get(_CURRENT)
