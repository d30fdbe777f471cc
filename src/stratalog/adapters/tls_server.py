"""TLS below a server's protocol: encrypted bytes of a transport in, plain bytes to the protocol, and back.

In: an accepted connection, a context. Out: a protocol that sees a transport without TLS, and learns the subject of the
client's certificate. It never decides what a client may do.

The inner protocol gets its transport before the handshake, so that limits of connections apply to clients that never
finish one. A handshake costs a hundred times as much as a small request. So its steps run on one thread, in the order
of their arrival, and OpenSSL releases the interpreter meanwhile. The thread rests after each step as long as the step
took: a thousand handshakes at once delay one another, and other clients little. Bytes that arrive during a step wait,
because OpenSSL's buffers must not change under it, and no more are received.

asyncio's own TLS computes handshakes on the event loop, and calls the protocol after them.
"""

import asyncio
import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, cast

from stratalog.adapters.threads import PacedWorker
from stratalog.adapters.tls_session import TlsEnded, TlsFailed, TlsSession
from stratalog.errors import Unavailable
from stratalog.ports import Buffer, SecuredProtocol

if TYPE_CHECKING:
    from OpenSSL import SSL

__all__ = ["TlsConnection"]

HANDSHAKE_S: Final = 30.0
"""How long a client may take for its handshake."""
_HANDSHAKE_BYTES_MAX: Final = 256 << 10
"""Most bytes of a handshake; OpenSSL takes 100 KiB of certificates."""
_RECORDS_A_TURN: Final = 256
"""Most records that one turn of the event loop decrypts: 4 MiB, or half a millisecond of tiny ones."""
_JOIN_BYTES: Final = 16 << 10
_FLUSH_BYTES: Final = 63 << 10
"""Bytes that are encrypted and go to the socket at a time: the client decrypts them while the next ones are encrypted.
With the heads of their records they fit one segment of the loopback, 65,483 bytes; 64 KiB need two."""

_WAKE_BYTES: Final = 64 << 10
"""Bytes of a large request that the broker waits for: clients such as librdkafka write records of 1 to 2 KiB, and each
would wake the broker, which costs both sides more than the record's bytes."""
_RECORD_BYTES_MAX: Final = 17 << 10
"""More than the longest encrypted record. So much of a request may be with OpenSSL, in a record that has not ended."""

_LARGE_BYTES: Final = 256 << 10
_AWAKE_NS: Final = 500_000
"""How long the event loop stays awake after a large answer for a client that asks again so soon (decision 0052)."""


class TlsConnection(asyncio.BufferedProtocol):
    """The protocol of one accepted connection; the inner protocol is a `SecuredProtocol`."""

    def __init__(
        self,
        inner: asyncio.BufferedProtocol,
        context: "SSL.Context",
        steps: PacedWorker,
        received: memoryview,
    ) -> None:
        """`steps` runs the steps of handshakes. `received` is the buffer that all connections of one listener fill.

        It holds nothing between two calls, and the core's cache keeps its bytes from the socket to their decryption.
        Two loops, on two threads, must not share one: the system fills it while the other thread runs.
        """
        self._inner = inner
        self._steps = steps
        self._received = received
        self._loop = asyncio.get_running_loop()
        self._tls = TlsSession(context)
        self._raw: asyncio.Transport | None = None
        self._is_secured = False
        self._step: asyncio.Future[bool] | None = None
        self._is_over = False
        """Whether the client has ended its stream."""
        self._arrived = bytearray()
        self._handshake_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._is_reading = True
        """Whether the inner protocol reads."""
        self._is_full = False
        """Whether the client does not take what it was sent."""
        self._raw_is_reading = True
        self._draining: asyncio.Handle | None = None
        self._wake_bytes = 1
        self._sent_ns = 0
        """When a large answer left; 0 once the client has asked again."""
        self._pause_ns = _AWAKE_NS
        """The client's pause between the last large answer and its next request."""
        self._is_awake = False

    # From the raw transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = raw = cast("asyncio.Transport", transport)
        self._deadline = self._loop.call_later(HANDSHAKE_S, self._give_up)
        self._inner.connection_made(TlsTransport(self, raw))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's name
        return self._received

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_secured:
            if self._sent_ns:
                self._pause_ns = perf_counter_ns() - self._sent_ns
                self._sent_ns = 0
            self._tls.receive(self._received[:nbytes])
            self._receive()
            return
        self._arrived += self._received[:nbytes]
        if self._step is None:
            self._go_on()
        else:
            self._read_or_stop()

    def eof_received(self) -> bool:
        self._is_over = True
        return self._step is not None  # what it finds out is logged first

    def connection_lost(self, exc: Exception | None) -> None:
        self._raw = None
        self._cancel_deadline()
        if self._draining is not None:
            self._draining.cancel()
        if self._step is None:  # else `_step_taken` passes it on: a failed step is logged first
            self._inner.connection_lost(exc)

    @property
    def is_closing(self) -> bool:
        """Whether the connection closes. A lost one does not before the inner protocol learns of it."""
        return self._raw is not None and self._raw.is_closing()

    def pause_writing(self) -> None:
        self._is_full = True
        self._inner.pause_writing()
        # TLS itself answers, too: a client could ask for new keys without end, and read none of the answers.
        self._read_or_stop()

    def resume_writing(self) -> None:
        self._is_full = False
        self._inner.resume_writing()
        if self._is_secured:
            self._drain_later()
        else:
            self._read_or_stop()

    # The handshake

    def _go_on(self) -> None:
        """Let the thread take the next step with the bytes that have arrived."""
        self._handshake_bytes += len(self._arrived)
        if self._handshake_bytes > _HANDSHAKE_BYTES_MAX:
            self._fail("the handshake is too long")
            return
        cast("SecuredProtocol", self._inner).shaking_hands(self._handshake_bytes)
        if self.is_closing:
            return
        self._pass_arrived()
        self._step = self._steps.submit(self._take_step)
        self._step.add_done_callback(self._step_taken)

    def _pass_arrived(self) -> None:
        self._tls.receive(bytes(self._arrived))
        self._arrived.clear()

    def _take_step(self) -> bool:
        """Return whether the handshake is complete. Raises TlsFailed."""
        return self._tls.go_on()

    def _step_taken(self, step: "asyncio.Future[bool]") -> None:
        self._step = None
        error = None if step.cancelled() else step.exception()
        raw = self._raw
        if isinstance(error, TlsFailed):
            self._fail(str(error))
        if raw is None:
            self._inner.connection_lost(None)
            return
        if isinstance(error, Unavailable):
            raw.abort()  # the node stops
            return
        if isinstance(error, TlsFailed) or step.cancelled():
            return
        self._flush()
        if step.result():
            self._complete()
        else:
            if self._arrived:
                self._go_on()
            self._read_or_stop()
        if self._is_over and self._step is None:
            raw.close()

    def _complete(self) -> None:
        try:
            subject = self._tls.subject()  # first of all: no client may pass without its name
        except TlsFailed as error:
            self._fail(str(error))
            return
        self._is_secured = True
        self._cancel_deadline()
        cast("SecuredProtocol", self._inner).secured(subject)
        self._pass_arrived()
        self._receive()

    def _give_up(self) -> None:
        self._deadline = None
        self._fail(f"no TLS handshake in {HANDSHAKE_S:g} s")

    def _fail(self, why: str) -> None:
        """Close because of a failed handshake."""
        self._cancel_deadline()
        if not self.is_closing:
            cast("SecuredProtocol", self._inner).refuse(why)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # Data

    def _receive(self) -> None:
        """Pass decrypted bytes on until there are none, the inner protocol pauses, or other connections must have a
        turn.
        """
        records_left = _RECORDS_A_TURN
        while records_left and self._may_pass_on():
            buffer = memoryview(self._inner.get_buffer(-1))
            try:
                filled, records_left, is_over = self._tls.decrypt(buffer, records_left)
            except TlsEnded:
                self.close()  # a client may wait for the broker's close_notify
                return
            except TlsFailed as error:
                cast("SecuredProtocol", self._inner).refuse(str(error))
                return
            if filled:
                self._inner.buffer_updated(filled)
            if is_over:
                break
        else:
            if not records_left:
                self._drain_later()
        self._flush()  # answers of TLS itself, such as new keys
        self._wake_late()
        self._read_or_stop()

    def _wake_late(self) -> None:
        """Let the system report bytes of a large request only once `_WAKE_BYTES` of them are there."""
        missing = cast("SecuredProtocol", self._inner).missing
        wake_bytes = max(1, min(_WAKE_BYTES, missing - _RECORD_BYTES_MAX))
        if wake_bytes != self._wake_bytes and self._raw is not None:
            self._wake_bytes = wake_bytes
            with suppress(OSError):  # a broken socket: the connection is about to be lost
                self._raw.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_RCVLOWAT, wake_bytes
                )

    def _may_pass_on(self) -> bool:
        is_open = self._raw is not None and not self._raw.is_closing()
        return self._is_reading and not self._is_full and is_open

    def _read_or_stop(self) -> None:
        """Receive while the inner protocol reads, the client takes its answers, and no received bytes wait."""
        raw = self._raw
        waits = self._draining is not None or (self._step is not None and bool(self._arrived))
        wanted = self._is_reading and not self._is_full and not waits
        if raw is not None and wanted != self._raw_is_reading and not raw.is_closing():
            self._raw_is_reading = wanted
            (raw.resume_reading if wanted else raw.pause_reading)()

    def send(self, buffers: Iterable[Buffer]) -> None:
        """Encrypt and send. Small buffers are joined, because each call makes a record of its own."""
        if self._raw is None or not self._is_secured:
            return
        small: list[Buffer] = []
        size = total = 0
        for buffer in buffers:
            total += len(buffer)
            if len(buffer) < _JOIN_BYTES:
                small.append(buffer)
                size += len(buffer)
                if size < _JOIN_BYTES:
                    continue
                buffer, small, size = b"".join(small), [], 0  # noqa: PLW2901
            elif small:
                self._encrypt(b"".join(small))
                small, size = [], 0
            self._encrypt(buffer)
        if small:
            self._encrypt(b"".join(small))
        self._flush()
        if total >= _LARGE_BYTES and not self._raw.get_write_buffer_size():
            self._sent_ns = perf_counter_ns()
            if self._pause_ns < _AWAKE_NS and not self._is_awake:
                self._is_awake = True
                self._loop.call_soon(self._stay_awake)

    def _stay_awake(self) -> None:
        """Keep the event loop from sleeping until the client's next request, or for `_AWAKE_NS`."""
        waits = self._sent_ns and self._raw is not None
        if waits and perf_counter_ns() - self._sent_ns < _AWAKE_NS:
            os.sched_yield()  # any other process that wants this core goes first
            self._loop.call_soon(self._stay_awake)
        else:
            self._is_awake = False

    def _encrypt(self, buffer: Buffer) -> None:
        for start in range(0, len(buffer), _FLUSH_BYTES):
            self._tls.encrypt(memoryview(buffer)[start : start + _FLUSH_BYTES])
            self._flush(_FLUSH_BYTES)

    def _flush(self, least: int = 1) -> None:
        """Send all encrypted bytes, if `least` of them wait."""
        if self._raw is not None:
            data = self._tls.taken(least)
            if data is not None:
                self._raw.write(data)

    def pause(self) -> None:
        """Pass no more bytes on, and go no further in a handshake."""
        self._is_reading = False
        self._read_or_stop()

    def resume(self) -> None:
        """Pass bytes on again: first those that have been received."""
        self._is_reading = True
        if self._is_secured:
            self._drain_later()
        else:
            self._read_or_stop()

    def _drain_later(self) -> None:
        if self._draining is None:
            self._draining = self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        self._draining = None
        self._receive()

    def close(self) -> None:
        """Send TLS's close_notify behind all data, and close."""
        raw = self._raw
        if raw is None or raw.is_closing():
            return
        if self._is_secured:
            self._tls.end()
        if self._step is None:
            self._flush()  # where a step failed, an alert for the client
        raw.close()


class TlsTransport(asyncio.Transport):
    """The transport that the inner protocol sees."""

    def __init__(self, connection: TlsConnection, raw: asyncio.Transport) -> None:
        super().__init__()
        self._connection = connection
        self._raw = raw

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._raw.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._connection.is_closing

    def close(self) -> None:
        self._connection.close()

    def abort(self) -> None:
        self._raw.abort()

    def write(self, data: Buffer) -> None:
        self._connection.send((data,))

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        self._connection.send(list_of_data)

    def pause_reading(self) -> None:
        self._connection.pause()

    def resume_reading(self) -> None:
        self._connection.resume()

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size()
