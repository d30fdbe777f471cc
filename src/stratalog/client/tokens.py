"""Calls about delegation tokens, in the manner of `calls.py`.

In: principals, keys, periods. Out: calls, and tokens. A token's key is a secret: the `repr` of a token hides it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from stratalog.client.calls import Call, asking
from stratalog.errors import ErrorCode, Rejected
from stratalog.ports import Secret
from stratalog.wire.messages.create_delegation_token import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from stratalog.wire.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from stratalog.wire.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from stratalog.wire.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)

__all__ = ["Token", "create_token", "describe_tokens", "expire_token", "renew_token"]


@dataclass(frozen=True, slots=True)
class Token(Secret):
    """A delegation token; principals are text (`User:alice`), times epoch ms. A client logs in with id and key."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    expires_ms: int
    ends_ms: int
    """No renewal lasts longer."""
    key: bytes = field(repr=False)
    """Its HMAC. In base64 it is the password of SCRAM."""


def create_token(
    owner: str | None = None, renewers: Sequence[str] = (), lifetime_ms: int = -1
) -> Call[Token]:
    """Create a token of the client's, or of another owner's. Raises Rejected."""
    kind, name = (None, None) if owner is None else _parts(owner)
    request = CreateDelegationTokenRequest(
        owner_principal_type=kind,
        owner_principal_name=name,
        renewers=[
            CreatableRenewers(principal_type=kind, principal_name=name)
            for kind, name in map(_parts, renewers)
        ],
        max_lifetime_ms=lifetime_ms,
    )

    def read(body: CreateDelegationTokenResponse) -> Token:
        _check(body.error_code)
        return Token(
            body.token_id,
            f"{body.principal_type}:{body.principal_name}",
            f"{body.token_requester_principal_type}:{body.token_requester_principal_name}",
            tuple(renewers),
            body.issue_timestamp_ms,
            body.expiry_timestamp_ms,
            body.max_timestamp_ms,
            body.hmac,
        )

    return asking(request, read)


def describe_tokens(owners: Sequence[str] | None = None) -> Call[list[Token]]:
    """Return the tokens of these owners, or of all, that the client may see. Raises Rejected."""
    named = None
    if owners is not None:
        named = [
            DescribeDelegationTokenOwner(principal_type=kind, principal_name=name)
            for kind, name in map(_parts, owners)
        ]

    def read(body: DescribeDelegationTokenResponse) -> list[Token]:
        _check(body.error_code)
        return [_token(one) for one in body.tokens]

    return asking(DescribeDelegationTokenRequest(owners=named), read)


def renew_token(key: bytes, period_ms: int = -1) -> Call[int]:
    """Let a token live longer; return its end. Raises Rejected."""

    def read(body: RenewDelegationTokenResponse) -> int:
        _check(body.error_code)
        return body.expiry_timestamp_ms

    return asking(RenewDelegationTokenRequest(hmac=key, renew_period_ms=period_ms), read)


def expire_token(key: bytes, period_ms: int = -1) -> Call[int]:
    """Let a token end after a period, at once where that is below 0; return its end. Raises Rejected."""

    def read(body: ExpireDelegationTokenResponse) -> int:
        _check(body.error_code)
        return body.expiry_timestamp_ms

    return asking(ExpireDelegationTokenRequest(hmac=key, expiry_time_period_ms=period_ms), read)


def _token(one: DescribedDelegationToken) -> Token:
    return Token(
        one.token_id,
        f"{one.principal_type}:{one.principal_name}",
        f"{one.token_requester_principal_type}:{one.token_requester_principal_name}",
        tuple(f"{each.principal_type}:{each.principal_name}" for each in one.renewers),
        one.issue_timestamp,
        one.expiry_timestamp,
        one.max_timestamp,
        one.hmac,
    )


def _parts(principal: str) -> tuple[str, str]:
    kind, _, name = principal.partition(":")
    return kind, name


def _check(code: int) -> None:
    if code:
        raise Rejected(ErrorCode(code), _REMEDIES.get(code, ""))


_REMEDIES = {
    int(
        ErrorCode.delegation_token_auth_disabled
    ): "the brokers have no delegation.token.secret.key",
    int(ErrorCode.delegation_token_request_not_allowed): (
        "the client must log in by SASL or a certificate, and not with a token"
    ),
    int(ErrorCode.delegation_token_owner_mismatch): (
        "only the token's owner and its renewers may change it"
    ),
    int(ErrorCode.delegation_token_not_found): "the brokers know no token of this key",
    int(ErrorCode.delegation_token_expired): "the token has expired; create another one",
    int(ErrorCode.delegation_token_authorization_failed): (
        "a token of another owner needs CREATE_TOKENS on that user"
    ),
}
