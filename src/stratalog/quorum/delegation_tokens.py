"""Create, renew and expire delegation tokens: refuse, or return records.

In: a client and a token, None where the cluster lacks it; the time of the wall clock. Out: records, and what the
client learns; Rejected with Kafka's code. It asks for no right: the handler has done so. Each client may create tokens
for itself, so their number and size have limits, which Apache Kafka lacks.

Kafka: `DelegationTokenControlManager` (KIP-48, KIP-900).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.delegation_tokens import TokenSecret, is_expired, tokens_of
from stratalog.metadata.image import Image
from stratalog.ports import Entropy
from stratalog.statemachine import Decision
from stratalog.wire.ids import topic_id_text
from stratalog.wire.internal.security_records import (
    DelegationTokenRecord,
    RemoveDelegationTokenRecord,
)

__all__ = [
    "RENEWERS_MAX",
    "RENEWER_CHARACTERS_MAX",
    "TOKENS_MAX",
    "NewToken",
    "TokenRules",
    "expire",
    "new_id",
    "new_record",
    "renew",
    "sweep",
]

RENEWERS_MAX: Final = 100
RENEWER_CHARACTERS_MAX: Final = 8000
"""Renewers of one token, and the characters of all their names together."""
TOKENS_MAX: Final = 1000
"""Tokens of one owner, and of one requester, that have not ended."""
_FOREVER_MS: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class TokenRules:
    """The settings of delegation tokens."""

    secret: TokenSecret = field(default=TokenSecret())
    lifetime_ms_max: int = 604_800_000
    """No token lives longer, however often it is renewed."""
    renewal_ms: int = 86_400_000
    """How long a token lives from its creation, or from a renewal."""


class NewToken(NamedTuple):
    """A wanted token. Principals are text: `User:alice`."""

    owner: str
    requester: str
    renewers: Sequence[str] = ()
    lifetime_ms: int = -1
    """The longest life that the client wants; not above 0: as long as the settings allow."""


def new_id(entropy: Entropy) -> str:
    """Return a token's id. None begins with a dash, as in Kafka: commands would take it for an option."""
    while (token_id := topic_id_text(entropy.uuid())).startswith("-"):
        pass
    return token_id


def new_record(
    rules: TokenRules, image: Image, wanted: NewToken, token_id: str, now_ms: int
) -> DelegationTokenRecord:
    """Return the record of a new token.

    Raises Rejected: DELEGATION_TOKEN_AUTH_DISABLED; INVALID_REQUEST for too many renewers or tokens.
    """
    _check_enabled(rules)
    _check_limits(image, wanted)
    lifetime_ms = rules.lifetime_ms_max
    if wanted.lifetime_ms > 0:
        lifetime_ms = min(lifetime_ms, wanted.lifetime_ms)
    max_timestamp = min(now_ms + lifetime_ms, _FOREVER_MS)
    return DelegationTokenRecord(
        owner=wanted.owner,
        requester=wanted.requester,
        renewers=tuple(wanted.renewers),
        issue_timestamp=now_ms,
        max_timestamp=max_timestamp,
        expiration_timestamp=min(max_timestamp, now_ms + rules.renewal_ms),
        token_id=token_id,
    )


def renew(
    rules: TokenRules,
    token: DelegationTokenRecord | None,
    client: str,
    period_ms: int,
    now_ms: int,
) -> Decision[Any, DelegationTokenRecord]:
    """Let a token live longer; answer: the token as it is then. Raises Rejected."""
    token = _found(rules, token)
    _check_alive(token, now_ms)
    _check_renewer(token, client)
    if period_ms <= 0:
        period_ms = rules.renewal_ms
    return _until(token, now_ms + min(period_ms, rules.renewal_ms))


def expire(
    rules: TokenRules,
    token: DelegationTokenRecord | None,
    client: str,
    period_ms: int,
    now_ms: int,
) -> Decision[Any, DelegationTokenRecord]:
    """Let a token end after a period, or remove it at once where that is below 0; answer: the token with its end.

    Raises Rejected.
    """
    token = _found(rules, token)
    _check_renewer(token, client)
    if period_ms < 0:
        gone = RemoveDelegationTokenRecord(token_id=token.token_id)
        return Decision([gone], replace(token, expiration_timestamp=now_ms))
    _check_alive(token, now_ms)
    return _until(token, now_ms + period_ms)


def sweep(image: Image, now_ms: int, at_most: int) -> Decision[Any, Sequence[str]]:
    """Remove tokens whose time is over, some at once; answer: their ids."""
    over = (one.token_id for one in tokens_of(image) if is_expired(one, now_ms))
    found = list(islice(over, at_most))
    return Decision([RemoveDelegationTokenRecord(token_id=one) for one in found], found)


def _check_limits(image: Image, wanted: NewToken) -> None:
    if len(wanted.renewers) > RENEWERS_MAX:
        raise Rejected(
            ErrorCode.invalid_request,
            f"more than {RENEWERS_MAX} renewers of one token",
        )
    if (characters := sum(map(len, wanted.renewers))) > RENEWER_CHARACTERS_MAX:
        raise Rejected(
            ErrorCode.invalid_request,
            f"renewers of {characters} characters, where {RENEWER_CHARACTERS_MAX} are allowed",
        )
    # Also by requester: one with CREATE_TOKENS on many owners must not fill the log for them.
    owned = requested = 0
    for one in tokens_of(image):
        owned += one.owner == wanted.owner
        requested += one.requester == wanted.requester
    if max(owned, requested) >= TOKENS_MAX:
        holder = wanted.owner if owned >= TOKENS_MAX else wanted.requester
        raise Rejected(
            ErrorCode.invalid_request,
            f"{holder} has {TOKENS_MAX} tokens; let some expire, or remove them",
        )


def _until(token: DelegationTokenRecord, end_ms: int) -> Decision[Any, DelegationTokenRecord]:
    changed = replace(token, expiration_timestamp=min(token.max_timestamp, end_ms))
    return Decision([changed], changed)


def _found(rules: TokenRules, token: DelegationTokenRecord | None) -> DelegationTokenRecord:
    _check_enabled(rules)
    if token is None:
        raise Rejected(ErrorCode.delegation_token_not_found, "no token has this HMAC")
    return token


def _check_enabled(rules: TokenRules) -> None:
    if not rules.secret.is_set:
        raise Rejected(
            ErrorCode.delegation_token_auth_disabled, "delegation.token.secret.key is not set"
        )


def _check_alive(token: DelegationTokenRecord, now_ms: int) -> None:
    if is_expired(token, now_ms):
        raise Rejected(ErrorCode.delegation_token_expired, "the token has expired")


def _check_renewer(token: DelegationTokenRecord, client: str) -> None:
    if client != token.owner and client not in token.renewers:
        raise Rejected(
            ErrorCode.delegation_token_owner_mismatch,
            f"{client} is neither the token's owner nor one of its renewers",
        )
