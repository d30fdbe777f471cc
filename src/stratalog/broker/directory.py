"""One log directory: performs the log's effects in order and reads for it, off the event loop.

In: effects and programs of the logs that live here. Out: completions on the event loop, in order. It never
decides anything about a log.

Every directory has threads of its own, one that writes and some that read, so a stalled drive holds up its own
partitions and nobody else's. What waits to be written is bounded in bytes: producers ask `has_room` first and
wait for `room`. The first failure (EIO, unmounted, full) takes the whole directory offline, as in Kafka: a drive
that lost one write cannot be trusted with the order of the next.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from stratalog.errors import ErrorCode, Rejected
from stratalog.log.effects import Append, Effect, Program, perform, run
from stratalog.ports import Disk, Worker, Workers

T = TypeVar("T")
_IN_FLIGHT_BYTES_MAX: Final = 64 << 20
_READERS: Final = 2


class LogDirectory:
    """The executor of one log directory. Made and used on the event loop."""

    def __init__(
        self,
        path: str,
        disk: Disk,
        workers: Workers,
        *,
        in_flight_bytes_max: int = _IN_FLIGHT_BYTES_MAX,
        on_failed: Callable[["LogDirectory", OSError], None] = lambda _directory, _error: None,
    ) -> None:
        self.path = path
        self.disk = disk
        self.failure: OSError | None = None
        self.in_flight_bytes = 0
        self._in_flight_bytes_max = in_flight_bytes_max
        self._on_failed = on_failed
        self._writer: Worker = workers.start(f"write {path}")
        self._reader: Worker = workers.start(f"read {path}", _READERS)
        self._room: deque[asyncio.Future[None]] = deque()

    @property
    def has_room(self) -> bool:
        """False while as many bytes as allowed wait for the drive."""
        return self.in_flight_bytes < self._in_flight_bytes_max

    async def room(self) -> None:
        """Wait until bytes may be added."""
        while not self.has_room and self.failure is None:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._room.append(waiter)
            await waiter

    def write(self, effects: Sequence[Effect]) -> "asyncio.Future[None]":
        """Perform effects after all earlier ones. The future fails with KAFKA_STORAGE_ERROR on a failed directory."""
        self.check()
        size = 0
        for effect in effects:
            if type(effect) is Append:
                for buffer in effect.buffers:
                    size += len(buffer)
        self.in_flight_bytes += size

        def perform_all() -> None:
            if self.failure is not None:
                raise self.failure
            for effect in effects:
                perform(self.disk, effect)

        return self._finishing(self._writer.submit(perform_all), size)

    def run(self, program: Program[T]) -> "asyncio.Future[T]":
        """Run a program that may write, after all earlier effects."""
        self.check()
        return self._finishing(self._writer.submit(lambda: run(self.disk, program)), 0)

    def read(self, path: str, position: int, size: int) -> "bytes | asyncio.Future[bytes]":
        """Bytes at once where the page cache has them, else from a reader thread."""
        self.check()
        found = self.disk.try_read(path, position, size)
        if found is not None:
            return found
        return self._finishing(self._reader.submit(lambda: self.disk.read(path, position, size)), 0)

    def look(self, program: Program[T]) -> "asyncio.Future[T]":
        """Run a program that only reads, on a reader thread."""
        self.check()
        return self._finishing(self._reader.submit(lambda: run(self.disk, program)), 0)

    def check(self) -> None:
        """Raise `Rejected(KAFKA_STORAGE_ERROR)` where the directory has failed."""
        if self.failure is not None:
            raise Rejected(ErrorCode.kafka_storage_error, f"{self.path}: {self.failure}")

    def fail(self, error: OSError) -> None:
        """Take the directory offline, once."""
        if self.failure is None:
            self.failure = error
            self._on_failed(self, error)
            self._wake()

    async def close(self) -> None:
        """Finish what is queued, end the threads, release the lock."""
        await self._writer.close()
        await self._reader.close()
        self.disk.close()

    def _finishing(self, work: "asyncio.Future[T]", size: int) -> "asyncio.Future[T]":
        """`work`, with a drive's OSError turned into the directory's failure and KAFKA_STORAGE_ERROR."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def finished(work: "asyncio.Future[T]") -> None:
            self.in_flight_bytes -= size
            if self._room and self.has_room:
                self._wake()
            error = work.exception()
            if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
                self.fail(error)
                error = Rejected(ErrorCode.kafka_storage_error, f"{self.path}: {error}")
            if answer.cancelled():
                return
            if error is None:
                answer.set_result(work.result())
            else:
                answer.set_exception(error)

        work.add_done_callback(finished)
        return answer

    def _wake(self) -> None:
        waiting, self._room = self._room, deque()
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
