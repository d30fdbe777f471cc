"""Blocking sockets, for Spark's driver and tasks, which have threads but no event loop.

In: an address and a time-out. Out: a stream to send to and receive from; OSError as the system raises it (a time-out
is TimeoutError). It never retries.
"""

import socket
import time
from collections.abc import Sequence

from stratalog.ports import Buffer, Tls, TokenSource

_VECTORS = 64  # buffers per sendmsg; systems refuse more than IOV_MAX


class BlockingStream:
    """One connected TCP socket."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Send all of `buffers`."""
        views = [view for buffer in buffers if len(view := memoryview(buffer).cast("B"))]
        first = 0
        while first < len(views):
            sent = self._socket.sendmsg(views[first : first + _VECTORS])
            while first < len(views) and sent >= len(views[first]):
                sent -= len(views[first])
                first += 1
            if sent:
                views[first] = views[first][sent:]

    def receive_into(self, buffer: memoryview) -> int:
        """Receive into the buffer; return the number of bytes, at least one, or 0 once the peer has closed."""
        return self._socket.recv_into(buffer)

    def close(self) -> None:
        self._socket.close()

    def __del__(self) -> None:
        """Close with the last reference: a process drops idle clients that other code may still use."""
        self._socket.close()


class SecuredStream(BlockingStream):
    """One connected TCP socket with TLS, which has no gathering `sendmsg`."""

    def send(self, buffers: Sequence[Buffer]) -> None:
        for buffer in buffers:
            self._socket.sendall(buffer)


class BlockingNetwork:
    """Opens connections, and waits between attempts."""

    def connect(
        self, host: str, port: int, timeout_s: float, tls: Tls | None = None
    ) -> BlockingStream:
        """Connect; every later wait on the stream has the same time-out. Raises UserError for unusable keys."""
        connected = socket.create_connection((host, port), timeout=timeout_s)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is None:
            return BlockingStream(connected)
        from stratalog.adapters.tls_context import kept_client_context  # noqa: PLC0415 - few clients

        try:
            secured = kept_client_context(tls).wrap_socket(connected, server_hostname=host)
        except BaseException:  # an interrupt too: no socket without an owner stays
            connected.close()
            raise
        return SecuredStream(secured)

    def access_token(self, source: TokenSource) -> str:
        """Return a token to log in with. Raises UserError where the server refuses, Unavailable without an answer."""
        from stratalog.adapters.access_tokens import access_token  # noqa: PLC0415 - few clients

        return access_token(source)

    def now_s(self) -> float:
        return time.monotonic()

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)
