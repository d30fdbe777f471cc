"""Log in by SASL, without a socket.

In: a login, and the server's answers. Out: the calls to make, one after another. It never sends anything. PLAIN sends
the password itself, so it belongs on a connection with TLS.

Raises Unavailable where the server refuses the login, or does not know the password itself (SCRAM).
"""

import hmac
from collections.abc import Generator
from dataclasses import dataclass, field
from secrets import token_hex  # noqa: TID251 - a nonce; the simulator has no SASL
from typing import Any, Final

from stratalog.client.calls import Call, asking, error_of
from stratalog.config.sasl import PLAIN, SERVED_MECHANISMS
from stratalog.errors import ErrorCode, Unavailable
from stratalog.wire import scram
from stratalog.wire.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from stratalog.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

__all__ = ["OF_LIFETIME", "Login", "log_in"]

OF_LIFETIME: Final = 0.85
"""The part of a session's lifetime after which a new connection begins (Kafka: 0.85 to 0.95)."""


@dataclass(frozen=True, slots=True)
class Login:
    """The user, the password and the mechanism."""

    mechanism: str
    user: str
    password: str = field(repr=False)


Steps = Generator[Call[Any], Any, int]
"""Yields calls and takes their answers; returns the session's lifetime in ms, 0 for no end."""
_HEADER: Final = "n,,"
_NONCE_BYTES: Final = 16


def log_in(login: Login) -> Steps:
    """Authenticate on a new connection."""
    assert login.mechanism in SERVED_MECHANISMS, "checked with the settings"
    shaken: SaslHandshakeResponse = yield asking(
        SaslHandshakeRequest(mechanism=login.mechanism), _itself
    )
    if shaken.error_code == ErrorCode.unsupported_sasl_mechanism:
        names = ", ".join(shaken.mechanisms) or "none"
        raise Unavailable(f"the listener has no SASL mechanism {login.mechanism}; it has: {names}")
    if shaken.error_code:
        raise Unavailable(f"the listener refuses SASL: {error_of(shaken.error_code).name.upper()}")
    if login.mechanism == PLAIN:
        answer = yield from _authenticate(f"\0{login.user}\0{login.password}".encode())
        return answer.session_lifetime_ms
    return (yield from _scram(login, token_hex(_NONCE_BYTES)))


def _scram(login: Login, nonce: str) -> Steps:
    hash_name = scram.MECHANISMS[login.mechanism][1]
    name = login.user.replace("=", "=3D").replace(",", "=2C")
    bare = f"n={name},r={nonce}"
    answer = yield from _authenticate(f"{_HEADER}{bare}".encode())
    try:
        server_first = answer.auth_bytes.decode()
        parts = dict(part.split("=", 1) for part in server_first.split(","))
        salt, iterations = scram.decoded(parts["s"]), int(parts["i"])
        if not parts["r"].startswith(nonce):
            raise ValueError("another nonce")
        if not scram.ITERATIONS_MIN <= iterations <= _ITERATIONS_MAX:
            raise ValueError(f"{iterations} iterations")
    except (ValueError, KeyError) as error:
        raise Unavailable(f"the server's SCRAM message cannot be used: {error}") from None
    salted = scram.salted_password(hash_name, login.password, salt, iterations)
    unsigned = scram.client_final(_HEADER, parts["r"])
    auth_message = f"{bare},{server_first},{unsigned}"
    proof = scram.client_proof(hash_name, salted, auth_message)
    answer = yield from _authenticate(f"{unsigned},p={scram.encoded(proof)}".encode())
    keys = scram.keys_of(hash_name, salted)
    signature = scram.server_signature(hash_name, keys.server, auth_message)
    if not hmac.compare_digest(answer.auth_bytes, f"v={scram.encoded(signature)}".encode()):
        raise Unavailable("the server does not know the password that it accepts (SCRAM)")
    return int(answer.session_lifetime_ms)


_ITERATIONS_MAX: Final = 1_000_000
"""A server that asks for more wants the client's time."""


def _authenticate(token: bytes) -> Generator[Call[Any], Any, SaslAuthenticateResponse]:
    answer: SaslAuthenticateResponse = yield asking(
        SaslAuthenticateRequest(auth_bytes=token), _itself
    )
    if answer.error_code:
        code = error_of(answer.error_code).name.upper()
        raise Unavailable(f"{answer.error_message or 'the login is refused'} ({code})")
    return answer


def _itself(body: Any) -> Any:
    return body
