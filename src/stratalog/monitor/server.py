"""The monitor's HTTP server: `/`, `/metrics`, `/healthz`, `/readyz`.

In: HTTP requests on a port of their own. Out: text. It changes nothing on a node, and serves only a few connections
at a time. It runs on the broker's event loop. As the console, it answers to its own names and to IP addresses alone.
"""

import asyncio
from collections.abc import Iterable
from email.utils import formatdate
from html import escape
from typing import Any, Final

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from stratalog.broker.metrics import Histogram
from stratalog.http_server import Hosts, HttpServer
from stratalog.monitor.collect import Scraper
from stratalog.monitor.exposition import CONTENT_TYPE
from stratalog.monitor.health import health
from stratalog.monitor.pause import Pause
from stratalog.monitor.watched import Watched
from stratalog.ports import Network

_ROOT: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    '<meta name="color-scheme" content="light dark"><title>Stratalog</title><h1>A node of Stratalog</h1>'
    "<ul>{rows}</ul>{more}</html>"
)
_FOREIGN: Final = (
    "The monitor does not answer to this name: address it by its IP address or by a host of advertised.listeners, or "
    "set monitor.allowed.hosts.\n"
)
_PROBE_S: Final = 0.1
_SECOND_NS: Final = 1_000_000_000


class Monitor:
    """Serves one node's monitor. `open`, then `close`."""

    def __init__(self, watched: Watched, names: Iterable[str]) -> None:
        """`names` are those by which clients may address it."""
        self._watched = watched
        self._hosts = Hosts(names)
        self._loop_delay = Histogram()
        routes = [
            Route("/", self._root),
            Route("/metrics", self._metrics),
            Route("/healthz", self._healthz),
            Route("/readyz", self._readyz),
        ]
        self._server = HttpServer(self._application)
        self._pages = Starlette(routes=routes)
        self._scraper = Scraper(watched, self._loop_delay, self._server.ended)
        self._probe: asyncio.Task[None] | None = None

    async def open(self, network: Network, host: str, port: int) -> int:
        """Listen; return the port. Raises OSError where the address is in use."""
        bound = await self._server.open(network, host, port)
        self._probe = asyncio.get_running_loop().create_task(self._watch_loop())
        return bound

    async def close(self) -> None:
        """Wait a moment for answers in progress; then close the connections."""
        if self._probe is not None:
            self._probe.cancel()
        await self._server.close()

    async def _application(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            host = Headers(scope=scope).get("host")
            # A request of HTTP/1.0 without a Host is a load balancer's: browsers send one.
            is_known = host is None or self._hosts.knows(host)
            await (self._pages if is_known else PlainTextResponse(_FOREIGN, 403))(
                scope, receive, send
            )

    async def _root(self, _request: Request) -> Response:
        """List the pages, and the web console where one runs beside the node."""
        links = [
            ("/metrics", "metrics, for Prometheus"),
            ("/healthz", "whether the process lives"),
            ("/readyz", "whether the node serves clients"),
        ]
        console = self._watched.console_url()
        if console is not None:
            links.insert(0, (console, "the web console"))
        rows = "".join(f'<li><a href="{escape(to)}">{escape(text)}</a></li>' for to, text in links)
        more = (
            ""
            if console
            else "<p>For topics, records and groups run <code>strata console</code>.</p>"
        )
        return HTMLResponse(_ROOT.format(rows=rows, more=more))

    async def _metrics(self, _request: Request) -> Response:
        return StreamingResponse(self._scraper.pieces(), media_type=CONTENT_TYPE)

    async def _healthz(self, _request: Request) -> Response:
        """Answer that the process lives and its event loop turns."""
        return PlainTextResponse("ok\n")

    async def _readyz(self, _request: Request) -> Response:
        found = await health(self._watched, Pause(self._watched.clock.elapsed_ns))
        # `strata check` compares the node's clock with its own.
        headers = {"date": formatdate(self._watched.clock.now_ms() / 1000, usegmt=True)}
        if found.reasons:
            text = "".join(f"{line}\n" for line in found.reasons)
            return PlainTextResponse(text, 503, headers)
        return PlainTextResponse("ready\n", headers=headers)

    async def _watch_loop(self) -> None:
        elapsed_ns = self._watched.clock.elapsed_ns
        while True:
            due_ns = elapsed_ns() + int(_PROBE_S * _SECOND_NS)
            await asyncio.sleep(_PROBE_S)
            self._loop_delay.observe(max(elapsed_ns() - due_ns, 0))
