"""Send clients' requests that the controller decides to the active controller, in envelopes (KIP-590).

In: a client's request unchanged, with its principal and address. Out: the response for the client. It never checks a
client's rights: the controller does. It reads no request but those that alter settings (`asked_broker.py`).

Kafka: ForwardingManager, EnvelopeUtils, DefaultKafkaPrincipalBuilder.
"""

import struct
from collections.abc import Awaitable
from ipaddress import ip_address
from typing import Final, Protocol

from stratalog.broker.coordination.controller_channel import ControllerChannel
from stratalog.broker.coordination.local_controller import LocalController
from stratalog.broker.network.authorizer import CLUSTER_NAME, Authorizer, Operation, Resource
from stratalog.broker.network.session import ListenerContext, Principal, Session
from stratalog.config import BrokerConfig
from stratalog.config.addresses import address_text
from stratalog.errors import Corrupt, ErrorCode, Rejected
from stratalog.wire.apis import ListenerKind
from stratalog.wire.envelope import Received
from stratalog.wire.varint import encode_unsigned, read_unsigned

__all__ = [
    "Forwarding",
    "ServesForwarded",
    "decode_principal",
    "encode_principal",
    "forwarded_session",
]

_ALTER_CONFIGS: Final = frozenset((33, 44))
_VERSION: Final = struct.Struct(">h")
_LENGTH: Final = struct.Struct(">i")
_NO_ADDRESS: Final = bytes(4)


class ServesForwarded(Protocol):
    """The part of the dispatcher that answers a request out of an envelope."""

    async def serve_forwarded(self, session: Session, frame: memoryview) -> bytes:
        """Return the response with its header. Raises Rejected with the code of the envelope."""


class Forwarding:
    """The forwarding of one broker."""

    def __init__(
        self,
        local: LocalController,
        channel: ControllerChannel,
        config: BrokerConfig,
        authorizer: Authorizer | None,
    ) -> None:
        self._local = local
        self._config = config
        self._authorizer = authorizer
        self._channel = channel
        self._dispatcher: ServesForwarded

    def attach(self, dispatcher: ServesForwarded) -> None:
        """Take the dispatcher that answers requests out of envelopes."""
        self._dispatcher = dispatcher

    async def serve(self, session: Session, request_data: bytes) -> bytes:
        """Answer the request of an envelope. Raises Rejected with the code of the envelope."""
        if self.is_needed:
            raise Rejected(ErrorCode.not_controller, "this node is not the active controller")
        return await self._dispatcher.serve_forwarded(session, memoryview(request_data))

    @property
    def is_needed(self) -> bool:
        """Whether the active controller is on another node, or on none."""
        return not self._local.is_active

    async def forward(
        self, session: Session, received: Received, frame: bytes
    ) -> list[bytes] | None:
        """Return the buffers that answer a client's request; None where this node became the active controller.

        `received` is the request that `frame` has.

        Raises Rejected: REQUEST_TIMED_OUT, or the error of the envelope.
        """
        principal = encode_principal(session.principal, by_token=session.by_token)

        def send(request: bytes) -> Awaitable[bytes | None]:
            return self._channel.forward(request, principal, _address(session.host))

        if received.header.api_key in _ALTER_CONFIGS and self._may_alter(session):
            from stratalog.broker.coordination.asked_broker import forward_checked  # noqa: PLC0415

            response = await forward_checked(self._config, received, frame, send)
        else:
            response = await send(frame)
        return None if response is None else [_LENGTH.pack(len(response)), response]

    def _may_alter(self, session: Session) -> bool:
        """Return whether the client may alter this broker's settings; a refusal names the broker's directories."""
        authorizer, operation = self._authorizer, Operation.ALTER_CONFIGS
        return authorizer is None or authorizer.allows(
            session, operation, Resource.CLUSTER, CLUSTER_NAME
        )

    def refusing(self, code: ErrorCode) -> LocalController:
        """Return a controller that refuses every request; handlers turn the refusal into their clients' answers."""
        return self._local.refusing(code)


def forwarded_session(around: Session, principal: bytes | None, address: bytes) -> Session:
    """Return the session of a client whose request came in an envelope, on the connection of session `around`.

    Raises Rejected: PRINCIPAL_DESERIALIZATION_FAILURE, INVALID_REQUEST for a malformed address.
    """
    listener = ListenerContext(
        around.listener.name, ListenerKind.CONTROLLER, around.listener.security
    )
    try:
        host = address_text(str(ip_address(bytes(address))))
    except ValueError as error:
        raise Rejected(ErrorCode.invalid_request, f"no client address: {error}") from error
    client, by_token = decode_principal(principal or b"")
    return Session(listener, host, client, by_token, is_forwarded=True)


def encode_principal(principal: Principal, *, by_token: bool = False) -> bytes:
    """Return a principal as Kafka's DefaultPrincipalData, version 0, its version first.

    `by_token`: a delegation token authenticated it.
    """
    data = bytearray(_VERSION.pack(0))
    for text in principal:
        encoded = text.encode()
        data += encode_unsigned(len(encoded) + 1)
        data += encoded
    return bytes(data) + bytes((by_token, 0))  # no tags


def decode_principal(data: bytes) -> tuple[Principal, bool]:
    """Return the principal, and whether a delegation token authenticated it.

    Raises Rejected(PRINCIPAL_DESERIALIZATION_FAILURE).
    """
    try:
        (version,) = _VERSION.unpack_from(data)
        texts = []
        position = _VERSION.size
        for _ in Principal._fields:
            length, position = read_unsigned(data, position)
            end = position + length - 1
            if length < 1 or end > len(data):
                raise ValueError(f"a text of {length - 1} bytes at {position}")
            texts.append(data[position:end].decode())
            position = end
        if version or position >= len(data):
            raise ValueError(f"version {version}, {len(data)} bytes")
    except (struct.error, ValueError, Corrupt) as error:
        code = ErrorCode.principal_deserialization_failure
        raise Rejected(code, f"no principal of Kafka's: {error}") from error
    return Principal(*texts), bool(data[position])


def _address(host: str) -> bytes:
    """Return an address as Java's `InetAddress` gives it; 0.0.0.0 for a client that has none."""
    try:
        return ip_address(host).packed
    except ValueError:
        return _NO_ADDRESS
