"""One client's connection: frames in, answers out in request order.

In: bytes of one connection. Out: calls to the handlers, and their answers as bytes. It knows no API.

The connection serves requests one after another, as in Kafka: a request after a produce sees its records. Only produces
may overlap while their answers are pending (a producer's pipelined batches), because the log keeps their order: a
handler that returns a future has already decided its appends. Reading stops while too much is unanswered or the client
does not read its answers, so a connection's memory is bounded.

A turn is bounded, in requests and in time. Requests left over wait until all other connections had a turn (`turns.py`).
The broker serves a single request at once. The answers of a turn leave together, because separate system calls took a
third of the time of small requests.

A connection whose requests are small produces is lent to the door, which then reads and answers them. It comes back
with the first bytes that are something else (`lending.py`).

A failure of a handler costs this connection, and nothing else.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Final, cast

from msgspec import Struct, field

from stratalog.broker.network.answers import Answer, Awaited, Later, Serve, as_it_is, may_overlap
from stratalog.broker.network.audit import Audit
from stratalog.broker.network.client_memory import LITTLE_BYTES, ClientMemory
from stratalog.broker.network.lending import NOT_LENT, SOON, Lender, Loans
from stratalog.broker.network.limited_log import LimitedLog
from stratalog.broker.network.sending import send, takes_files
from stratalog.broker.network.session import Session
from stratalog.broker.network.turns import Turns
from stratalog.config.addresses import address_text
from stratalog.errors import Rejected
from stratalog.ports import Buffer
from stratalog.wire.frames import FrameReader

_WAITING_FRAMES_MAX: Final = 16
_TURN_REQUESTS: Final = 32
_TURN_NS: Final = 500_000
_WAITING_BYTES_MAX: Final = 1 << 20
_HELD_BYTES_MAX: Final = 64 << 10


_OF_IPV6: Final = 4
"""Items in the address of an IPv6 peer: host, port, flow, scope."""


class Shared(Struct):
    """Objects that all connections of a node share."""

    frame_bytes_max: int
    scratch: bytearray
    """The receive buffer of all connections."""
    memory: ClientMemory
    turns: Turns
    audit: Audit | None = None
    lender: Lender | None = None
    """Lends connections to the door, where there is one."""
    unknown_bytes_max: int = 512 << 10
    """The limit of a frame before its client has authenticated by SASL."""
    buffer: Callable[[int], bytearray] = bytearray
    log: LimitedLog = field(default_factory=LimitedLog)


class Connection(asyncio.BufferedProtocol):
    """One client's connection on the server."""

    def __init__(
        self,
        serve: Serve,
        shared: Shared,
        session: Session,
        *,
        opened: Callable[["Connection"], bool],
        closed: Callable[["Connection"], None],
    ) -> None:
        """`opened` returns whether the broker accepts the connection."""
        self.peer = ""
        self.session = session
        self.active_s = 0.0
        """When the last bytes arrived, in the loop's time."""
        self.opened_s = 0.0
        self.began_s = self.receiving_since_s = 0.0
        """When the partly received request began to arrive; and when it did, or could continue to."""
        self.is_unknown = session.sasl is not None or session.listener.security.tls is not None
        """Whether the client must still log in, or complete its handshake."""
        self.holder: Hashable = ""
        """The client that the memory of its requests counts for."""
        self.bytes_held = 0
        """Bytes of requests received, whole or in part, and not yet answered, as `memory` counts them."""
        self.loans = Loans(shared)
        self._shared = shared
        self._memory = shared.memory
        self._turns = shared.turns
        self._waits_for_turn = False
        self._held: list[Buffer] = []
        self._held_bytes = self._bytes_unsent = self._bytes_started = 0
        self._serve = serve
        self._opened, self._closed = opened, closed
        self._frame_bytes_max = shared.frame_bytes_max
        limit = shared.frame_bytes_max if session.sasl is None else shared.unknown_bytes_max
        self._reader = FrameReader(limit, shared.scratch, shared.buffer, frames_max=_TURN_REQUESTS)
        self._frames: deque[memoryview] = deque()
        self._waiting_bytes = 0
        self._answers: deque[tuple[asyncio.Future[Any], Callable[[Any], Answer], int]] = deque()
        self._transport: asyncio.Transport | None = None
        self._serial: asyncio.Future[Any] | None = None
        self._serial_goes_on = False
        self._reading = True
        self._writable = True
        self._is_full = False
        self._unmute: asyncio.TimerHandle | None = None
        self._finishing = False
        self._loop = asyncio.get_running_loop()
        self._log = shared.log

    @property
    def is_idle(self) -> bool:
        """Whether every request is answered."""
        is_free = not self._answers and not self._frames and self._serial is None
        return is_free and not self.loans.is_waiting

    @property
    def is_receiving(self) -> bool:
        """Whether a part of a request has arrived, and the rest has not."""
        return self._reader.bytes_held > 0

    @property
    def is_reading(self) -> bool:
        """Whether the broker reads from the client."""
        return self._reading

    @property
    def is_taken(self) -> bool:
        """Whether the client receives its answers."""
        return not self._is_full

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not asserted: uvloop's transports have all of asyncio.Transport, but do not derive from it.
        self._transport = cast(asyncio.Transport, transport)
        self.active_s = self.opened_s = self._loop.time()
        peer = transport.get_extra_info("peername")
        host = str(peer[0]) if isinstance(peer, tuple) else str(peer)
        self.session.host = address_text(_scoped(peer) if isinstance(peer, tuple) else host)
        self.session.port = peer[1] if isinstance(peer, tuple) else 0
        self.peer = f"{host}:{peer[1]}" if isinstance(peer, tuple) else host
        self.session.mute = self.mute
        self.session.sends_files = takes_files(transport)
        self.holder = self.session.holder
        if not self._opened(self):
            self.abort()
        elif self.is_unknown:
            self._memory.unknown[self] = 0

    def secured(self, subject: str) -> None:
        """Name the client by its certificate, on a listener that authenticates by TLS alone."""
        if subject and not self.session.names_by_certificate(subject):
            self.refuse("no rule of ssl.principal.mapping.rules names the client, on one line")
        else:
            self.session.is_secured = True
            self._count_held(0)
            if self.session.sasl is None:
                self._logged_in()

    def shaking_hands(self, size: int) -> None:
        """Count the bytes of a handshake that is not complete."""
        self._count_held(size)

    def _logged_in(self) -> None:
        """Count for the client, whose name is known from now on."""
        held = self.bytes_held
        self._count_held(0)
        self.is_unknown = False
        self._memory.unknown.pop(self, None)
        self.holder = self.session.holder
        self._count_held(held)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer(sizehint)

    @property
    def missing(self) -> int:
        return self._reader.missing

    def buffer_updated(self, nbytes: int) -> None:
        reader = self._reader
        self.active_s = now = self._loop.time()
        held = reader.bytes_held
        try:
            frames = reader.buffer_updated(nbytes)
        except Rejected as error:
            self.refuse(error.message)
            return
        if frames or not held:
            self.began_s = self.receiving_since_s = now
        if self._finishing:
            reader.drop_rest()
            return
        self._frames += frames
        self._waiting_bytes += sum(map(len, frames))
        self._advance()

    def mute(self, seconds: float, then: Callable[[], None] | None = None) -> None:
        """Start no request until then, as if the client did not receive its answers; then do so, or `then`."""
        until_s = self._loop.time() + seconds
        self._writable = False
        if self._unmute is not None:
            if self._unmute.when() >= until_s:
                return
            self._unmute.cancel()
        self._unmute = self._loop.call_at(until_s, then or self._unmuted)
        if then is not None:
            self._loop.call_soon(self._read_or_stop)  # uvloop reads after connection_made

    def _unmuted(self) -> None:
        self._unmute = None
        self._writable = not self._is_full
        self._advance()

    def pause_writing(self) -> None:
        self._is_full = True
        self._writable = False
        assert self._transport is not None, "a transport that writes"
        self._count_unsent(self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._is_full = False
        self._writable = self._unmute is None
        self._count_unsent(0)
        self._advance()

    def _count_unsent(self, size: int) -> None:
        self._memory.answers += size - self._bytes_unsent
        self._bytes_unsent = size

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's name
        self._reclaim()
        self._transport = None
        self._forget()
        self.session.ended()  # else each keeps the other, and its memory
        self._reader.end()  # the connection may live on, and the buffer has grown for bytes that never came
        if self._unmute is not None:
            self._unmute.cancel()
        self._answers.clear()
        if self._serial is not None and not self._serial_goes_on:
            # A fetch, a join. A new task takes its first step first, so that it awaits the handler's coroutine.
            self._loop.call_soon(self._serial.cancel)
        self._count_unsent(0)
        self._count_held(0)
        self._memory.forget(self)
        self._closed(self)

    def refuse(self, why: str) -> None:
        """Close this connection because of an invalid request, with a line in the log."""
        if self._transport is not None and not self._transport.is_closing():
            software = self.session.software
            self._log.warning("connection closed", peer=self.peer, software=software, reason=why)
            if self._shared.audit is not None:
                self._shared.audit.refused(self.session, why)
        self.close()

    def finish(self) -> None:
        """Start no further request; close once all started ones are answered."""
        self.loans.recall_waiting()
        self._reclaim()
        self._finishing = True
        self._forget()
        self._advance()

    def close(self) -> None:
        """Close once all written answers have left."""
        if self._transport is not None:
            self._reclaim()
            self._forget()
            self._send_held()
            self._transport.close()

    def abort(self) -> None:
        """Close now, and drop unsent answers."""
        if self._transport is not None:
            self._reclaim()
            self._forget()
            self._transport.abort()

    def give_up(self, why: str) -> None:
        """Close now, to free what this connection holds, without a line of its own in the log."""
        if self._transport is not None and self._shared.audit is not None:
            self._shared.audit.refused(self.session, why)
        self.abort()
        self._reader.end()
        self._count_held(0)
        self._memory.unknown.pop(self, None)  # it must not give way twice

    def _forget(self) -> None:
        self._reader.drop_rest()
        self._frames.clear()
        self._waiting_bytes = 0

    def read_on(self) -> None:
        """Read again, because memory is available; from now on the client is responsible for delays."""
        self.receiving_since_s = self._loop.time()
        self._advance()

    def _advance(self) -> None:
        """Start requests that may start, then continue or stop reading."""
        frames = self._frames
        if frames and not self._waits_for_turn:
            if len(frames) > 1 and len(self._turns):
                self._wait_for_turn()
            else:
                self._start_some()
                self._send_held()
        self._read_or_stop()

    def _wait_for_turn(self) -> None:
        self._waits_for_turn = True
        self._turns.wait(self._turn_comes)

    def _turn_comes(self) -> None:
        self._waits_for_turn = False
        self._start_some()
        self._send_held()
        self._read_or_stop()

    def _start_some(self) -> None:
        """Start requests within the limits of a turn."""
        frames, answers = self._frames, self._answers
        elapsed_ns = self._turns.elapsed_ns
        until_ns = elapsed_ns() + _TURN_NS if len(frames) > 1 else 0
        left = _TURN_REQUESTS
        while (
            frames
            and self._serial is None
            and self._writable
            and (not answers or may_overlap(frames[0], len(answers), self._bytes_started))
        ):
            frame = frames.popleft()
            self._waiting_bytes -= len(frame)
            self._start(frame)
            if not frames:
                if not self._reader.has_more:
                    return
                self._take_more()
            left -= 1
            if not left or elapsed_ns() >= until_ns:
                self._wait_for_turn()
                return

    def _take_more(self) -> None:
        """Take the next requests from the received bytes."""
        try:
            frames = self._reader.next_frames()
        except Rejected as error:
            self.refuse(error.message)
            return
        self._frames += frames
        self._waiting_bytes += sum(map(len, frames))

    def _read_or_stop(self) -> None:
        transport = self._transport
        if transport is None:
            return
        is_lent = self.loans.id != NOT_LENT
        if self._finishing and not is_lent:
            if self.is_idle:
                transport.close()
            return
        memory, reader = self._memory, self._reader
        held = reader.bytes_held + self._waiting_bytes + self._bytes_started
        if held != self.bytes_held:
            before, self.bytes_held = self.bytes_held, held
            if held > LITTLE_BYTES or before > LITTLE_BYTES or self.is_unknown:
                memory.hold(self, before, held)
            else:
                memory.requests += held - before
            if held < before:
                memory.freed(self)
        wanted = (
            self._writable
            and not reader.has_more
            and self._waiting_bytes < _WAITING_BYTES_MAX
            and len(self._frames) < _WAITING_FRAMES_MAX
            and (
                memory.requests < memory.requests_max
                or self.is_unknown
                or memory.may_read(self, held)
            )
        )
        if wanted != self._reading and not is_lent and not transport.is_closing():
            self._reading = wanted
            (transport.resume_reading if wanted else transport.pause_reading)()

    def _count_held(self, held: int) -> None:
        before, self.bytes_held = self.bytes_held, held
        self._memory.hold(self, before, held)

    def _start(self, frame: memoryview) -> None:
        try:
            result = self._serve(self.session, frame)
        except Exception as error:  # noqa: BLE001 - carried to the log; the connection ends
            self._fail(error)
            return
        if self._shared.lender is not None and self.loans.is_due(frame, result):
            self._begin_loan(frame)
        self._begun(result, len(frame))

    def _begun(self, result: Answer | Later, frame_bytes: int) -> None:
        """Write the answer of a request, now or once it is there."""
        if not isinstance(result, Later):
            if not self._answers:
                self._write(result)
                return
            ready: asyncio.Future[Answer] = self._loop.create_future()
            ready.set_result(result)
            result = Later(ready, as_it_is)
        work, then = result.work, self._serial_done
        if isinstance(work, Awaited):
            self._serial = work
        elif isinstance(work, asyncio.Future):
            then = self._flush
        else:
            self._serial = work = self._loop.create_task(work)
        self._serial_goes_on = result.goes_on
        size = frame_bytes + result.size
        self._bytes_started += size
        self._answers.append((work, result.encode, size))
        work.add_done_callback(then)

    def _begin_loan(self, frame: memoryview | None) -> None:
        """Stop reading, and lend the connection once the answer has left: the door writes past the transport."""
        transport = self._transport
        if frame and transport and self._reading and not transport.is_closing():
            transport.pause_reading()
            self.loans.id = SOON
            self._loop.call_soon(self._lend, frame)

    def _lend(self, frame: memoryview) -> None:
        """Let the door read this connection, if nothing of it is under way here. `frame` is its latest request."""
        transport, lender = self._transport, self._shared.lender
        self.loans.id = NOT_LENT
        if transport is None or transport.is_closing():
            return
        is_quiet = (
            self.is_idle
            and self._reader.is_empty
            and self._reading
            and self._writable
            and not (self._waits_for_turn or self._held or transport.get_write_buffer_size())
        )
        if lender is not None and is_quiet and not self._finishing:
            self.loans.id = lender.lend(self, transport, frame)
            if self.loans.id == NOT_LENT:
                self.loans.ended(was_useful=False)
        if self.loans.id == NOT_LENT:
            if self._reading:
                transport.resume_reading()
            self._advance()

    def _reclaim(self) -> None:
        """Take the connection back from the door, because it ends: unsent answers leave, further requests do not."""
        lender = self._shared.lender
        if lender is None or self.loans.id < 0:
            return
        unsent = lender.reclaim(self.loans.id)
        self.loans.ended(was_useful=True)
        if unsent and self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(unsent)

    def take_back(
        self, unsent: list[Buffer], results: list[tuple[Answer | Later, int]], rest: bytes
    ) -> None:
        """See `Lent`."""
        # Other requests than rows come again and again; a slow drive and a full socket do not. Large answers do.
        self.loans.ended(was_useful=bool(results) or 0 < sum(map(len, unsent)) < _HELD_BYTES_MAX)
        transport = self._transport
        if transport is None or transport.is_closing():
            for result, _ in results:
                if isinstance(result, Later):
                    result.drop()
            return
        if unsent:
            transport.writelines(unsent)
        for result, frame_bytes in results:
            self._begun(result, frame_bytes)
        self._send_held()
        if rest:
            self.active_s = self.began_s = self.receiving_since_s = self._loop.time()
            self._reader.put_back(rest)
            self._take_more()
        self._advance()

    def _serial_done(self, done: "asyncio.Future[Any]") -> None:
        self._serial = None
        due, self.loans.due = self.loans.due, None
        self._flush(done)
        self._begin_loan(due)
        sasl = self.session.sasl
        if sasl is not None:
            if sasl.has_failed:
                self.close()
            elif sasl.is_known:
                self._reader.limit(self._frame_bytes_max)
                if self.is_unknown:
                    self._logged_in()

    def _flush(self, done: "asyncio.Future[Any]") -> None:
        """Write the answers that are next in order."""
        if self._transport is None:
            self._give_up(done)
            return
        while self._answers and self._answers[0][0].done():
            work, encode, size = self._answers.popleft()
            self._bytes_started -= size
            try:
                self._write(encode(work.result()))
            except asyncio.CancelledError:
                self.close()
            except Exception as error:  # noqa: BLE001 - carried to the log; the connection ends
                self._fail(error)
        self._send_held()
        self._advance()

    def _give_up(self, done: "asyncio.Future[Any]") -> None:
        """Log a bug in a request whose client has disconnected."""
        error = None if done.cancelled() else done.exception()
        if error is not None and not isinstance(error, Rejected):
            self._log.error("request failed", peer=self.peer, exc_info=error)

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, Rejected):
            self.refuse(error.message)
            return
        self._log.error("request failed", peer=self.peer, exc_info=error)
        self.close()

    def _write(self, buffers: Answer) -> None:
        """Hold an answer until `_send_held`. The bytes held are few, whether the client receives them or not."""
        if buffers is not None:
            self._held += buffers
            self._held_bytes += sum(map(len, buffers))
            if self._held_bytes >= _HELD_BYTES_MAX:
                self._send_held()

    def _send_held(self) -> None:
        held, transport = self._held, self._transport
        if not held:
            return
        size, self._held, self._held_bytes = self._held_bytes, [], 0
        if transport is not None and not transport.is_closing():
            is_encrypted = self.session.listener.security.tls is not None
            send(transport, held, size, self.peer, is_encrypted=is_encrypted)


def _scoped(peer: tuple[Any, ...]) -> str:
    """Return the address of a peer; a link-local one has the number of its interface, as in Java, and no name."""
    host, scope = str(peer[0]).partition("%")[0], peer[3] if len(peer) == _OF_IPV6 else 0
    return f"{host}%{scope}" if scope else host
