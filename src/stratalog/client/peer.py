"""A node's connection to another node of the cluster, opened on demand.

In: requests as the generated classes of `wire/messages`. Out: the responses. It never repeats a request: the caller
knows whether the other node may have carried it out.

A server serves the requests of one connection in order, so a Fetch that waits holds up what is sent after it. Callers
that must not wait for one another have a `Peer` each, as Kafka's threads have a NetworkClient each.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from stratalog.client.calls import asking
from stratalog.client.link import Link, open_link
from stratalog.client.security import Dialer
from stratalog.errors import Rejected, Unavailable
from stratalog.wire.apis import APIS
from stratalog.wire.messages import Request

__all__ = ["Peer"]

R = TypeVar("R")
T = TypeVar("T")
_SPOKEN: Final = {api.key: (api.oldest, api.newest) for api in APIS.values()}
"""This client builds and reads every version; the server's ApiVersions answer names the versions that it serves."""


class Peer:
    """The connection to the node at `host:port`."""

    def __init__(
        self, dialer: Dialer, host: str, port: int, *, client_id: str, timeout_s: float
    ) -> None:
        """`timeout_s` bounds each request, and opening the connection."""
        self.host = host
        self.port = port
        self._dialer = dialer
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._link: Link | None = None
        self._opening = asyncio.Lock()
        self._waiting = 0
        """How many requests wait for an open connection."""
        self._is_closed = False

    async def request(self, request: Request[R]) -> R:
        """Send a request in the highest version that both nodes have; return the response.

        Requests leave in the order of the calls. Raises Unavailable where the node cannot be reached or refuses the
        login, the connection breaks, or no response comes in time: the next call opens another connection.
        Raises Rejected(UNSUPPORTED_VERSION) where the node does not serve the API.
        """
        return await self.read(request, _itself)

    async def read(self, request: Request[R], read: Callable[[R], T]) -> T:
        """Do as `request`; return what `read` makes of the response.

        `read` may raise Rejected for the node's own refusal, and Corrupt for a response that makes no sense. That one
        is like bytes that cannot be decoded: it closes the connection, and this raises DamagedAnswer (Unavailable).
        """
        link = self._link
        if link is None or link.is_over or self._waiting:
            link = await self._open()
        return await link.within(self._timeout_s, link.send(asking(request, read)))

    def close(self) -> None:
        """Close the connection for good. Pending and later requests raise Unavailable."""
        self._is_closed = True
        if self._link is not None:
            self._link.close()

    async def _open(self) -> Link:
        """Return an open connection; calls that must wait for one get it in their order.

        A refused login is Unavailable here: the other node may learn of the user later.
        """
        self._waiting += 1
        try:
            async with self._opening:
                link = self._link
                if link is None or link.is_over:
                    self._check_open()
                    link = self._link = await open_link(
                        self._dialer,
                        self.host,
                        self.port,
                        client_id=self._client_id,
                        timeout_s=self._timeout_s,
                        spoken=_SPOKEN,
                    )
                    if self._is_closed:  # meanwhile
                        link.close()
                self._check_open()
                return link
        except Rejected as error:
            raise Unavailable(str(error)) from error
        finally:
            self._waiting -= 1

    def _check_open(self) -> None:
        if self._is_closed:
            raise Unavailable(f"connection to {self.host}:{self.port} is closed")


def _itself(response: R) -> R:
    return response
