"""Hold the appends of one partition until every in-sync replica has them.

In: last offsets, high watermarks. Out: one call for each append: committed, failed, or REQUEST_TIMED_OUT. It never
decides what is committed: replication does. Kafka: `DelayedProduce`.
"""

import asyncio
import math
from collections import deque

from stratalog.broker.storage.directory import Done, Failure, awaited
from stratalog.errors import ErrorCode, Rejected, again


class Acknowledgements:
    """Appends that are in this broker's log, in the order of their offsets."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Done, asyncio.TimerHandle | None]] = deque()

    def add(self, last_offset: int, then: Done, timeout_ms: float) -> None:
        """Call `then` once `last_offset` is committed, or with REQUEST_TIMED_OUT after `timeout_ms` (inf: never)."""
        timer = None
        if timeout_ms < math.inf:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(timeout_ms / 1000, self._expire, then, timeout_ms)
        self._waiting.append((last_offset, then, timer))

    def reached(self, end_offset: int, high_watermark: int) -> "asyncio.Future[None]":
        """Return a future that resolves once everything below `end_offset` is committed."""
        answer, then = awaited()
        if end_offset <= high_watermark:
            then(None)
        else:
            self.add(end_offset - 1, then, math.inf)
        return answer

    def commit(self, high_watermark: int) -> None:
        """Answer the appends below the high watermark."""
        waiting = self._waiting
        while waiting and waiting[0][0] < high_watermark:
            self._answer(waiting.popleft(), None)

    def fail(self, error: Rejected) -> None:
        """Answer every append with `error`."""
        waiting, self._waiting = self._waiting, deque()
        for one in waiting:
            self._answer(one, again(error))

    def _expire(self, then: Done, timeout_ms: float) -> None:
        for at, one in enumerate(self._waiting):
            if one[1] is then:
                del self._waiting[at]
                reason = f"not every in-sync replica had it within {timeout_ms:.0f} ms"
                then(Rejected(ErrorCode.request_timed_out, reason))
                return

    @staticmethod
    def _answer(one: tuple[int, Done, asyncio.TimerHandle | None], error: Failure) -> None:
        _, then, timer = one
        if timer is not None:
            timer.cancel()
        then(error)
