"""TCP through the running event loop (asyncio's own, or uvloop).

In: protocols to serve. Out: bound listeners and connected transports; OSError as the system raises it. It never reads
or writes a byte itself.
"""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass

from stratalog.errors import UserError
from stratalog.ports import PLAINTEXT, SYSTEM_BUFFERS, Security, SocketBuffers

_BACKLOG = 1024


def event_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return the function that creates an event loop: uvloop's where installed, else asyncio's."""
    try:
        from uvloop import new_event_loop  # noqa: PLC0415 - optional
    except ImportError:
        return asyncio.new_event_loop
    return new_event_loop


@dataclass(slots=True)
class TcpListener:
    """A bound socket; `port` is the real one where 0 was asked for."""

    host: str
    port: int
    server: asyncio.AbstractServer

    async def accept(self) -> None:
        """Accept connections."""
        await self.server.start_serving()

    async def close(self) -> None:
        """Stop accepting. The protocol closes existing connections."""
        self.server.close()


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
        if security != PLAINTEXT:
            raise UserError(
                f"{host}:{port} cannot listen with the security protocol {security.protocol}; "
                f"accepted: {PLAINTEXT.protocol}"
            )
        server = await asyncio.get_running_loop().create_server(
            protocol, host or None, port, backlog=_BACKLOG, start_serving=False
        )
        options = zip((socket.SO_SNDBUF, socket.SO_RCVBUF), buffers, strict=True)
        for option, size in options:
            for one in server.sockets if size >= 0 else ():
                one.setsockopt(socket.SOL_SOCKET, option, size)  # its connections inherit it
        bound = server.sockets[0].getsockname()
        return TcpListener(host, bound[1], server)

    async def connect(
        self, host: str, port: int, protocol: Callable[[], asyncio.BaseProtocol]
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        return await asyncio.get_running_loop().create_connection(protocol, host, port)
