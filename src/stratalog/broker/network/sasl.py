"""Authenticate one connection by SASL: which requests pass before, and the name of the client.

In: frames and tokens of one client, the users. Out: tokens for the client, a principal, or a refusal. It waits for the
check of a bearer token alone, never logs, and never says whether the user or the password was wrong.

    HANDSHAKE ── SaslHandshake ──> AUTHENTICATE ── right token ──> DONE ── SaslHandshake ──> AUTHENTICATE …
                                        └── wrong token ──> FAILED

A session that must authenticate again (KIP-368) stays as it is until its time is over; then only SaslHandshake and
SaslAuthenticate pass. Another principal or mechanism than before is refused.

An unknown user gets the same answers, and after the same work, as a known one with a wrong password. A name with a line
break is refused.

A session of OAUTHBEARER, or of a delegation token (KIP-48), ends with its token. A client that logs in by SCRAM with
`tokenauth=true` names a delegation token, and its principal is the token's owner.

Kafka: `SaslServerAuthenticator`, `PlainSaslServer`, `ScramSaslServer`, `OAuthBearerSaslServer`.
"""

import hmac
import re
from base64 import b64encode
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from typing import Any, Final, NamedTuple

from msgspec import Struct

from stratalog.broker.network.tokens import Bearer
from stratalog.config.principal_rules import is_name
from stratalog.config.sasl import OAUTHBEARER, PLAIN, SaslListener
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire import scram
from stratalog.wire.apis import API_VERSIONS

__all__ = ["SaslState", "ScramUser", "TokenUser", "Users"]

_HANDSHAKE, _AUTHENTICATE = 17, 36
_MESSAGE_MAX: Final = 20 << 10
"""Bytes of a client's message that is looked at: the longest bearer token, and what is around it. It takes 1 ms."""
_ADMITTED: Final = frozenset({_HANDSHAKE, API_VERSIONS, _AUTHENTICATE})


@dataclass(frozen=True, slots=True)
class ScramUser:
    """A user's credential of one SCRAM mechanism."""

    salt: bytes = field(repr=False)
    stored: bytes = field(repr=False)
    server: bytes = field(repr=False)
    iterations: int


class TokenUser(NamedTuple):
    """A delegation token that may log in now: its credential, its owner, and for how many ms it stays valid."""

    credential: ScramUser
    owner: str
    lifetime_ms: int


class Users(Struct, frozen=True):
    """The users of the node.

    `scram` returns the credential of a mechanism's number and a user, or None; `token` that of a delegation token.
    """

    scram: Callable[[int, str], ScramUser | None]
    token: Callable[[int, str], TokenUser | None]
    unknown: Callable[[int, str, bool], ScramUser]
    """Returns a credential that no proof fits, for a mechanism's number, a name, and whether it is to be a token's."""
    nonce: Callable[[], str]
    """Returns a new text of random characters, of at least 120 bits."""


class _Known(NamedTuple):
    """The end of an exchange: the user's name, the last token, for how many ms the credential stays valid, and whether
    it is a delegation token.
    """

    user: str
    answer: bytes
    lifetime_ms: int | None = None
    by_token: bool = False


class _Unchecked(NamedTuple):
    """A bearer token, for which an exchange needs its user, or None."""

    token: str


Tokens = Generator[bytes | _Unchecked, Any, _Known]
"""One exchange: it takes the client's tokens, and yields the server's. Raises Rejected(SASL_AUTHENTICATION_FAILED)."""
_BY_INPUT: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Errors that bytes of a client may cause in code that does not expect them."""
_BEARER: Final = re.compile(
    rb"n,(?:a=(?P<user>(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+))?,\x01"
    rb"(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01"
)
_AUTH: Final = re.compile(rb"(?:^|\x01)auth=(?i:bearer) +([\w.+/=~-]+)\x01")
_INVALID_TOKEN: Final = b'{"status":"invalid_token"}'


class _Step(Enum):
    HANDSHAKE = "handshake"
    AUTHENTICATE = "authenticate"
    DONE = "done"
    FAILED = "failed"


class SaslState:
    """The authentication of one connection."""

    def __init__(
        self,
        listener: Callable[[], SaslListener],
        bearer: Callable[[str], Awaitable[Bearer | str]],
    ) -> None:
        """`listener` returns the present settings: a client that authenticates again meets new ones.

        `bearer` returns the user of a token of OAUTHBEARER, or why it is not accepted.
        """
        self._listener = listener
        self._bearer = bearer
        self.mechanism = ""
        self._step = _Step.HANDSHAKE
        self._exchange: Tokens | None = None
        self._user: str | None = None
        """The user of the session, from its first authentication on."""
        self._first_mechanism = ""
        self.claimed = ""
        """The name of the user whose login was refused last."""
        self.why = ""
        """Why a token of OAUTHBEARER or a message was refused, or the error of a bug, for the audit alone."""
        self.by_token = False
        """Whether the client has logged in with a delegation token."""
        self._until_ms: int | None = None
        self._is_bare = False

    @property
    def listener(self) -> SaslListener:
        """The settings of the listener."""
        return self._listener()

    @property
    def is_known(self) -> bool:
        """Whether the client has authenticated."""
        return self._user is not None

    @property
    def ends(self) -> bool:
        """Whether the session is over at some time, unless the client authenticates again."""
        return self._until_ms is not None

    @property
    def takes_bare_tokens(self) -> bool:
        """Whether the next frame is a token without a header, as after SaslHandshake version 0."""
        return self._is_bare and self._step is _Step.AUTHENTICATE

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

    def handshake(self, mechanism: str, users: Users, *, is_bare: bool = False) -> ErrorCode:
        """Begin an exchange; return the error for the client. `is_bare`: its tokens have no header."""
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
        self._step, self._is_bare = _Step.AUTHENTICATE, is_bare
        if mechanism == PLAIN:
            self._exchange = _plain(self.listener.plain)
        elif mechanism == OAUTHBEARER:
            self._exchange = _oauthbearer()
        else:
            self._exchange = _scram(mechanism, users)
        next(self._exchange)
        return ErrorCode.none

    async def authenticate(self, token: bytes, steady_ms: int) -> tuple[bytes, str | None, int]:
        """Return the server's token; once the exchange is complete, the user's name, and the session's lifetime in ms
        (0: no end).

        Raises Rejected: SASL_AUTHENTICATION_FAILED, or ILLEGAL_SASL_STATE without a handshake. The connection must be
        closed then.
        """
        exchange = self._exchange
        if self._step is not _Step.AUTHENTICATE or exchange is None:
            self._step = _Step.FAILED
            raise Rejected(ErrorCode.illegal_sasl_state, "SaslAuthenticate without SaslHandshake")
        if len(token) > _MESSAGE_MAX:
            self._step = _Step.FAILED
            self.why = f"a message of {len(token)} bytes; accepted: {_MESSAGE_MAX}"
            raise _LoginRefused(self.mechanism)
        try:
            answer = exchange.send(token)
            if isinstance(answer, _Unchecked):
                answer = exchange.send(await self._checked(answer.token))
        except StopIteration as end:
            user, answer, token_ms, by_token = end.value
        except _LoginRefused as error:
            self._step = _Step.FAILED
            self.claimed = error.user
            raise
        except _BY_INPUT as error:
            self._step = _Step.FAILED
            self.why = f"{type(error).__name__}: {error}"
            raise _LoginRefused(self.mechanism) from error
        else:
            assert isinstance(answer, bytes), "an exchange asks once"
            return answer, None, 0
        if not is_name(user) or (self._user is not None and user != self._user):
            self._step = _Step.FAILED
            self.claimed = user
            raise _LoginRefused(self.mechanism, user)
        self._user, self._first_mechanism, self._exchange = user, self.mechanism, None
        self._step, self.by_token = _Step.DONE, by_token
        limits = [ms for ms in (self.listener.reauth_ms or None, token_ms) if ms is not None]
        lifetime_ms = min(limits, default=0)
        self._until_ms = steady_ms + lifetime_ms if lifetime_ms else None
        return answer, user, lifetime_ms

    async def _checked(self, token: str) -> Bearer | None:
        """Return the user of a token; keep the reason for one that is not accepted."""
        found = await self._bearer(token)
        if isinstance(found, Bearer):
            return found
        self.why = found
        return None


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
    return _Known(user, b"")


def _oauthbearer() -> Tokens:
    """RFC 7628: `n,a=USER,^Aauth=Bearer TOKEN^A^A`. Other pairs (KIP-342) have no effect."""
    first = _BEARER.fullmatch((yield b""))
    auth = None if first is None else _AUTH.search(first["pairs"])
    if first is None or auth is None:
        raise _LoginRefused(OAUTHBEARER)
    found: Bearer | None = yield _Unchecked(auth[1].decode())
    if found is None:
        yield _INVALID_TOKEN  # the client answers with one byte, and then gets the error
        raise _LoginRefused(OAUTHBEARER)
    claimed = (first["user"] or b"").replace(b"=2C", b",").replace(b"=3D", b"=").decode()
    if claimed not in ("", found.user):
        raise _LoginRefused(OAUTHBEARER, claimed)
    return _Known(found.user, b"", found.lifetime_ms)


def _scram(mechanism: str, users: Users) -> Tokens:
    """RFC 5802, without channel binding."""
    number, hash_name = scram.MECHANISMS[mechanism]
    token = yield b""
    try:
        first = scram.read_client_first(token)
    except ValueError:
        raise _LoginRefused(mechanism) from None
    invented = users.unknown(
        number, first.user, first.by_token
    )  # in any case: its time tells nothing
    if first.by_token:
        token_user = users.token(number, first.user)
        credential = None if token_user is None else token_user.credential
    else:
        credential = users.scram(number, first.user)
    found = credential or invented
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
    answer = b"v=" + b64encode(scram.server_signature(hash_name, found.server, auth_message))
    if not first.by_token:
        return _Known(first.user, answer)
    token_user = users.token(number, first.user)
    if token_user is None:  # it has ended since the first message
        raise _LoginRefused(mechanism, first.user)
    return _Known(token_user.owner, answer, token_user.lifetime_ms, by_token=True)


class _LoginRefused(Rejected):
    """A wrong login; `user` is the name that the client gave, "" where it is unknown."""

    def __init__(self, mechanism: str, user: str = "") -> None:
        super().__init__(
            ErrorCode.sasl_authentication_failed,
            f"Authentication failed: invalid credentials with SASL mechanism {mechanism}",
        )
        self.user = user
