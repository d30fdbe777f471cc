"""One asyncio connection to a broker or controller.

In: calls. Out: their answers, as futures. It never connects again and never repeats a call: `Client` and `Peer` do.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any, TypeVar, cast

from stratalog.client import calls
from stratalog.client.apis import SPOKEN
from stratalog.client.calls import Call
from stratalog.client.core import ClientConnection, DamagedAnswer, reason
from stratalog.client.sasl import OF_LIFETIME, Login, log_in
from stratalog.client.security import Dialer
from stratalog.errors import Rejected, Unavailable

__all__ = ["Link", "is_refused", "open_link"]

T = TypeVar("T")


class Link(asyncio.BufferedProtocol):
    """One connection: the core's state, the transport, and the futures of pending answers."""

    def __init__(self, core: ClientConnection, dialer: Dialer) -> None:
        """Use `open_link`."""
        self.peer = core.peer
        self.core = core
        self._dialer = dialer
        self.closed = False
        self._ends_s = inf
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._awaited: deque[tuple[float, asyncio.Future[Any]]] = deque()
        """The futures of `within`, with the times when they are late, in the order of the calls."""
        self._timer: asyncio.TimerHandle | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's name
        return self.core.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            answers = self.core.received(nbytes)
        except DamagedAnswer as error:
            self._dialer.damaged(self.peer, error.api_key, str(error))
            self._fail(error)
            return
        for correlation_id, answer in answers:
            future = self._waiting.pop(correlation_id)
            if future.done():  # the caller stopped waiting
                continue
            if isinstance(answer, Rejected):
                _refuse(future, answer)
            else:
                future.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(self.core.closed(str(exc) if exc else ""))

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def close(self) -> None:
        self._fail(Unavailable(f"connection to broker {self.peer} is closed"))

    def ends_with(self, lifetime_ms: int) -> None:
        """Take no call after most of the session's lifetime (KIP-368): the caller opens another link then."""
        if lifetime_ms:
            loop = asyncio.get_running_loop()
            self._ends_s = loop.time() + lifetime_ms / 1000 * OF_LIFETIME

    @property
    def is_over(self) -> bool:
        """Whether the caller must open another link for its next call."""
        return self.closed or asyncio.get_running_loop().time() >= self._ends_s

    def send(self, call: Call[T]) -> "asyncio.Future[T]":
        """Send at once; the future gets the answer. Requests of one link arrive in the order of these calls."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self.closed or self._transport is None:
            _refuse(future, Unavailable(f"broker {self.peer} closed the connection"))
            return future
        correlation_id, pieces = self.core.send(call)
        if len(pieces) == 1:
            self._transport.write(pieces[0])
        else:
            self._transport.writelines(pieces)
        if call.unanswered is not None:
            future.set_result(call.unanswered)
        else:
            self._waiting[correlation_id] = future
        return future

    @property
    def certificate(self) -> Mapping[str, Any]:
        """The peer's verified certificate, as `ssl.SSLSocket.getpeercert` gives it; empty without TLS."""
        secured = self._transport and self._transport.get_extra_info("ssl_object")
        return (secured.getpeercert() or {}) if secured else {}

    async def writable(self) -> None:
        """Wait while the transport's buffer is full."""
        await self._writable.wait()

    async def within(self, timeout_s: float, future: "asyncio.Future[T]") -> T:
        """Return the answer. After `timeout_s`, close the link and raise Unavailable: every later answer would be late,
        too. All calls for one link have the same `timeout_s`.
        """
        if not future.done():
            self._expect(timeout_s, future)
        return await future

    def _expect(self, timeout_s: float, future: "asyncio.Future[T]") -> None:
        """Fail a future that is late. One timer serves all of them, because hardly any is ever late."""
        loop, awaited = asyncio.get_running_loop(), self._awaited
        while awaited and awaited[0][1].done():
            awaited.popleft()
        awaited.append((loop.time() + timeout_s, future))
        if self._timer is None:
            self._timer = loop.call_later(timeout_s, self._close_if_late, timeout_s)

    def _close_if_late(self, timeout_s: float) -> None:
        loop, awaited = asyncio.get_running_loop(), self._awaited
        self._timer = None
        while awaited and awaited[0][1].done():
            awaited.popleft()
        if not awaited:
            return
        due_s, future = awaited[0]
        if due_s > loop.time():
            self._timer = loop.call_at(due_s, self._close_if_late, timeout_s)
            return
        _refuse(future, Unavailable(f"broker {self.peer} did not answer in {timeout_s:g} s"))
        self.close()

    def _fail(self, error: Unavailable) -> None:
        self.closed = True
        self._writable.set()
        if self._transport is not None:
            self._transport.abort()
        if self._timer is not None:
            self._timer.cancel()
        self._awaited.clear()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                _refuse(future, error)


def _refuse(future: "asyncio.Future[Any]", error: Exception) -> None:
    """Fail a future whose caller may have stopped waiting, by Ctrl-C or an earlier failure."""
    future.set_exception(error)
    future.exception()  # otherwise asyncio reports "exception was never retrieved" for the future


def is_refused(error: Exception) -> bool:
    """Return whether `open_link` failed at once: the port is closed, or there is no such host. A silent host is not."""
    return isinstance(error, Unavailable) and isinstance(error.__cause__, OSError)


async def _log_in(link: Link, login: Login, timeout_s: float) -> int:
    """Authenticate; return the session's lifetime in ms, 0 for no end. Raises Rejected, Unavailable."""
    steps = log_in(login)
    try:
        call = next(steps)
        while True:
            call = steps.send(await link.within(timeout_s, link.send(call)))
    except StopIteration as end:
        return int(end.value)
    except BaseException:  # a cancelled call too: a half login leaves no connection
        link.close()
        raise


async def open_link(
    dialer: Dialer,
    host: str,
    port: int,
    *,
    client_id: str,
    timeout_s: float,
    spoken: Mapping[int, tuple[int, int]] = SPOKEN,
) -> Link:
    """Connect, and agree on versions: of each API the highest one within `spoken` that the server has too.

    Raises Unavailable where the server does not answer within `timeout_s`, Rejected where it refuses the login.
    """
    tls = dialer.security.tls
    core = ClientConnection(f"{host}:{port}", client_id, spoken, is_secured=tls is not None)
    try:
        async with asyncio.timeout(timeout_s):
            _, protocol = await dialer.network.connect(
                host, port, lambda: Link(core, dialer), tls, dialer.buffers
            )
    except TimeoutError:
        raise Unavailable(
            f"broker {core.peer} unreachable: no connection in {timeout_s:g} s"
        ) from None
    except OSError as error:
        raise Unavailable(f"broker {core.peer} unreachable: {reason(error)}") from error
    link = cast("Link", protocol)
    try:
        core.versions = await link.within(timeout_s, link.send(calls.api_versions()))
        login = dialer.security.login
        if login is not None and login.source is not None:
            login = replace(login, password=await dialer.network.access_token(login.source))
        if login is not None:
            link.ends_with(await _log_in(link, login, timeout_s))
    except Rejected as error:
        link.close()
        raise core.refused(error) from error
    except Unavailable as error:  # also of the token server: the broker's connection is open then
        link.close()
        raise core.unreachable(error) from error
    except BaseException:  # a cancelled call, or a refused request for a token: no connection stays
        link.close()
        raise
    return link
