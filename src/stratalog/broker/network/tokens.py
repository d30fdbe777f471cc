"""Check the tokens of OAUTHBEARER: their issuer, audience, user and end.

In: the rules of a listener, the issuer's keys, tokens. Out: a user's name and the rest of the token's life, or why the
token is refused. A thread checks signatures, so that tokens of clients without a login do not hold up others; a second
one reads the keys. A token whose key is unknown is refused, and the keys are read again.

The rules are Kafka's (`BrokerJwtValidator`): a signature by a key of the issuer, `exp` and `iat`, a name, and, where
they are set, issuer and audience.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import structlog

from stratalog.config.principal_rules import is_name
from stratalog.config.tokens import TokenRules
from stratalog.errors import Unavailable, UserError
from stratalog.ports import Clock, Outside, TokenKeys, Worker

__all__ = ["Bearer", "Tokens", "bearer_of"]

_SOON_MS: Final = 10_000
"""The shortest time between two reads of the keys (Kafka: `sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms`)."""
_SHOWN_MAX: Final = 200
"""How many characters of a claim the audit shows."""
_TOKEN_MAX: Final = 16384
"""Characters of the longest token that is looked at."""


class Bearer(NamedTuple):
    """The user of a valid token, and for how many ms the token stays valid."""

    user: str
    lifetime_ms: int


class Tokens:
    """The tokens that one listener accepts."""

    def __init__(self, rules: TokenRules, outside: Outside) -> None:
        self._rules = rules
        self._read = outside.token_keys
        self._clock: Clock = outside.clock
        self._worker: Worker = outside.workers.start("token-keys")
        self._checker: Worker = outside.workers.start("token-checks")
        self._keys: TokenKeys | None = None
        self._next_ms = 0
        self._is_wanted = False
        self._log = structlog.get_logger()

    async def close(self) -> None:
        """End the threads."""
        await self._worker.close()
        await self._checker.close()

    async def load(self) -> None:
        """Read the keys for the first time. Raises UserError: a listener that can check no token does not start."""
        try:
            self._keys = await self._worker.submit(lambda: self._read(self._rules.keys_url))
        except (Unavailable, UserError) as error:
            raise UserError(f"sasl.oauthbearer.jwks.endpoint.url: {error}") from error
        self._next_ms = self._clock.steady_ms() + self._rules.refresh_ms

    async def refresh(self) -> None:
        """Read the keys again where it is time, or a token has named another key. The previous ones stay until then."""
        now_ms = self._clock.steady_ms()
        early_ms = self._next_ms - self._rules.refresh_ms + _SOON_MS
        if now_ms < self._next_ms and not (self._is_wanted and now_ms >= early_ms):
            return
        self._is_wanted = False
        self._next_ms = now_ms + self._rules.refresh_ms
        try:
            self._keys = await self._worker.submit(lambda: self._read(self._rules.keys_url))
        except (Unavailable, UserError) as error:
            self._next_ms = now_ms + min(_SOON_MS, self._rules.refresh_ms)
            self._log.error("keys of tokens not read", reason=str(error))

    async def check(self, token: str) -> Bearer | str:
        """Return the user of a token; for one that is not accepted, the reason, for the audit alone."""
        keys = self._keys
        assert keys is not None, "a listener reads them before it starts"
        if len(token) > _TOKEN_MAX:
            return f"the token has {len(token)} characters; accepted: {_TOKEN_MAX}"
        try:
            claims = await self._checker.submit(lambda: keys.claims(token))
        except LookupError:
            self._is_wanted = True
            return "the token names no key of the issuer"
        except ValueError:
            return "the token has no valid signature by one of the issuer's keys"
        except Unavailable:
            return "the node stops"
        return bearer_of(claims, self._rules, self._clock.now_ms())


def bearer_of(claims: Mapping[str, Any], rules: TokenRules, now_ms: int) -> Bearer | str:
    """Return the user that the claims of a signed token name, or why a rule refuses them. `now_ms`: epoch ms."""
    expires_s, issued_s = _number(claims.get("exp")), _number(claims.get("iat"))
    not_before_s = _number(claims.get("nbf")) if "nbf" in claims else issued_s
    now_s = now_ms / 1000
    if expires_s is None or issued_s is None or not_before_s is None or issued_s > expires_s:
        return "iat, exp or nbf is missing, or wrong"
    if not_before_s - rules.skew_s > now_s:
        return "the token is not valid yet"
    if expires_s + rules.skew_s <= now_s:
        return "the token has expired"
    issuer, audience, user = claims.get("iss"), claims.get("aud"), claims.get(rules.user_claim)
    if rules.issuer and issuer != rules.issuer:
        return f"iss is {_short(issuer)}; the listener expects {rules.issuer!r}"
    named = {audience} if isinstance(audience, str) else _texts(audience)
    if rules.audiences and named.isdisjoint(rules.audiences):
        return f"aud is {_short(audience)}; the listener expects {', '.join(rules.audiences)}"
    if not isinstance(user, str) or not user.strip() or not is_name(user):
        return f"{rules.user_claim} is {_short(user)}, which names no user"
    return Bearer(user, max(1, int(expires_s * 1000) - now_ms))


def _short(value: object) -> str:
    return repr(value)[:_SHOWN_MAX]


def _number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # Also bounds NaN and infinity, which JSON readers accept.
    return float(value) if is_number and 0 <= value < 1e12 else None  # type: ignore[operator,arg-type]


def _texts(values: object) -> set[str]:
    found = values if isinstance(values, list) else ()
    return {one for one in found if isinstance(one, str)}
