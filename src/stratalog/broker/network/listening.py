"""Open the listeners of one role of a node.

In: the settings, a function that serves a frame. Out: bound ports, and the endpoints that others reach them by. It
serves nothing itself.
"""

from collections.abc import Sequence
from typing import Final

from stratalog.broker.network.answers import Serve
from stratalog.broker.network.connections import Connections
from stratalog.broker.network.session import ListenerContext
from stratalog.config import BrokerConfig, Listener
from stratalog.errors import UserError
from stratalog.metadata.image import Endpoint
from stratalog.ports import Listener as Bound
from stratalog.ports import Network, Security, SocketBuffers
from stratalog.wire.apis import ListenerKind

__all__ = ["Listening"]

_EVERY_ADDRESS: Final = ("", "0.0.0.0", "::")  # noqa: S104 - compared with, not bound


class Listening:
    """The listeners of a broker, or those of a controller."""

    def __init__(
        self, config: BrokerConfig, network: Network, connections: Connections, serve: Serve
    ) -> None:
        self._config = config
        self._network = network
        self._connections = connections
        self._serve = serve
        self._bound: list[Bound] = []

    async def open(self, kind: ListenerKind, advertised: Sequence[Listener]) -> list[Endpoint]:
        """Bind every listener of the kind; return the endpoints of the advertised ones. Raises UserError.

        They refuse connections until `accept`.
        """
        is_broker = kind is ListenerKind.BROKER
        listeners = self._config.listeners if is_broker else self._config.controller_listeners
        ports = {one.name: await self._bind(one, kind) for one in listeners}
        return [_endpoint(one, ports[one.name]) for one in advertised]

    async def accept(self) -> None:
        """Accept connections. Raises UserError."""
        for bound in self._bound:
            try:
                await bound.accept()
            except OSError as error:
                raise _cannot_listen(f"{bound.host}:{bound.port}", error) from error

    async def close(self) -> None:
        """Accept no more connections."""
        for bound in self._bound:
            await bound.close()

    async def _bind(self, listener: Listener, kind: ListenerKind) -> Listener:
        security = Security(self._config.security_protocol(listener.name))
        context = ListenerContext(listener.name, kind, security)
        try:
            bound = await self._network.listen(
                listener.host,
                listener.port,
                self._connections.accepting(self._serve, context),
                context.security,
                SocketBuffers(
                    self._config.int("socket.send.buffer.bytes"),
                    self._config.int("socket.receive.buffer.bytes"),
                ),
            )
        except OSError as error:
            raise _cannot_listen(str(listener), error) from error
        self._bound.append(bound)
        return Listener(listener.name, listener.host, bound.port)


def _cannot_listen(address: str, error: OSError) -> UserError:
    return UserError(f"listeners: cannot listen on {address}: {error.strerror or error}")


def _endpoint(advertised: Listener, bound: Listener) -> Endpoint:
    """Return the endpoint for clients: an address that they can reach, with the port that was bound."""
    host = advertised.host if advertised.host not in _EVERY_ADDRESS else bound.host
    return Endpoint(
        advertised.name,
        host if host not in _EVERY_ADDRESS else "localhost",
        advertised.port or bound.port,
    )
