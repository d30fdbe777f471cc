"""AlterUserScramCredentials (key 51), versions 0-0.

KIP-554. The client salts the password; the controller keeps the keys that check it.
"""

from typing import NamedTuple

from stratalog.broker.coordination.local_controller import LocalController
from stratalog.broker.network.authorizer import Operation
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode, Rejected
from stratalog.quorum.scram_credentials import Deletion, Upsertion
from stratalog.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    local_controller: LocalController


async def handle(
    call: Call[AlterUserScramCredentialsRequest, Needs],
) -> AlterUserScramCredentialsResponse:
    """Change the credentials of users; all changes of one user are made, or none."""
    body = call.body
    deletions = [Deletion(one.name, one.mechanism) for one in body.deletions]
    upsertions = [
        Upsertion(one.name, one.mechanism, one.iterations, one.salt, one.salted_password)
        for one in body.upsertions
    ]
    results: dict[str, Rejected | None]
    try:
        if not call.allows_cluster(Operation.ALTER):
            raise Rejected(ErrorCode.cluster_authorization_failed)
        results = await call.needs.local_controller.alter_scram_credentials(deletions, upsertions)
    except Rejected as error:
        results = dict.fromkeys(
            [*(one.user for one in deletions), *(one.user for one in upsertions)], error
        )
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(
                user=user,
                error_code=ErrorCode.none if refusal is None else refusal.code,
                error_message=None if refusal is None else refusal.message or None,
            )
            for user, refusal in results.items()
        ]
    )
