"""AlterUserScramCredentials (key 51), versions 0-0.

KIP-554. The client salts the password; the controller keeps the keys that check it.
"""

from typing import Final, NamedTuple

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

_CHANGES_MAX: Final = 3
"""Changes of one user to look at. There are two mechanisms: a third change is refused, and all of that user with it."""


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    local_controller: LocalController


async def handle(
    call: Call[AlterUserScramCredentialsRequest, Needs],
) -> AlterUserScramCredentialsResponse:
    """Change the credentials of users; all changes of one user are made, or none."""
    by_user = await _changes_by_user(call)
    results: dict[str, Rejected | None] = {}
    async for part in call.pace.parts(list(by_user.values())):
        changes = [change for changes in part for change in changes]
        try:
            if not call.allows_cluster(Operation.ALTER):
                raise Rejected(ErrorCode.cluster_authorization_failed)
            results |= await call.needs.local_controller.alter_scram_credentials(
                [one for one in changes if isinstance(one, Deletion)],
                [one for one in changes if isinstance(one, Upsertion)],
            )
        except Rejected as error:
            results |= dict.fromkeys((one.user for one in changes), error)
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(
                user=user,
                error_code=ErrorCode.none if refusal is None else refusal.code,
                error_message=None if refusal is None else refusal.message or None,
            )
            async for user, refusal in call.pace.each(results.items())
        ]
    )


async def _changes_by_user(
    call: Call[AlterUserScramCredentialsRequest, Needs],
) -> dict[str, list[Deletion | Upsertion]]:
    """Return each user's changes, the first few of them: deletions come first."""
    by_user: dict[str, list[Deletion | Upsertion]] = {}

    def add(change: Deletion | Upsertion) -> None:
        changes = by_user.setdefault(change.user, [])
        if len(changes) < _CHANGES_MAX:
            changes.append(change)

    async for one in call.pace.each(call.body.deletions):
        add(Deletion(one.name, one.mechanism))
    async for new in call.pace.each(call.body.upsertions):
        add(Upsertion(new.name, new.mechanism, new.iterations, new.salt, new.salted_password))
    return by_user
