"""Open the listeners of one role of a node.

In: the settings, a function that serves a frame. Out: bound ports, and the endpoints that others reach them by. It
serves nothing itself.
"""

from collections.abc import Sequence
from typing import Final

import structlog

from stratalog.broker.network.answers import Serve
from stratalog.broker.network.certificate_dates import Problem, problems
from stratalog.broker.network.connections import Connections
from stratalog.broker.network.session import ListenerContext
from stratalog.config import BrokerConfig, Listener
from stratalog.errors import UserError
from stratalog.metadata.image import Endpoint
from stratalog.ports import PLAINTEXT, Outside, SocketBuffers
from stratalog.ports import Listener as Bound
from stratalog.wire.apis import ListenerKind

__all__ = ["Listening"]

_EVERY_ADDRESS: Final = ("", "0.0.0.0", "::")  # noqa: S104 - compared with, not bound


class Listening:
    """The listeners of a broker, or those of a controller."""

    def __init__(
        self, config: BrokerConfig, outside: Outside, connections: Connections, serve: Serve
    ) -> None:
        self._config = config
        self._outside = outside
        self._connections = connections
        self._serve = serve
        self._log = structlog.get_logger()
        self._bound: list[tuple[ListenerContext, Bound]] = []
        self._warned: dict[str, list[Problem]] = {}
        """By listener, the last warnings of its certificates' dates."""

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
        for _, bound in self._bound:
            try:
                await bound.accept()
            except OSError as error:
                raise _cannot_listen(f"{bound.host}:{bound.port}", error) from error

    @property
    def has_keys(self) -> bool:
        """Whether one of the listeners uses TLS, or checks tokens."""
        return any(one.security.tls is not None or one.tokens for one, _ in self._bound)

    async def refresh_tokens(self) -> None:
        """Read the keys of tokens again, where it is time."""
        for context, _ in self._bound:
            if context.tokens is not None:
                await context.tokens.refresh()

    def secure(self, config: BrokerConfig) -> None:
        """Read the logins, keys and certificates of every listener again; the log says which certificates changed.

        It warns of certificates that have expired since, or do so soon. Where they are unusable, the log has an error,
        and the listener keeps the previous ones.
        """
        for context, bound in self._bound:
            name = context.name
            try:
                sasl = config.sasl(name)
                if sasl is not None and sasl.tokens and not context.tokens:
                    raise UserError("OAUTHBEARER: a listener begins to check tokens at a start")
                context.sasl = sasl
            except UserError as error:
                self._log.error("logins not changed", listener=name, reason=str(error))
            security = config.security(name)
            if security.tls is None:
                continue
            try:
                if bound.secure(security):
                    self._log.info("certificates read again", listener=name)
            except UserError as error:
                self._log.error("certificates not read", listener=name, reason=str(error))
            self._look_at_dates(name, bound)

    async def close(self) -> None:
        """Accept no more connections."""
        for context, bound in self._bound:
            await bound.close()
            if context.tokens is not None:
                await context.tokens.close()

    async def _bind(self, listener: Listener, kind: ListenerKind) -> Listener:
        security = self._config.security(listener.name)
        rules = self._config.principal_rules(listener.name)
        context = ListenerContext(
            listener.name, kind, security, self._config.sasl(listener.name), rules
        )
        if context.sasl is not None and context.sasl.tokens is not None:
            from stratalog.broker.network.tokens import Tokens  # noqa: PLC0415 - few listeners

            context.tokens = Tokens(context.sasl.tokens, self._outside)
            await context.tokens.load()
        try:
            bound = await self._outside.network.listen(
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
        self._bound.append((context, bound))
        if security.tls is not None:
            self._look_at_dates(listener.name, bound)
        if self._config.ignores_client_auth(listener.name):
            self._log.warning(
                "ssl.client.auth has no effect on a SASL_SSL listener",
                listener=listener.name,
                remedy=f"set listener.name.{listener.name.lower()}.ssl.client.auth",
            )
        if listener.host in _EVERY_ADDRESS and security == PLAINTEXT and context.sasl is None:
            self._log.warning(
                "listener without security on every address",
                listener=listener.name,
                remedy="give it a host that only trusted machines reach, or SSL or SASL_SSL",
            )
        return Listener(listener.name, listener.host, bound.port)

    def _look_at_dates(self, name: str, bound: Bound) -> None:
        """Warn of certificates that are not valid, or not for much longer; repeat a warning only where it changes."""
        found = problems(bound.certificates(), self._outside.clock.now_ms() / 1000)
        for one in found:
            if one not in self._warned.get(name, []):
                self._log.warning(
                    "certificate to renew",
                    listener=name,
                    file=one.file,
                    problem=one.problem,
                    not_before=one.not_before,
                    not_after=one.not_after,
                    remedy=f"{one.remedy}; the node reads changed files without a restart",
                )
        self._warned[name] = found


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
