"""TCP, plain or with TLS, through the running event loop (asyncio's own, or uvloop).

In: protocols to serve. Out: bound listeners and connected transports; OSError as the system raises it. It never reads
or writes a byte itself.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from msgspec import Struct

from stratalog.errors import UserError
from stratalog.ports import (
    PLAINTEXT,
    SYSTEM_BUFFERS,
    Certificate,
    Security,
    SocketBuffers,
    Tls,
    TokenSource,
)

if TYPE_CHECKING:
    from OpenSSL import SSL


_BACKLOG = 1024
_ACCEPTED_A_TURN = 8
"""uvloop accepts one connection of a listening socket in a turn of the loop: behind a thousand others that come at once
a client waited a thousand turns. So each socket listens by as many descriptors."""
_RECEIVED_BYTES = 64 << 10
_WITH_TLS = ("SSL", "SASL_SSL")
_PLAIN = ("PLAINTEXT", "SASL_PLAINTEXT")


def event_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return the function that creates an event loop: uvloop's where installed, else asyncio's."""
    try:
        from uvloop import new_event_loop  # noqa: PLC0415 - optional
    except ImportError:
        return asyncio.new_event_loop
    return new_event_loop


class TcpListener(Struct):
    """A bound socket; `port` is the real one where 0 was asked for."""

    host: str
    port: int
    servers: Sequence[asyncio.AbstractServer]
    secured: "_Secured | None" = None

    def secure(self, security: Security) -> bool:
        """Read keys and certificates again; return whether any changed. Raises UserError."""
        assert (self.secured is None) == (security.tls is None), "a listener keeps its protocol"
        return self.secured is not None and self.secured.load(cast("Tls", security.tls))

    def certificates(self) -> Sequence[Certificate]:
        """Return the certificates in use, of both stores."""
        return () if self.secured is None else self.secured.certificates

    async def accept(self) -> None:
        """Accept connections."""
        for server in self.servers:
            await server.start_serving()

    async def close(self) -> None:
        """Stop accepting. The protocol closes existing connections."""
        for server in self.servers:
            server.close()
        if self.secured is not None:
            await self.secured.steps.close()


class _Secured:
    """The TLS of one listener: its context, and the thread of its handshakes."""

    def __init__(self, tls: Tls) -> None:
        """Raises UserError for unusable keys and certificates."""
        # A node without TLS does not pay for the import.
        from stratalog.adapters.threads import PacedWorker  # noqa: PLC0415

        self._state: tuple[object, ...] = ()
        self.context: SSL.Context
        self.certificates: Sequence[Certificate] = ()
        self.load(tls)
        self.steps: PacedWorker = PacedWorker("tls-handshakes")
        self._received = memoryview(bytearray(_RECEIVED_BYTES))

    def load(self, tls: Tls) -> bool:
        """Build a context where settings or files have changed. Raises UserError, and keeps the present one."""
        from stratalog.adapters.tls_listener import listener_context  # noqa: PLC0415
        from stratalog.adapters.tls_settings import certificates_of, state_of  # noqa: PLC0415

        state = (tls, *state_of(tls))
        if state == self._state:
            return False
        self.context = listener_context(tls)
        self.certificates = certificates_of(tls)
        self._state = state
        return True

    def around(
        self, protocol: Callable[[], asyncio.BaseProtocol]
    ) -> Callable[[], asyncio.BaseProtocol]:
        """Return a factory of protocols that put TLS below those of `protocol`."""
        from stratalog.adapters.tls_server import TlsConnection  # noqa: PLC0415

        def accept() -> asyncio.BaseProtocol:
            inner = cast("asyncio.BufferedProtocol", protocol())
            return TlsConnection(inner, self.context, self.steps, self._received)

        return accept


def _size(one: socket.socket, buffers: SocketBuffers) -> None:
    for option, size in zip((socket.SO_SNDBUF, socket.SO_RCVBUF), buffers, strict=True):
        if size >= 0:
            one.setsockopt(socket.SOL_SOCKET, option, size)


def _duplicate(one: socket.socket) -> socket.socket:
    """Return the same socket by another descriptor. An event loop's own object for it has no `dup`."""
    return socket.socket(fileno=os.dup(one.fileno()))


class TcpNetwork:
    """`ports.Network` over TCP sockets."""

    async def listen(
        self,
        host: str,
        port: int,
        protocol: Callable[[], asyncio.BaseProtocol],
        security: Security,
        buffers: SocketBuffers = SYSTEM_BUFFERS,
    ) -> TcpListener:
        if security.protocol not in (_PLAIN if security.tls is None else _WITH_TLS):
            raise UserError(
                f"{host}:{port} cannot listen with the security protocol {security.protocol}; "
                f"accepted: {PLAINTEXT.protocol}, or SSL with its keys"
            )
        secured = None
        if security.tls is not None:
            secured = _Secured(security.tls)
            protocol = secured.around(protocol)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            protocol, host or None, port, backlog=_BACKLOG, start_serving=False
        )
        servers = [server]
        for one in server.sockets:
            _size(one, buffers)  # its connections inherit it
            servers += [
                await loop.create_server(
                    protocol, sock=_duplicate(one), backlog=_BACKLOG, start_serving=False
                )
                for _ in range(_ACCEPTED_A_TURN - 1)
            ]
        bound = server.sockets[0].getsockname()
        return TcpListener(host, bound[1], servers, secured)

    async def connect(
        self,
        host: str,
        port: int,
        protocol: Callable[[], asyncio.BaseProtocol],
        tls: Tls | None = None,
        buffers: SocketBuffers = SYSTEM_BUFFERS,
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        context = None
        if tls is not None:
            from stratalog.adapters.tls_context import kept_client_context  # noqa: PLC0415

            context = kept_client_context(tls)
        loop = asyncio.get_running_loop()
        transport, made = await loop.create_connection(protocol, host, port, ssl=context)
        _size(transport.get_extra_info("socket"), buffers)
        return transport, made

    async def access_token(self, source: TokenSource) -> str:
        from stratalog.adapters.access_tokens import access_token  # noqa: PLC0415 - few clients

        return await asyncio.get_running_loop().run_in_executor(None, access_token, source)
