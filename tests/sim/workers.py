"""Threads of a simulation: calls run inline, at a virtual time drawn from the seed.

In: blocking calls. Out: futures. Calls of a one-thread worker keep their order; those of a pool may overtake.
"""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

from tests.sim.process import current

T = TypeVar("T")
_DELAY_S = (0.000_02, 0.001)
_SLOW_S = (0.01, 0.5)


class SimWorker:
    """`ports.Worker` in virtual time."""

    def __init__(
        self, workers: "SimWorkers", random: Random, threads: int, *, calls_bucket: bool = False
    ) -> None:
        self._workers = workers
        self._calls_bucket = calls_bucket
        self._random = random
        self._threads = threads
        self._free_at = 0.0
        self._pending = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, call: Callable[[], T]) -> "asyncio.Future[T]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        workers = self._workers
        slowness = workers.bucket_slowness if self._calls_bucket else 0.0
        slow = self._random.random() < max(workers.slowness, slowness)
        at = loop.time() + self._random.uniform(*(_SLOW_S if slow else workers.delay_s))
        if not self._calls_bucket:
            at = max(at, workers.stalled_until_s)
        if self._threads == 1:
            # Strictly later: timers of one moment have no order.
            at = self._free_at = max(at, self._free_at + 1e-6)
        self._pending += 1
        self._idle.clear()
        loop.call_at(at, self._run, call, future)
        return future

    async def close(self) -> None:
        await self._idle.wait()

    def kill(self) -> None:
        """Each call runs at one moment of virtual time, so no call is in progress."""

    def _run(self, call: Callable[[], Any], future: "asyncio.Future[Any]") -> None:
        self._pending -= 1
        if not self._pending:
            self._idle.set()
        if _is_dead():
            future.cancel()
            return
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - carried to the caller
            if not future.cancelled() and not _is_dead():  # the call itself was the end
                future.set_exception(error)
        else:
            if not future.cancelled():
                future.set_result(result)


class SimWorkers:
    """`ports.Workers` of one process in virtual time.

    `slowness` is the probability of a slow call, `bucket_slowness` that of a slow call of the bucket, `delay_s` the
    time of any other call. No call of a drive ends before `stalled_until_s`. A call does not run once the process
    that submitted it is dead.
    """

    def __init__(self, random: Random, slowness: float = 0.0) -> None:
        self.slowness = slowness
        self.bucket_slowness = 0.0
        self.stalled_until_s = 0.0
        self.delay_s = _DELAY_S
        self._random = random
        self.started: list[tuple[str, int, bool]] = []
        """Each worker's name, number of threads and whether they are in the background, in order."""

    def start(self, name: str, threads: int = 1, *, background: bool = False) -> SimWorker:
        self.started.append((name, threads, background))
        return SimWorker(self, self._random, threads, calls_bucket=name.startswith("tier-"))

    def start_processes(self, name: str, *, background: bool = False) -> SimWorker:
        return self.start(name, 2, background=background)


def _is_dead() -> bool:
    process = current()
    return process is not None and process.is_dead
