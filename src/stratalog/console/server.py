"""The console's HTTP side: requests in, pages out, and every guard in between.

In: HTTP requests. Out: a page as HTML, or as JSON where the path ends in .json; the queries' numbers for Prometheus;
static files. It never makes a page itself, and no request runs for longer than a few seconds.

The guards: a Host that is not ours is refused (DNS rebinding); with logins, a request without one gets 401; a
change needs the token of one of our pages and the same origin (CSRF); and every answer forbids scripts, styles, frames
and forms of other origins (CSP).
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from stratalog.console.logins import CHALLENGES, Logins
from stratalog.console.page import JSON, Context, Page, PageRequest, failed, path_of, refused
from stratalog.console.pages import page_of
from stratalog.console.pages.pipelines import query_samples
from stratalog.console.rendering import STATIC, html, json_bytes
from stratalog.errors import Corrupt, Fenced, Rejected, Unavailable, UserError
from stratalog.http_server import Hosts, HttpLimits, HttpServer
from stratalog.ports import PLAINTEXT, Network, Security

__all__ = ["ConsoleServer"]

_PAGE_S: Final = 15.0
_FORM_BYTES_MAX: Final = 64 * 1024
_QUERY_BYTES_MAX: Final = 16 * 1024
_PAGES_AT_A_TIME: Final = 16
_LIMITS: Final = HttpLimits(connections_max=64, silent_s=10.0, answer_s=30.0)
_FOREIGN: Final = (
    "The console does not answer to this name: address it as localhost or by its IP address, or start it with "
    "--allow-host NAME.\n"
)
_WRONG_LOGIN_S: Final = 0.5
"""How long the answer to a wrong login waits: guessing takes long."""
_NOTE_EACH_MS: Final = 1_000
"""A guesser cannot fill the log: at most a line each second."""
_NO_LOGIN: Final = "The console asks for a user and a password, or a token.\n"
_PROMETHEUS: Final = ("pipelines.prom",)
"""The path at which Prometheus scrapes the numbers of the page of pipelines."""
_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Not no-referrer: browsers then send "Origin: null" with our own forms.
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class ConsoleServer:
    """Serves the console. `open`, then `close`."""

    def __init__(
        self,
        context: Context,
        host: str,
        names: Collection[str] = (),
        logins: Logins | None = None,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`host` is the address to listen on; `names` are further names by which browsers may address the console.

        Without `logins` it answers any client. `note` gets a line for wrong logins.
        """
        self._note = note
        self._noted_until_ms = 0
        self._logins = logins
        self._context = context
        self._host = host
        self._hosts = Hosts([host, *names])
        self._pages = asyncio.Semaphore(_PAGES_AT_A_TIME)
        self._server = HttpServer(self._application, _LIMITS)

    async def open(self, network: Network, port: int, security: Security = PLAINTEXT) -> int:
        """Listen; return the port. Raises OSError where the address is in use, UserError for unusable keys."""
        bound = await self._server.open(network, self._host, port, security)
        if self._context.measured is not None:
            self._context.measured.open()
        return bound

    async def close(self) -> None:
        """Close connections, and the clients of the cluster."""
        await self._server.close()
        await self._context.cluster.close()
        if self._context.measured is not None:
            await self._context.measured.close()

    async def _application(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            response = await self._answer(Request(scope, receive))
            for name, value in _HEADERS.items():
                response.headers.setdefault(name, value)
            await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        parts, as_json = _parts_of(request.scope.get("raw_path") or b"/")
        if not self._hosts.knows(request.headers.get("host", "")):
            # Plain, for a foreign site's script may read it: it says nothing about the cluster.
            return PlainTextResponse(_FOREIGN, 403)
        given = request.headers.get("authorization", "")
        if self._logins is not None and not self._logins.accept(given):
            return await self._no_login(request, is_wrong=bool(given))
        if parts[:1] == ("static",) and len(parts) == 2 and parts[1] in STATIC:
            kind, data = STATIC[parts[1]]
            caching = {"cache-control": "public, max-age=31536000, immutable"}
            return Response(data, media_type=kind, headers=caching)
        for_prometheus = parts == _PROMETHEUS
        page = await self._page(request, ("pipelines",) if for_prometheus else parts)
        if for_prometheus and page.status == 200:
            return PlainTextResponse(query_samples(page.data))
        if page.redirect:
            return RedirectResponse(page.redirect, status_code=303)
        if as_json or for_prometheus:
            return Response(
                json_bytes(page.data), page.status, media_type="application/json; charset=utf-8"
            )
        if request.method == "POST" and page.template == "error.html":
            page = replace(page, data={**page.data, "form": path_of(*parts)})
        query = f"?{request.url.query}" if request.url.query else ""
        body = html(page, parts, self._context, _json_path(parts) + query)
        return Response(body, page.status, media_type="text/html; charset=utf-8")

    async def _no_login(self, request: Request, *, is_wrong: bool) -> Response:
        """Return the answer to a request without a login; a wrong one waits for it, and gets a line in the log."""
        if is_wrong:
            now_ms = self._context.cluster.clock.steady_ms()
            if now_ms >= self._noted_until_ms:
                self._noted_until_ms = now_ms + _NOTE_EACH_MS
                host = request.client.host if request.client is not None else "an unknown address"
                self._note(f"a wrong login from {host}")
            await asyncio.sleep(_WRONG_LOGIN_S)
        response = PlainTextResponse(_NO_LOGIN, 401)
        for challenge in CHALLENGES:
            response.headers.append("www-authenticate", challenge)
        return response

    async def _page(self, request: Request, parts: tuple[str, ...]) -> Page:
        """Return the page, or the page of its failure: the thing, the reason and the remedy."""
        bootstrap = self._context.cluster.bootstrap
        try:
            async with asyncio.timeout(_PAGE_S), self._pages:
                page_request = await self._page_request(request, parts)
                return await page_of(self._context, page_request)
        except TimeoutError:
            return failed(
                504,
                f"the cluster did not answer within {_PAGE_S:g} s",
                "ask again; the overview says which broker is missing",
            )
        except Unavailable as error:
            return failed(
                503, str(error), f"start the brokers of {bootstrap}; this page tries again"
            )
        except Rejected as error:
            return refused(error)
        except (UserError, Corrupt, Fenced) as error:
            return failed(400, str(error))

    async def _page_request(self, request: Request, parts: tuple[str, ...]) -> PageRequest:
        """Return the request as a value. Raises UserError for one that is too large or not of one of our pages."""
        if len(request.url.query) > _QUERY_BYTES_MAX:
            raise UserError(f"a query of more than {_QUERY_BYTES_MAX} bytes is not accepted")
        query = _pairs(request.url.query)
        if request.method in {"GET", "HEAD"}:
            return PageRequest(parts, query)
        if request.method != "POST":
            raise UserError(
                f"the method {request.method[:20]} is not accepted; accepted: GET, POST"
            )
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > _FORM_BYTES_MAX:
                raise UserError(f"a form of more than {_FORM_BYTES_MAX} bytes is not accepted")
        form = _pairs(body.decode("utf-8", "replace"))
        if form.get("token") != self._context.token or not self._is_same_origin(request):
            raise UserError(
                "this form is not of a page of this console, or the console was restarted since: "
                "load the page again"
            )
        return PageRequest(parts, query, form, is_post=True)

    def _is_same_origin(self, request: Request) -> bool:
        origin = request.headers.get("origin")
        site = request.headers.get("sec-fetch-site", "same-origin")
        return site == "same-origin" and (
            origin is None or origin.partition("://")[2] == request.headers.get("host", "")
        )


def _pairs(text: str) -> Mapping[str, str]:
    """Return names and values of a query or a form. Raises UserError for more than two hundred."""
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=200))
    except ValueError as error:
        raise UserError(f"the query or form is not accepted: {error}") from None


def _parts_of(raw_path: bytes) -> tuple[tuple[str, ...], bool]:
    """Return a path's parts, and whether it asks for JSON. A part may hold an escaped slash."""
    text = raw_path.partition(b"?")[0].decode("ascii", "replace")
    as_json = text.endswith(JSON)
    text = text.removesuffix(JSON) if as_json else text
    parts = tuple(unquote(part) for part in text.split("/") if part)
    return (() if as_json and parts == ("overview",) else parts), as_json


def _json_path(parts: tuple[str, ...]) -> str:
    """Return where a page's JSON is; the overview's is /overview.json."""
    return path_of(*parts, "").rstrip("/") + JSON if parts else f"/overview{JSON}"
