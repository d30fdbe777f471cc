"""DescribeUserScramCredentials (key 50), versions 0-0.

KIP-554. The answer names mechanisms and iterations, no salt and no key.
"""

from collections import Counter, defaultdict
from typing import NamedTuple

from stratalog.broker.coordination.cluster_image import ClusterImage
from stratalog.broker.network.authorizer import Operation
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode
from stratalog.wire.internal.security_records import UserScramCredentialRecord
from stratalog.wire.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    metadata: ClusterImage


def handle(
    call: Call[DescribeUserScramCredentialsRequest, Needs],
) -> DescribeUserScramCredentialsResponse:
    """Return the mechanisms of the named users, or of all."""
    if not call.allows_cluster(Operation.DESCRIBE):
        return DescribeUserScramCredentialsResponse(
            error_code=ErrorCode.cluster_authorization_failed, error_message=None, results=[]
        )
    found: dict[str, list[CredentialInfo]] = defaultdict(list)
    for (kind, _), record in call.needs.metadata.image.foreign.items():
        if kind == UserScramCredentialRecord.__name__:
            found[record.name].append(
                CredentialInfo(mechanism=record.mechanism, iterations=record.iterations)
            )
    named = Counter(one.name for one in call.body.users or ())
    users = named or Counter(dict.fromkeys(sorted(found), 1))
    return DescribeUserScramCredentialsResponse(
        error_code=ErrorCode.none,
        error_message=None,
        results=[_result(user, times, found.get(user)) for user, times in users.items()],
    )


def _result(
    user: str, times: int, found: list[CredentialInfo] | None
) -> DescribeUserScramCredentialsResult:
    code, message = ErrorCode.none, None
    if times > 1:
        code, message = ErrorCode.duplicate_resource, f"user {user} is named twice"
    elif found is None:
        code, message = ErrorCode.resource_not_found, f"user {user} has no SCRAM credential"
    return DescribeUserScramCredentialsResult(
        user=user,
        error_code=code,
        error_message=message,
        credential_infos=sorted(found or [], key=lambda one: one.mechanism)
        if code is ErrorCode.none
        else [],
    )
