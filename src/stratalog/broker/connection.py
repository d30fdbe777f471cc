"""One client's connection: frames in, answers out in request order.

In: bytes of one connection. Out: calls to the handlers, and their answers as bytes. It knows no API.

Requests are started in order. A handler that answers at once or returns a future has done what depends on order, so
the next request may start while the future is pending (a producer's pipelined batches); one that returns a
coroutine is run to its end first, as Kafka does with every request of a connection. Reading stops while too much is
unanswered or the client does not read its answers, so a connection's memory is bounded.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from inspect import iscoroutine
from typing import Any, Final, cast

import structlog

from stratalog.errors import Rejected
from stratalog.ports import Buffer
from stratalog.wire.frames import FrameReader

_IN_FLIGHT_MAX: Final = 32
_FRAMES_MAX: Final = 16

# One request's bytes -> its answer's buffers, None where it wants no answer; or a future or coroutine of that.
Answer = list[Buffer] | None
Serve = Callable[[str, memoryview], Any]
"""Peer and frame to answer."""


class Connection(asyncio.BufferedProtocol):
    """The server's end of one connection.

    `scratch` is where small frames arrive; the connections of one event loop share it, so that idle ones cost nothing.
    """

    def __init__(
        self,
        serve: Serve,
        *,
        frame_bytes_max: int,
        scratch: bytearray,
        opened: Callable[["Connection"], None],
        closed: Callable[["Connection"], None],
    ) -> None:
        self.peer = ""
        self._serve = serve
        self._opened = opened
        self._closed = closed
        self._reader = FrameReader(frame_bytes_max, scratch)
        self._frames: deque[memoryview] = deque()
        self._answers: deque[asyncio.Future[Answer]] = deque()
        self._transport: asyncio.Transport | None = None
        self._serial: asyncio.Task[Answer] | None = None
        self._reading = True
        self._writable = True
        self._log = structlog.get_logger()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not asserted: uvloop's transports have all of asyncio.Transport, but do not derive from it.
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)
        self._opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        try:
            self._frames.extend(self._reader.buffer_updated(nbytes))
        except Rejected as error:
            self.refuse(error.message)
            return
        self._advance()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._advance()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        self._transport = None
        self._frames.clear()
        self._answers.clear()
        self._closed(self)

    def refuse(self, why: str) -> None:
        """Close this connection because of what it sent, with a line in the log."""
        self._log.warning("connection closed", peer=self.peer, reason=why)
        self.close()

    def close(self) -> None:
        """Close after what is already written has left."""
        if self._transport is not None:
            self._frames.clear()
            self._transport.close()

    def abort(self) -> None:
        """Close now, whatever has not left."""
        if self._transport is not None:
            self._transport.abort()

    def _advance(self) -> None:
        """Start what may start, then read on or stop reading."""
        while (
            self._frames
            and self._serial is None
            and self._writable
            and len(self._answers) < _IN_FLIGHT_MAX
        ):
            self._start(self._frames.popleft())
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        wanted = len(self._frames) < _FRAMES_MAX and self._writable
        if wanted != self._reading:
            self._reading = wanted
            (transport.resume_reading if wanted else transport.pause_reading)()

    def _start(self, frame: memoryview) -> None:
        try:
            result = self._serve(self.peer, frame)
        except Rejected as error:
            self.refuse(error.message)
            return
        if iscoroutine(result):
            self._serial = asyncio.create_task(result)
            self._serial.add_done_callback(self._serial_done)
        elif isinstance(result, asyncio.Future):
            self._answers.append(result)
            result.add_done_callback(self._flush)
        elif not self._answers:
            self._write(result)
        else:
            ready: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            ready.set_result(result)
            self._answers.append(ready)

    def _serial_done(self, task: "asyncio.Task[Answer]") -> None:
        self._serial = None
        self._answers.append(task)
        self._flush(task)

    def _flush(self, _done: "asyncio.Future[Answer]") -> None:
        while self._answers and self._answers[0].done():
            answer = self._answers.popleft()
            error = answer.exception() if not answer.cancelled() else asyncio.CancelledError()
            if error is None:
                self._write(answer.result())
            elif isinstance(error, Rejected):
                self.refuse(error.message)
            else:
                self._log.error("request failed", peer=self.peer, exc_info=error)
                self.close()
        self._advance()

    def _write(self, buffers: Answer) -> None:
        transport = self._transport
        if buffers is None or transport is None or transport.is_closing():
            return
        for buffer in buffers:
            transport.write(buffer)
