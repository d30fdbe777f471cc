"""Authenticate one connection by SASL: which requests pass before, and the name of the client.

In: frames and tokens of one client, the users. Out: tokens for the client, a principal, or a refusal. It never waits,
never logs, and never says whether the user or the password was wrong.

    HANDSHAKE ── SaslHandshake ──> AUTHENTICATE ── right token ──> DONE ── SaslHandshake ──> AUTHENTICATE …
                                        └── wrong token ──> FAILED

A session that must authenticate again (KIP-368) stays as it is until its time is over; then only SaslHandshake and
SaslAuthenticate pass. Another principal or mechanism than before is refused.

An unknown user gets the same answers, and after the same work, as a known one with a wrong password.

Kafka: `SaslServerAuthenticator`, `PlainSaslServer`, `ScramSaslServer`.
"""

import hmac
from base64 import b64encode
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from typing import Final

from stratalog.config.sasl import PLAIN, SaslListener
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire import scram
from stratalog.wire.apis import API_VERSIONS

__all__ = ["SaslState", "ScramUser", "Users"]

_HANDSHAKE, _AUTHENTICATE = 17, 36
_ADMITTED: Final = frozenset({_HANDSHAKE, API_VERSIONS, _AUTHENTICATE})


@dataclass(frozen=True, slots=True)
class ScramUser:
    """A user's credential of one SCRAM mechanism."""

    salt: bytes = field(repr=False)
    stored: bytes = field(repr=False)
    server: bytes = field(repr=False)
    iterations: int


@dataclass(frozen=True, slots=True)
class Users:
    """The users of the node. `scram` returns the credential of a mechanism's number and a user, or None."""

    scram: Callable[[int, str], ScramUser | None]
    nonce: Callable[[], str]
    """Returns a new text of random characters, of at least 120 bits."""
    pepper: Callable[[], bytes]
    """Returns random bytes of this process, always the same: unknown users get their salts from them."""


Tokens = Generator[bytes, bytes, tuple[str, bytes]]
"""One exchange: it takes the client's tokens, yields the server's, and returns the user's name and the last token.

Raises Rejected(SASL_AUTHENTICATION_FAILED).
"""


class _Step(Enum):
    HANDSHAKE = "handshake"
    AUTHENTICATE = "authenticate"
    DONE = "done"
    FAILED = "failed"


class SaslState:
    """The authentication of one connection."""

    def __init__(self, listener: SaslListener) -> None:
        self.listener = listener
        self.mechanism = ""
        self._step = _Step.HANDSHAKE
        self._exchange: Tokens | None = None
        self._user: str | None = None
        """The user of the session, from its first authentication on."""
        self._first_mechanism = ""
        self.claimed = ""
        """The name of the user whose login was refused last."""
        self._until_ms: int | None = None

    @property
    def is_known(self) -> bool:
        """Whether the client has authenticated."""
        return self._user is not None

    @property
    def has_failed(self) -> bool:
        """Whether the connection must be closed once its answers are sent."""
        return self._step is _Step.FAILED

    def admit(self, api_key: int, steady_ms: int) -> None:
        """Raise Rejected(ILLEGAL_SASL_STATE) unless a request of this API may be served now."""
        if self._step is _Step.FAILED:
            raise Rejected(ErrorCode.illegal_sasl_state, "a request after a failed authentication")
        if api_key in _ADMITTED:
            return
        if self._user is None:
            raise Rejected(ErrorCode.illegal_sasl_state, "a request before authentication")
        if self._until_ms is not None and steady_ms >= self._until_ms:
            raise Rejected(
                ErrorCode.illegal_sasl_state, "the session is over: authenticate again (KIP-368)"
            )

    def handshake(self, mechanism: str, users: Users) -> ErrorCode:
        """Begin an exchange; return the error for the client."""
        if self._step is _Step.AUTHENTICATE:
            self._step = _Step.FAILED
            return ErrorCode.illegal_sasl_state
        if mechanism not in self.listener.mechanisms:
            self._step = _Step.FAILED
            return ErrorCode.unsupported_sasl_mechanism
        if self._first_mechanism and mechanism != self._first_mechanism:
            self._step = _Step.FAILED
            return ErrorCode.illegal_sasl_state
        self.mechanism = mechanism
        self._step = _Step.AUTHENTICATE
        if mechanism == PLAIN:
            self._exchange = _plain(self.listener.plain)
        else:
            self._exchange = _scram(mechanism, users)
        next(self._exchange)
        return ErrorCode.none

    def authenticate(self, token: bytes, steady_ms: int) -> tuple[bytes, str | None, int]:
        """Return the server's token; once the exchange is complete, the user's name, and the session's lifetime in ms
        (0: no end).

        Raises Rejected: SASL_AUTHENTICATION_FAILED, or ILLEGAL_SASL_STATE without a handshake. The connection must be
        closed then.
        """
        exchange = self._exchange
        if self._step is not _Step.AUTHENTICATE or exchange is None:
            self._step = _Step.FAILED
            raise Rejected(ErrorCode.illegal_sasl_state, "SaslAuthenticate without SaslHandshake")
        try:
            return exchange.send(token), None, 0
        except StopIteration as end:
            user, answer = end.value
        except _LoginRefused as error:
            self._step = _Step.FAILED
            self.claimed = error.user
            raise
        if self._user is not None and user != self._user:
            self._step = _Step.FAILED
            self.claimed = user
            raise _LoginRefused(self.mechanism, user)
        self._user, self._first_mechanism, self._exchange = user, self.mechanism, None
        self._step = _Step.DONE
        lifetime_ms = self.listener.reauth_ms
        self._until_ms = steady_ms + lifetime_ms if lifetime_ms else None
        return answer, user, lifetime_ms


def _plain(passwords: Mapping[str, str]) -> Tokens:
    """RFC 4616: `[authorization id] NUL user NUL password`."""
    token = yield b""
    try:
        authorization_id, user, password = token.decode().split("\0")
    except ValueError:  # also of the decoding
        raise _LoginRefused(PLAIN) from None
    expected = passwords.get(user, "")
    # Of equal length, so that the time tells nothing about the password.
    is_right = hmac.compare_digest(
        sha256(expected.encode()).digest(), sha256(password.encode()).digest()
    )
    if not is_right or not password or user not in passwords:
        raise _LoginRefused(PLAIN, user)
    if authorization_id not in ("", user):
        raise _LoginRefused(PLAIN, user)
    return user, b""


def _scram(mechanism: str, users: Users) -> Tokens:
    """RFC 5802, without channel binding."""
    number, hash_name = scram.MECHANISMS[mechanism]
    token = yield b""
    try:
        first = scram.read_client_first(token)
    except ValueError:
        raise _LoginRefused(mechanism) from None
    credential = users.scram(number, first.user)
    found = credential or _unknown(hash_name, first.user, users.pepper())
    nonce = first.nonce + users.nonce()
    server_first = f"r={nonce},s={b64encode(found.salt).decode()},i={found.iterations}"
    token = yield server_first.encode()
    try:
        final = scram.read_client_final(token)
        auth_message = f"{first.bare},{server_first},{final.unsigned}"
        implied = scram.stored_key_of(hash_name, found.stored, auth_message, final.proof)
    except ValueError:
        raise _LoginRefused(mechanism, first.user) from None
    is_right = hmac.compare_digest(implied, found.stored)
    is_same = hmac.compare_digest(final.nonce, nonce) and final.header == first.header
    if credential is None or not is_right or not is_same:
        raise _LoginRefused(mechanism, first.user)
    if first.authorization_id not in ("", first.user):
        raise _LoginRefused(mechanism, first.user)
    signature = scram.server_signature(hash_name, found.server, auth_message)
    return first.user, b"v=" + b64encode(signature)


def _unknown(hash_name: str, user: str, pepper: bytes) -> ScramUser:
    """Return a credential that no proof fits; the same user always has the same salt."""
    salt = hmac.digest(pepper, user.encode(), "sha256")[:24]
    stored = hmac.digest(pepper, salt, hash_name)
    return ScramUser(salt, stored, stored, scram.ITERATIONS_MIN)


class _LoginRefused(Rejected):
    """A wrong login; `user` is the name that the client gave, "" where it is unknown."""

    def __init__(self, mechanism: str, user: str = "") -> None:
        super().__init__(
            ErrorCode.sasl_authentication_failed,
            f"Authentication failed: invalid credentials with SASL mechanism {mechanism}",
        )
        self.user = user
