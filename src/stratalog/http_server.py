"""Serve an ASGI application over HTTP on a port that this project's network bound.

In: an application, HTTP requests. Out: its answers. It serves only a few connections at a time, installs no signal
handler, and starts no thread.

It is uvicorn's protocol without uvicorn's server: a taken port gives the usual error, and the event loop stays its
caller's. Every connection is bounded: the number of them, their silence, the time of a request and of its answer. A
client of another address finds a place where one address has taken all.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final, cast

import h11
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from stratalog.ports import PLAINTEXT, Listener, Network, Security

__all__ = ["Hosts", "HttpLimits", "HttpServer"]

_CLOSE_S: Final = 1.0
_BUFFER_BYTES: Final = 16 << 10
"""One record of TLS."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """`connections_max` are open at a time; a client must ask within `silent_s`, and have its answer in `answer_s`.

    `silent_s` counts from the connection's start, and for a later request from its first byte to the end of its head.
    """

    connections_max: int = 32
    silent_s: float = 10.0
    answer_s: float = 60.0


class Hosts:
    """The names by which clients may address a server, besides localhost and each IP address.

    A page of a foreign site may be made to look like one of a server's own by its name alone (DNS rebinding).
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {"localhost", *(name.lower() for name in names)} - {""}

    def knows(self, header: str) -> bool:
        """Return whether a Host header names this server: no foreign name can stand for an IP address."""
        name = header.rsplit(":", 1)[0] if not header.endswith("]") else header
        name = name.strip("[]").lower()
        if name in self._names:
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True


class HttpServer:
    """Serves one application. `open`, then `close`."""

    def __init__(self, application: Callable[..., Any], limits: HttpLimits | None = None) -> None:
        self._application = application
        self._limits = limits or HttpLimits()
        self._state = ServerState()
        self._bound: Listener | None = None
        self.ended: Counter[str] = Counter()
        """Connections that the server ended: `displaced` for the place of another, `late` in a request or an answer."""

    async def open(
        self, network: Network, host: str, port: int, security: Security = PLAINTEXT
    ) -> int:
        """Listen; return the port. Raises OSError where the address is in use, UserError for unusable keys."""
        config = Config(
            self._bounded,
            http="h11",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,
        )
        config.load()

        def accept() -> asyncio.BaseProtocol:
            kind = _Connection if security.tls is None else _SecuredConnection
            return kind(config, self._state, self._limits, self.ended)

        self._bound = await network.listen(host, port, accept, security)
        await self._bound.accept()
        return self._bound.port

    async def close(self) -> None:
        """Wait a moment for answers in progress; then close the connections."""
        if self._bound is not None:
            await self._bound.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=_CLOSE_S)
        for connection in list(self._state.connections):
            connection.transport.abort()
        for task in list(self._state.tasks):
            task.cancel()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=_CLOSE_S)

    async def _bounded(self, scope: Any, receive: Any, send: Any) -> None:
        """Run the application so that every answer ends: the connection of a client that does not read is closed."""
        try:
            async with asyncio.timeout(self._limits.answer_s):
                await self._application(scope, receive, send)
        except TimeoutError:
            return


class _Connection(H11Protocol):
    """Uvicorn's protocol with limits: close surplus and idle connections, and those that send no HTTP."""

    def __init__(
        self, config: Config, state: ServerState, limits: HttpLimits, ended: Counter[str]
    ) -> None:
        super().__init__(config, state, {})
        self._limits = limits
        self._ended = ended
        self._deadline: asyncio.TimerHandle | None = None
        """When the connection ends, unless a whole head has arrived or, once it closes, its answer has left."""
        self._active_s = 0.0
        self._is_ended = False

    @property
    def _is_answering(self) -> bool:
        """Whether an answer is under way: the application has `answer_s` for it."""
        cycle = cast(RequestResponseCycle | None, self.cycle)
        return cycle is not None and not cycle.response_complete

    @property
    def _host(self) -> str:
        return "" if self.client is None else self.client[0]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._active_s = self.loop.time()
        self._watch()
        others = [
            one
            for one in cast("set[_Connection]", self.connections)
            if not one._is_ended and one is not self  # noqa: SLF001 - of this class
        ]
        if len(others) >= self._limits.connections_max:
            (self._gives_way(others) or self)._end("displaced")  # noqa: SLF001

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # uvicorn leaves it after an error
        self._stop_watching()

    def data_received(self, data: bytes) -> None:
        self._active_s = self.loop.time()
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing() or self._has_begun:
            self._watch()

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection, because its client has asked nothing for long."""
        super().timeout_keep_alive_handler()
        self._watch()  # the client may not take its last answer

    @property
    def _has_begun(self) -> bool:
        """Whether a part of a request has arrived, in its head or in a body that no answer waits for."""
        return bool(self.conn.trailing_data[0]) or self.conn.their_state is h11.SEND_BODY

    def _watch(self) -> None:
        """Begin the deadline of a head, or of the last answer of a connection that closes."""
        is_closing = self.transport.is_closing()
        if self._is_answering and not is_closing:
            self._stop_watching()
        elif self._deadline is None:
            limit_s = self._limits.answer_s if is_closing else self._limits.silent_s
            self._deadline = self.loop.call_later(limit_s, self._end, "late")

    def _end(self, why: str) -> None:
        self._is_ended = True
        self._ended[why] += 1
        self.transport.abort()

    def _stop_watching(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _gives_way(self, others: "list[_Connection]") -> "_Connection | None":
        """Return which one gives its place to this one: one of the address that has most, the longest silent one first.

        An answer under way is given up only for a client of an address that has fewer connections.
        """
        count = Counter(one._host for one in (self, *others))  # noqa: SLF001 - of this class
        own = count[self._host]
        able = [
            one
            for one in others
            if count[one._host] > own or (count[one._host] == own and not one._is_answering)  # noqa: SLF001
        ]
        return max(
            able,
            key=lambda one: (count[one._host], not one._is_answering, -one._active_s),  # noqa: SLF001
            default=None,
        )

    def send_400_response(self, msg: str) -> None:
        # Uvicorn would send its error within an unfinished answer: both together are no HTTP.
        cycle = cast(RequestResponseCycle | None, self.cycle)
        if cycle is not None:
            cycle.disconnected = True
            cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()


class _SecuredConnection(_Connection):
    """The same above TLS: a `ports.SecuredProtocol`, whose bytes come through a buffer."""

    missing = 0

    def __init__(
        self, config: Config, state: ServerState, limits: HttpLimits, ended: Counter[str]
    ) -> None:
        super().__init__(config, state, limits, ended)
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's name
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._buffer[:nbytes]))

    def secured(self, subject: str) -> None:
        """Take no identity from a certificate: the login names the viewer."""

    def shaking_hands(self, size: int) -> None:
        """Count nothing: connections are few."""

    def refuse(self, why: str) -> None:
        """Close the connection, because its handshake failed."""
        del why
        self.transport.abort()
