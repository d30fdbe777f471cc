"""DescribeDelegationToken (key 41), versions 1-3.

KIP-48. v2 flexible. v3 the requester of each token (KIP-373).

The answer has the key of each token: a client that may see a token may use it.
"""

from typing import NamedTuple

from stratalog.broker.coordination.cluster_image import ClusterImage
from stratalog.broker.network.authorizer import Operation, Resource
from stratalog.broker.network.dispatch import Call
from stratalog.broker.network.session import Principal
from stratalog.config import BrokerConfig
from stratalog.errors import ErrorCode
from stratalog.metadata.delegation_tokens import TokenSecret
from stratalog.wire.internal.security_records import DelegationTokenRecord
from stratalog.wire.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    metadata: ClusterImage
    config: BrokerConfig


async def handle(
    call: Call[DescribeDelegationTokenRequest, Needs],
) -> DescribeDelegationTokenResponse:
    """Return the tokens of the named owners, or of all, that the client may see."""
    secret = TokenSecret(call.needs.config.token_secret)
    if not call.session.may_handle_tokens:
        code = ErrorCode.delegation_token_request_not_allowed
        return DescribeDelegationTokenResponse(error_code=code, tokens=[])
    if not secret.is_set:
        code = ErrorCode.delegation_token_auth_disabled
        return DescribeDelegationTokenResponse(error_code=code, tokens=[])
    owners = None
    if call.body.owners is not None:
        owners = {
            str(Principal(one.principal_type, one.principal_name)) for one in call.body.owners
        }
    tokens = []
    async for (kind, _), record in call.pace.each(call.needs.metadata.image.foreign.items()):
        if kind == DelegationTokenRecord.__name__ and _is_shown(call, record, owners):
            tokens.append(_described(record, secret.key_of(record.token_id)))
    return DescribeDelegationTokenResponse(error_code=ErrorCode.none, tokens=tokens)


def _is_shown(
    call: Call[DescribeDelegationTokenRequest, Needs],
    token: DelegationTokenRecord,
    owners: set[str] | None,
) -> bool:
    """Return whether a token is wanted, and the client's own or one that it may describe.

    Kafka: `DelegationTokenManager.filterToken`.
    """
    related = {token.owner, token.requester, *token.renewers}
    if owners is not None and owners.isdisjoint(related):
        return False
    return (
        str(call.session.principal) in related
        or call.allows(Operation.DESCRIBE, Resource.DELEGATION_TOKEN, token.token_id)
        or call.allows(Operation.DESCRIBE_TOKENS, Resource.USER, token.owner)
    )


def _described(token: DelegationTokenRecord, key: bytes) -> DescribedDelegationToken:
    owner, requester = _parts(token.owner), _parts(token.requester)
    return DescribedDelegationToken(
        principal_type=owner[0],
        principal_name=owner[1],
        token_requester_principal_type=requester[0],
        token_requester_principal_name=requester[1],
        issue_timestamp=token.issue_timestamp,
        expiry_timestamp=token.expiration_timestamp,
        max_timestamp=token.max_timestamp,
        token_id=token.token_id,
        hmac=key,
        renewers=[
            DescribedDelegationTokenRenewer(principal_type=kind, principal_name=name)
            for kind, name in map(_parts, token.renewers)
        ],
    )


def _parts(principal: str) -> tuple[str, str]:
    kind, _, name = principal.partition(":")
    return kind, name
