"""Pass clients' metrics on to a receiver of OTLP over HTTP.

In: bodies of `ExportMetricsServiceRequest`. Out: a POST each, in order, on a thread of its own. A receiver that is slow
or refuses holds up no client: at most `QUEUE_BYTES_MAX` wait, and what finds no room is dropped and counted. Of one
principal half of that may wait.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Hashable
from contextlib import suppress
from functools import partial
from typing import Final

import structlog

from stratalog.errors import Unavailable, UserError
from stratalog.ports import Outside, Worker
from stratalog.shares import Shares

__all__ = ["QUEUE_BYTES_MAX", "Exporter"]

QUEUE_BYTES_MAX: Final = 16 << 20
_SEND_S: Final = 5.0
_RETRY_S: Final = 1.0
_RETRY_S_MAX: Final = 30.0
_CLOSE_S: Final = 1.0
_RETRIED: Final = frozenset({429, 502, 503, 504})
"""OTLP: the receiver may take the same request later."""
_HEADERS: Final = {"Content-Type": "application/x-protobuf"}


class Exporter:
    """Sends to one URL. `run` in a task; `offer` at any time."""

    def __init__(self, url: str, outside: Outside) -> None:
        self._url = url
        self._post = outside.post
        self._workers = outside.workers
        self._worker: Worker | None = None
        self._bodies: deque[tuple[bytes, Hashable]] = deque()
        self._queued = Shares()
        self._wanted = asyncio.Event()
        self._is_failing = False
        self.counts: Counter[str] = Counter()
        """Pushes by result: `sent`, `refused` by the receiver, `dropped` because too many waited."""
        self._log = structlog.get_logger()

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait."""
        return self._queued.total

    def offer(self, body: bytes, holder: Hashable) -> None:
        """Send a body of a principal later, or drop it while too much waits."""
        size = len(body)
        is_its_share = self._queued.of(holder) + size <= QUEUE_BYTES_MAX // 2
        if not is_its_share or self.queued_bytes + size > QUEUE_BYTES_MAX:
            self.counts["dropped"] += 1
            return
        self._bodies.append((body, holder))
        self._queued.add(holder, size)
        self._wanted.set()

    async def run(self) -> None:
        """Send what is offered, until cancelled."""
        self._worker = self._workers.start("otlp", background=True)
        pause_s = _RETRY_S
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while self._bodies:
                body, holder = self._bodies[0]
                status, reason = await self._send(self._worker, body)
                if status is None or status in _RETRIED:
                    self._note_failure(reason)
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _RETRY_S_MAX)
                    continue
                pause_s = _RETRY_S
                is_sent = status // 100 == 2
                self.counts["sent" if is_sent else "refused"] += 1
                if is_sent:
                    self._is_failing = False
                else:
                    self._note_failure(reason)
                self._bodies.popleft()
                self._queued.add(holder, -len(body))

    async def close(self) -> None:
        """End the thread; one that waits for its receiver is left behind, and ends with the process."""
        if self._worker is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._worker.close(), _CLOSE_S)

    async def _send(self, worker: Worker, body: bytes) -> tuple[int | None, str]:
        """Return the answer's status, None without one, and what to log of it."""
        try:
            status = await worker.submit(
                partial(self._post, self._url, body, _HEADERS, timeout_s=_SEND_S)
            )
        except (Unavailable, UserError) as error:
            return None, str(error)
        return status, f"{self._url}: status {status}"

    def _note_failure(self, reason: str) -> None:
        """Log the first of several failures."""
        if not self._is_failing:
            self._log.warning("client metrics not passed on", reason=reason)
        self._is_failing = True
