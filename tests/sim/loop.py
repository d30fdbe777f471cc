"""An asyncio event loop in virtual time: it never sleeps, it moves the clock to the next timer.

In: coroutines. Out: their results, in the same order every time. An error of a task or a callback that no code handled
fails the run. It never looks at a real clock and never waits for a real descriptor. A loop without work and without a
timer is stuck, and raises an error. A process (`tests/sim/process.py`) that is paused or has ended has no callbacks.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import Any, TypeVar, TypeVarTuple, Unpack

from tests.sim.process import current

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_LEFT_S = 3600.0


class _NoWaiting(selectors.SelectSelector):
    """Instead of waiting for descriptors, lets virtual time pass."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.waits = 0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "the simulation is stuck: nothing to run and no timer"
        if timeout > 0:
            self.now += timeout
            self.waits += 1
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose `time()` is virtual seconds from 0."""

    def __init__(self) -> None:
        self._virtual = _NoWaiting()
        super().__init__(self._virtual)
        self._clock_resolution = 1e-9
        self.bugs: list[BaseException] = []
        """Errors of tasks and callbacks of processes that lived: no code looked at them."""
        self.set_exception_handler(lambda _loop, context: self._note(context))
        self.set_task_factory(_task_of_its_process)  # type: ignore[arg-type] # typeshed lacks `context`

    def time(self) -> float:
        return self._virtual.now

    def _note(self, context: dict[str, Any]) -> None:
        """Keep an error, unless it is of a process that ends."""
        error = context.get("exception") or AssertionError(context["message"])
        handle = context.get("handle")
        process = None if handle is None else current(handle._context)
        if not isinstance(error, asyncio.CancelledError) and (
            process is None or not process.is_dead
        ):
            self.bugs.append(error)

    @property
    def waits(self) -> int:
        """How often the loop had nothing to run before the next timer."""
        return self._virtual.waits

    def call_soon(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        if (process := current(context)) is None:
            return super().call_soon(callback, *args, context=context)
        context = context or copy_context()
        return super().call_soon(process.call, context, callback, args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        if (process := current(context)) is None:
            return super().call_at(when, callback, *args, context=context)
        context = context or copy_context()
        return super().call_at(when, process.call, context, callback, args, context=context)


def _task_of_its_process(
    loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, T], context: Context | None = None
) -> "asyncio.Task[T]":
    task = asyncio.Task(coro, loop=loop, context=context)
    if (process := current(context)) is not None:
        process.tasks[task] = None
        task.add_done_callback(process.tasks.pop, context=Context())
    return task


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end in virtual time, on a loop of its own."""
    loop = VirtualLoop()
    try:
        asyncio.set_event_loop(loop)
        result = loop.run_until_complete(main)
        if loop.bugs:
            raise BaseExceptionGroup("tasks and callbacks died in the simulation", loop.bugs)
        return result
    finally:
        for task in (left := asyncio.all_tasks(loop)):
            # A new task takes its first step before, so that it awaits the coroutines among its arguments.
            loop.call_soon(task.cancel)
        if left:  # a story that failed
            loop.run_until_complete(asyncio.wait(left, timeout=_LEFT_S))
        asyncio.set_event_loop(None)
        loop.close()
