"""The monitor's HTTP server: `/metrics`, `/healthz`, `/readyz`.

In: HTTP requests on a port of their own. Out: text. It changes nothing on a node, and serves only a few connections
at a time.

It runs on the broker's event loop: uvicorn's protocol on a port that this project's network bound. So a taken port
gives the usual error, and no second handler of signals comes into the process.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

import h11
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from stratalog.broker.metrics import Histogram
from stratalog.monitor.collect import Scraper
from stratalog.monitor.exposition import CONTENT_TYPE
from stratalog.monitor.health import health
from stratalog.monitor.pause import Pause
from stratalog.monitor.watched import Watched
from stratalog.ports import PLAINTEXT, Listener, Network

_CONNECTIONS_MAX: Final = 32
_SILENT_S: Final = 10.0
"""Time after which the monitor closes an idle connection, and one whose client does not read its answer."""
_ANSWER_S: Final = 60.0
_CLOSE_S: Final = 1.0
_PROBE_S: Final = 0.1
_SECOND_NS: Final = 1_000_000_000


class Monitor:
    """Serves one node's monitor. `open`, then `close`."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._loop_delay = Histogram()
        self._scraper = Scraper(watched, self._loop_delay)
        self._state = ServerState()
        self._bound: Listener | None = None
        self._probe: asyncio.Task[None] | None = None

    async def open(self, network: Network, host: str, port: int) -> int:
        """Listen; return the port. Raises OSError where the address is in use."""
        routes = [
            Route("/metrics", self._metrics),
            Route("/healthz", self._healthz),
            Route("/readyz", self._readyz),
        ]
        config = Config(
            _bounded(Starlette(routes=routes)),
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
        self._bound = await network.listen(host, port, self._accepting(config), PLAINTEXT)
        await self._bound.accept()
        self._probe = asyncio.get_running_loop().create_task(self._watch_loop())
        return self._bound.port

    async def close(self) -> None:
        """Wait a moment for answers in progress; then close the connections."""
        if self._probe is not None:
            self._probe.cancel()
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

    def _accepting(self, config: Config) -> Callable[[], asyncio.BaseProtocol]:
        state = self._state

        def accept() -> asyncio.BaseProtocol:
            return _Connection(config, state, {})

        return accept

    async def _metrics(self, _request: Request) -> Response:
        return StreamingResponse(self._scraper.pieces(), media_type=CONTENT_TYPE)

    async def _healthz(self, _request: Request) -> Response:
        """Answer that the process lives and its event loop turns."""
        return PlainTextResponse("ok\n")

    async def _readyz(self, _request: Request) -> Response:
        found = await health(self._watched, Pause(self._watched.clock.elapsed_ns))
        if found.reasons:
            text = "".join(f"{line}\n" for line in found.reasons)
            return PlainTextResponse(text, status_code=503)
        return PlainTextResponse("ready\n")

    async def _watch_loop(self) -> None:
        elapsed_ns = self._watched.clock.elapsed_ns
        while True:
            due_ns = elapsed_ns() + int(_PROBE_S * _SECOND_NS)
            await asyncio.sleep(_PROBE_S)
            self._loop_delay.observe(max(elapsed_ns() - due_ns, 0))


class _Connection(H11Protocol):
    """Uvicorn's protocol with limits: close surplus and idle connections, and those that send no HTTP."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > _CONNECTIONS_MAX:
            transport.abort()
            return
        self.loop.call_later(_SILENT_S, self._end_silent)

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


def _bounded(app: Starlette) -> Callable[..., Any]:
    """Wrap the application so that every answer ends: the connection of a client that does not read is closed."""

    async def bounded(scope: Any, receive: Any, send: Any) -> None:
        try:
            async with asyncio.timeout(_ANSWER_S):
                await app(scope, receive, send)
        except TimeoutError:
            return

    return bounded
