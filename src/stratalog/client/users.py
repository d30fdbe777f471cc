"""Calls about users and their SCRAM credentials, in the manner of `calls.py`.

In: names, mechanisms, passwords. Out: calls, and the mechanisms of each user. A password leaves no call: the server
receives its salted form.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from secrets import token_bytes  # noqa: TID251 - a salt; the simulator creates no user

from stratalog.client.calls import Call, asking
from stratalog.errors import ErrorCode, Rejected
from stratalog.ports import Secret
from stratalog.wire import scram
from stratalog.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from stratalog.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)

__all__ = ["Credential", "delete_credentials", "describe_users", "set_credentials"]

_SALT_BYTES = 32
_NAMES = {number: name for name, (number, _) in scram.MECHANISMS.items()}


@dataclass(frozen=True, slots=True)
class Credential(Secret):
    """A password of a user for one mechanism."""

    user: str
    mechanism: str
    iterations: int
    password: str = field(repr=False)


def describe_users() -> Call[dict[str, dict[str, int]]]:
    """Return the iterations of each user's mechanisms."""

    def read(body: DescribeUserScramCredentialsResponse) -> dict[str, dict[str, int]]:
        _check(body.error_code, body.error_message)
        return {
            one.user: {
                _NAMES.get(info.mechanism, str(info.mechanism)): info.iterations
                for info in one.credential_infos
            }
            for one in body.results
        }

    return asking(DescribeUserScramCredentialsRequest(users=None), read)


def set_credentials(credentials: Sequence[Credential]) -> Call[None]:
    """Create or replace credentials. Raises Rejected."""
    upsertions = []
    for one in credentials:
        number, hash_name = scram.MECHANISMS[one.mechanism]
        salt = token_bytes(_SALT_BYTES)
        salted = scram.salted_password(hash_name, one.password, salt, one.iterations)
        upsertions.append(
            ScramCredentialUpsertion(
                name=one.user,
                mechanism=number,
                iterations=one.iterations,
                salt=salt,
                salted_password=salted,
            )
        )
    return asking(AlterUserScramCredentialsRequest(deletions=[], upsertions=upsertions), _altered)


def delete_credentials(user: str, mechanisms: Sequence[str]) -> Call[None]:
    """Delete a user's credentials. Raises Rejected."""
    deletions = [
        ScramCredentialDeletion(name=user, mechanism=scram.MECHANISMS[one][0]) for one in mechanisms
    ]
    return asking(AlterUserScramCredentialsRequest(deletions=deletions, upsertions=[]), _altered)


def _altered(body: AlterUserScramCredentialsResponse) -> None:
    for result in body.results:
        _check(result.error_code, result.error_message)


def _check(code: int, message: str | None) -> None:
    if code:
        raise Rejected(ErrorCode(code), message or "")
