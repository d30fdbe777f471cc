"""Log in by SASL, without a socket.

In: a login, and the server's answers. Out: the calls to make, one after another. It never sends anything. PLAIN sends
the password itself, so it belongs on a connection with TLS.

Raises Rejected where the server refuses the login, or does not know the password itself (SCRAM): another attempt would
end in the same way.
"""

import hmac
import json
from base64 import urlsafe_b64decode
from collections.abc import Generator
from dataclasses import dataclass, field
from secrets import token_hex  # noqa: TID251 - a nonce; the simulator has no SASL
from typing import Any, Final

from stratalog.client.calls import Call, asking, error_of
from stratalog.config.sasl import OAUTHBEARER, PLAIN, SERVED_MECHANISMS
from stratalog.errors import ErrorCode, Rejected
from stratalog.ports import Secret, TokenSource
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
class Login(Secret):
    """The user, the password and the mechanism."""

    mechanism: str
    user: str
    password: str = field(repr=False)
    """With OAUTHBEARER the token, which the shell gets from `source` for each connection."""
    source: TokenSource | None = None
    by_token: bool = False
    """Whether user and password are id and key of a delegation token (KIP-48)."""


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
        raise Rejected(
            ErrorCode.unsupported_sasl_mechanism,
            f"the listener has no SASL mechanism {login.mechanism}; it has: {names}",
        )
    if shaken.error_code:
        raise Rejected(error_of(shaken.error_code), "the listener refuses SASL")
    if login.mechanism == OAUTHBEARER:
        return (yield from _bearer(login.password))
    if login.mechanism == PLAIN:
        answer = yield from _authenticate(f"\0{login.user}\0{login.password}".encode())
        return answer.session_lifetime_ms
    try:
        return (yield from _scram(login, token_hex(_NONCE_BYTES)))
    except Rejected as error:
        if not login.by_token:
            raise
        remedy = "the delegation token may have ended; its owner sees it with strata token list"
        raise Rejected(error.code, f"{error.message}; {remedy}") from None


def _bearer(token: str) -> Steps:
    """RFC 7628. A server that refuses the token says why, and gives its error only after a further byte."""
    answer = yield from _authenticate(f"{_HEADER}\1auth=Bearer {token}\1\1".encode())
    if not answer.auth_bytes:
        return answer.session_lifetime_ms
    try:
        yield from _authenticate(b"\1")
    except Rejected as error:
        raise Rejected(error.code, f"{error.message}; {_claims(token)}") from None
    raise Rejected(ErrorCode.sasl_authentication_failed, f"the token is refused; {_claims(token)}")


def _claims(token: str) -> str:
    """Return what a broker may refuse of a token, and what to compare it with."""
    try:
        part = token.split(".")[1]
        claims = json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        found = ", ".join(f"{name} {claims.get(name)!r}" for name in ("iss", "aud", "sub", "exp"))
    except (ValueError, IndexError, AttributeError):
        return "it is no JSON Web Token"
    return (
        f"the token has {found}; compare sasl.oauthbearer.expected.* of the brokers, and the clocks"
    )


def _scram(login: Login, nonce: str) -> Steps:
    hash_name = scram.MECHANISMS[login.mechanism][1]
    name = login.user.replace("=", "=3D").replace(",", "=2C")
    bare = f"n={name},r={nonce}" + (",tokenauth=true" if login.by_token else "")
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
        raise Rejected(
            ErrorCode.sasl_authentication_failed,
            f"the server's SCRAM message cannot be used: {error}",
        ) from None
    salted = scram.salted_password(hash_name, login.password, salt, iterations)
    unsigned = scram.client_final(_HEADER, parts["r"])
    auth_message = f"{bare},{server_first},{unsigned}"
    proof = scram.client_proof(hash_name, salted, auth_message)
    answer = yield from _authenticate(f"{unsigned},p={scram.encoded(proof)}".encode())
    keys = scram.keys_of(hash_name, salted)
    signature = scram.server_signature(hash_name, keys.server, auth_message)
    if not hmac.compare_digest(answer.auth_bytes, f"v={scram.encoded(signature)}".encode()):
        raise Rejected(
            ErrorCode.sasl_authentication_failed,
            "the server does not know the password that it accepts",
        )
    return int(answer.session_lifetime_ms)


_ITERATIONS_MAX: Final = 1_000_000
"""A server that asks for more wants the client's time."""


def _authenticate(token: bytes) -> Generator[Call[Any], Any, SaslAuthenticateResponse]:
    answer: SaslAuthenticateResponse = yield asking(
        SaslAuthenticateRequest(auth_bytes=token), _itself
    )
    if answer.error_code:
        message = answer.error_message or "the login is refused"
        raise Rejected(error_of(answer.error_code), message)
    return answer


def _itself(body: Any) -> Any:
    return body
