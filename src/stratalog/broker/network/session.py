"""The client of a connection, as the broker knows it.

In: the listener and address of an accepted connection, then the client data in its requests. Out: a `Session`, which
each `Call` of the connection carries. It never reads a socket, and never decides what a client may do.

Kafka: `RequestContext`, `KafkaPrincipal`, `ClientInformation`.
"""

from collections.abc import Callable, Hashable
from typing import Any, Final, NamedTuple

from msgspec import Struct

from stratalog.broker.network.sasl import SaslState
from stratalog.broker.network.tokens import Bearer, Tokens
from stratalog.config.principal_rules import PrincipalRule, name_by_rules
from stratalog.config.sasl import SaslListener
from stratalog.ports import PLAINTEXT, Buffer, Security
from stratalog.wire.apis import ListenerKind

__all__ = [
    "ANONYMOUS",
    "SSL",
    "USER",
    "ListenerContext",
    "Principal",
    "Session",
    "mute_no_connection",
]

USER: Final = "User"
"""The type of every principal that authentication gives (Kafka: `KafkaPrincipal.USER_TYPE`)."""
SSL: Final = "SSL"
"""Kafka's security protocol in which a client's certificate is its identity."""


class Principal(NamedTuple):
    """The identity of a connection's client; as text `User:alice`, as in Kafka's ACLs."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS: Final = Principal(USER, "ANONYMOUS")
"""The principal of a client that does not authenticate (Kafka: `KafkaPrincipal.ANONYMOUS`)."""


class ListenerContext(Struct):
    """The listener that accepted a connection. Only `sasl` changes while it listens."""

    name: str
    """The listener's name. Its clients receive the brokers' addresses of this listener."""
    kind: ListenerKind = ListenerKind.BROKER
    """The listener's kind: it serves the APIs of that kind."""
    security: Security = PLAINTEXT
    sasl: SaslListener | None = None
    """How clients log in; None without SASL."""
    principal_rules: tuple[PrincipalRule, ...] = (PrincipalRule(),)
    """How the subject of a client's certificate names its principal."""
    tokens: Tokens | None = None
    """What checks tokens, where clients may log in with one."""

    def logins(self) -> SaslListener:
        """Return how clients log in at present, on a listener with SASL."""
        assert self.sasl is not None, "a listener keeps its protocol"
        return self.sasl

    async def bearer(self, token: str) -> Bearer | str:
        """Return the user of a token of OAUTHBEARER, or why it is not accepted."""
        return "" if self.tokens is None else await self.tokens.check(token)


def mute_no_connection(_seconds: float) -> None:
    """Mute no connection: the request came in an envelope, or its connection has ended."""


class Session(Struct):
    """The session of one connection's client, from accept to close."""

    listener: ListenerContext
    host: str = ""
    """The client's address, without its port, in the form of `address_text`."""
    principal: Principal = ANONYMOUS
    by_token: bool = False
    """Whether the client has logged in with a delegation token."""
    is_forwarded: bool = False
    """Whether the request came in an envelope."""
    sasl: SaslState | None = None
    """The state of the client's authentication by SASL; None on a listener without it."""
    sends_files: bool = False
    """Whether a file's bytes may go to the client's socket past the transport: there is a socket, and no TLS."""
    is_secured: bool = False
    """Whether the handshake is complete, on a listener of TLS."""
    client_id: str = ""
    """The client id of the newest request, "" where it has none."""
    mute: Callable[[float], None] = mute_no_connection
    """Read nothing from the client for some seconds (KIP-219)."""
    fetched: object = None
    """The partition of the client's newest large fetch of a single partition."""
    answer_next: Callable[[memoryview, Any], list[Buffer] | None] | None = None
    """Answers a request that repeats an earlier one, and returns None for any other one.

    Takes the frame, and the node's authorizer, if any.
    """
    software: str = ""
    """Name and version of the client's library, as ApiVersions gives them from version 3 on (KIP-511)."""

    port: int = 0
    """The client's port."""
    on_close: Callable[[], object] | None = None
    """A function to call once the connection is closed."""

    @property
    def holder(self) -> Hashable:
        """The client's name among those that share a limit: its principal, or its address where it is anonymous."""
        return self.host if self.principal == ANONYMOUS else self.principal

    @property
    def is_unknown(self) -> bool:
        """Whether the client must authenticate by SASL, and has not."""
        return self.sasl is not None and not self.sasl.is_known

    @property
    def may_handle_tokens(self) -> bool:
        """Whether the client may create, change and see delegation tokens: it has proved an identity, not by a token.

        Kafka: `allowTokenRequests`. Of a request in an envelope another node has checked the connection.
        """
        protocol = self.listener.security.protocol
        is_known = protocol.startswith("SASL_") or (protocol == SSL and self.principal != ANONYMOUS)
        return not self.by_token and (self.is_forwarded or is_known)

    def ended(self) -> None:
        """Let go of the connection, and of what answers its requests: both keep the session."""
        self.mute, self.answer_next = mute_no_connection, None

    def names_by_certificate(self, subject: str) -> bool:
        """Take the principal of a certificate, on a listener of TLS alone; return False where no rule names one."""
        if self.listener.security.protocol == SSL:
            name = name_by_rules(self.listener.principal_rules, subject)
            if name is None:
                return False
            self.principal = Principal(USER, name)
        return True
