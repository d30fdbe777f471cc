"""Ctrl-C for commands that send records: it ends their input, not what they have sent.

In: this process's SIGINT, a file to read. Out: the file's bytes, and waits that Ctrl-C ends. It never interrupts a
request to a broker at the first Ctrl-C: a cancelled request leaves open whether its records arrived.
"""

import asyncio
import signal
import stat
from os import fstat
from types import TracebackType
from typing import BinaryIO, Self

READ_BYTES = 256 * 1024
_TURNS_TO_HANDLER = 3
"""Turns of the loop from a pending signal to its handler: poll its pipe, read the pipe, call the handler."""


class Interrupt:
    """`with Interrupt() as interrupt:`, inside a task of the main thread.

    The first Ctrl-C sets `happened` and ends a `sleep` or `read`. The second cancels the task, for a broker that does
    not answer.
    """

    def __init__(self) -> None:
        self.cut_input = False
        """Whether Ctrl-C came before the end of what `read` reads."""
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._first: asyncio.Future[None] = self._loop.create_future()

    @property
    def happened(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self._first.done()

    def __enter__(self) -> Self:
        self._loop.add_signal_handler(signal.SIGINT, self._interrupted)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.remove_signal_handler(signal.SIGINT)

    async def sleep(self, seconds: float) -> None:
        """Sleep, until Ctrl-C at the longest."""
        await asyncio.wait([self._first], timeout=seconds)

    async def read(self, lines: BinaryIO) -> bytes | None:
        """Return the next bytes that a file has, b"" at its end, None after Ctrl-C. Raises OSError.

        A terminal or a pipe is read once it has bytes: a read that waits would keep the event loop from Ctrl-C.
        """
        if waits(lines):
            await self._readable(lines.fileno())
        else:
            await asyncio.sleep(0)  # Ctrl-C has a turn between two reads of a file
        data: bytes = b""
        if not self.happened:
            # The bytes that are available, by at most one system call.
            read = getattr(lines, "read1", None) or lines.read
            data = read(READ_BYTES)
            if waits(lines):
                # Bytes typed after Ctrl-C can be read before the loop runs its handler: drop them.
                for _ in range(_TURNS_TO_HANDLER):
                    await asyncio.sleep(0)
        if self.happened:
            self.cut_input = True
            return None
        return data

    async def _readable(self, descriptor: int) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()

        def has_bytes() -> None:
            if not ready.done():
                ready.set_result(None)

        self._loop.add_reader(descriptor, has_bytes)
        try:
            await asyncio.wait([ready, self._first], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._loop.remove_reader(descriptor)

    def _interrupted(self) -> None:
        if self._first.done():
            assert self._task is not None, "created inside a task"
            self._task.cancel()
        else:
            self._first.set_result(None)


def waits(lines: BinaryIO) -> bool:
    """Return whether a read may wait for bytes: true of terminals, pipes and sockets, false of files and memory."""
    try:
        descriptor = lines.fileno()
    except OSError:  # io.UnsupportedOperation: memory
        return False
    mode = fstat(descriptor).st_mode
    return lines.isatty() or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
