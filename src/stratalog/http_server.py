"""Serve an ASGI application over HTTP on a port that this project's network bound.

In: an application, HTTP requests. Out: its answers. It serves only a few connections at a time, installs no signal
handler, and starts no thread.

It is uvicorn's protocol without uvicorn's server: a taken port gives the usual error, and the event loop stays its
caller's. Every connection is bounded: the number of them, their silence, the time of an answer.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

import h11
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from stratalog.ports import PLAINTEXT, Listener, Network, Security

__all__ = ["HttpLimits", "HttpServer"]

_CLOSE_S: Final = 1.0
_BUFFER_BYTES: Final = 16 << 10
"""One record of TLS."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """`connections_max` are open at a time; a client must ask within `silent_s`, and have its answer in `answer_s`."""

    connections_max: int = 32
    silent_s: float = 10.0
    answer_s: float = 60.0


class HttpServer:
    """Serves one application. `open`, then `close`."""

    def __init__(self, application: Callable[..., Any], limits: HttpLimits | None = None) -> None:
        self._application = application
        self._limits = limits or HttpLimits()
        self._state = ServerState()
        self._bound: Listener | None = None

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
            return kind(config, self._state, self._limits)

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

    def __init__(self, config: Config, state: ServerState, limits: HttpLimits) -> None:
        super().__init__(config, state, {})
        self._limits = limits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections_max:
            transport.abort()
            return
        self.loop.call_later(self._limits.silent_s, self._end_silent)

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

    def _end_silent(self) -> None:
        if cast(object, self.cycle) is None:  # no request has arrived yet
            self.transport.abort()


class _SecuredConnection(_Connection):
    """The same above TLS: a `ports.SecuredProtocol`, whose bytes come through a buffer."""

    missing = 0

    def __init__(self, config: Config, state: ServerState, limits: HttpLimits) -> None:
        super().__init__(config, state, limits)
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's name
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._buffer[:nbytes]))

    def secured(self, subject: str) -> None:
        """Take no identity from a certificate: the login names the viewer."""

    def refuse(self, why: str) -> None:
        """Close the connection, because its handshake failed."""
        del why
        self.transport.abort()
