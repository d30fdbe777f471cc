"""Decode large requests and encode large answers on a thread, one at a time.

In: a frame's decoding, an answer's encoding. Out: their results. It knows no API. It never decodes two requests at
once: a decoded request counts as client memory, and the next one waits while memory is short.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from stratalog.broker.network.client_memory import ClientMemory
from stratalog.ports import Worker, Workers
from stratalog.wire.budget import DecodeBudget

T = TypeVar("T")


class LargeRequests:
    """The large requests of one broker. Create and use it on the event loop; its thread starts with the first large
    request.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._worker: Worker | None = None
        self._decoding = asyncio.Lock()

    async def decode(self, call: Callable[[], T], budget: DecodeBudget, memory: ClientMemory) -> T:
        """Return the request that `call` decodes with `budget`. `memory` counts its size; the caller gives that back
        later.
        """
        async with self._decoding:
            await memory.room()
            decoded = await self.run(call)
            memory.take(budget.charged)
            return decoded

    def run(self, call: Callable[[], T]) -> "asyncio.Future[T]":
        """Run `call` on the thread."""
        if self._worker is None:
            self._worker = self._workers.start("large-requests")
        return self._worker.submit(call)

    async def close(self) -> None:
        """End the thread."""
        if self._worker is not None:
            await self._worker.close()
