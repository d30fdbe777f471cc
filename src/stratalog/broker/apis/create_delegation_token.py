"""CreateDelegationToken (key 38), versions 1-3.

KIP-48. v2 flexible. v3 an owner other than the client, and the requester in the answer (KIP-373).

An owner that is no User, which Kafka accepts, is refused: a login with its token would be that of a user.
"""

from typing import NamedTuple

from stratalog.broker.coordination.local_controller import LocalController
from stratalog.broker.network.authorizer import DENIED, Operation, Resource
from stratalog.broker.network.dispatch import Call
from stratalog.broker.network.session import USER, Principal
from stratalog.config import BrokerConfig
from stratalog.config.principal_rules import is_name
from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.delegation_tokens import TokenSecret
from stratalog.quorum.delegation_tokens import RENEWERS_MAX, NewToken
from stratalog.wire.internal.security_records import DelegationTokenRecord
from stratalog.wire.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    local_controller: LocalController
    config: BrokerConfig


async def handle(
    call: Call[CreateDelegationTokenRequest, Needs],
) -> CreateDelegationTokenResponse:
    """Create a token of the client's, or of another owner, where it may."""
    body = call.body
    client = call.session.principal
    owner = client
    if body.owner_principal_name:
        owner = Principal(body.owner_principal_type or "", body.owner_principal_name)
    # A token with more is refused: to look at thousands would hold the event loop.
    some = body.renewers[: RENEWERS_MAX + 1]
    renewers = [Principal(one.principal_type, one.principal_name) for one in some]
    refusal = _refusal(call, owner, renewers)
    if refusal is not ErrorCode.none:
        return _refused(refusal, owner, client, at=-1)
    wanted = NewToken(str(owner), str(client), [*map(str, renewers)], body.max_lifetime_ms)
    try:
        record = await call.needs.local_controller.create_token(wanted)
    except Rejected as error:
        return _refused(error.code, owner, client, at=0)
    secret = TokenSecret(call.needs.config.token_secret)
    return _created(record, secret.key_of(record.token_id), owner, client)


def _refusal(
    call: Call[CreateDelegationTokenRequest, Needs], owner: Principal, renewers: list[Principal]
) -> ErrorCode:
    if not call.session.may_handle_tokens:
        return ErrorCode.delegation_token_request_not_allowed
    is_own = owner == call.session.principal
    if not is_own and not call.allows(Operation.CREATE_TOKENS, Resource.USER, str(owner)):
        return DENIED[Resource.USER]
    if any(one.type != USER for one in (owner, *renewers)):
        return ErrorCode.invalid_principal_type
    if not all(is_name(one.name) for one in (owner, *renewers)):
        return ErrorCode.invalid_request
    return ErrorCode.none


def _refused(
    code: ErrorCode, owner: Principal, client: Principal, *, at: int
) -> CreateDelegationTokenResponse:
    return CreateDelegationTokenResponse(
        error_code=code,
        principal_type=owner.type,
        principal_name=owner.name,
        token_requester_principal_type=client.type,
        token_requester_principal_name=client.name,
        issue_timestamp_ms=at,
        expiry_timestamp_ms=at,
        max_timestamp_ms=at,
        token_id="",
        hmac=b"",
    )


def _created(
    record: DelegationTokenRecord, key: bytes, owner: Principal, client: Principal
) -> CreateDelegationTokenResponse:
    return CreateDelegationTokenResponse(
        error_code=ErrorCode.none,
        principal_type=owner.type,
        principal_name=owner.name,
        token_requester_principal_type=client.type,
        token_requester_principal_name=client.name,
        issue_timestamp_ms=record.issue_timestamp,
        expiry_timestamp_ms=record.expiration_timestamp,
        max_timestamp_ms=record.max_timestamp,
        token_id=record.token_id,
        hmac=key,
    )
