"""Create, change and delete the SCRAM credentials of users: refuse, or return records.

In: a request's changes, and the image. Out: records, and for each user why its changes are refused. It keeps no
password: a record has the keys that check one.

Refusals and their codes are Kafka's (`ScramControlManager`, KIP-554); the messages are this project's. One difference:
a request may alter two mechanisms of one user, as Kafka's documentation does. Kafka 4.3 refuses that.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.image import Image
from stratalog.wire import scram
from stratalog.wire.internal.security_records import (
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)

__all__ = ["Deletion", "Upsertion", "alteration_records", "credential_record", "refusal_of"]

_HASHES: Final = dict(scram.MECHANISMS.values())


class Deletion(NamedTuple):
    """The credential to delete. `mechanism` is Kafka's number."""

    user: str
    mechanism: int


class Upsertion(NamedTuple):
    """The credential to create or replace. `repr` has secrets: log no upsertion."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes


def alteration_records(
    image: Image, deletions: Sequence[Deletion], upsertions: Sequence[Upsertion]
) -> tuple[list[Any], dict[str, Rejected | None]]:
    """Return records, and for each user why none of its changes are made, or None."""
    results: dict[str, Rejected | None] = {}
    changes: list[Deletion | Upsertion] = [*deletions, *upsertions]
    times = Counter((one.user, one.mechanism) for one in changes)
    for change in changes:
        refusal = refusal_of(change)
        if refusal is None and times[change.user, change.mechanism] > 1:
            refusal = Rejected(
                ErrorCode.duplicate_resource, "a credential cannot be altered twice in one request"
            )
        results[change.user] = results.get(change.user) or refusal or _missing(image, change)
    records: list[Any] = [
        RemoveUserScramCredentialRecord(name=one.user, mechanism=one.mechanism)
        for one in deletions
        if results[one.user] is None
    ]
    records += [credential_record(one) for one in upsertions if results[one.user] is None]
    return records, results


def credential_record(wanted: Upsertion) -> UserScramCredentialRecord:
    """Return the record of a credential: the keys of its password."""
    keys = scram.keys_of(_HASHES[wanted.mechanism], wanted.salted_password)
    return UserScramCredentialRecord(
        name=wanted.user,
        mechanism=wanted.mechanism,
        salt=wanted.salt,
        stored_key=keys.stored,
        server_key=keys.server,
        iterations=wanted.iterations,
    )


def refusal_of(change: Deletion | Upsertion) -> Rejected | None:
    """Return why a change is refused in any cluster, or None. A user that Kafka let in by any name may be deleted."""
    is_new = isinstance(change, Upsertion)
    if not change.user or (is_new and not change.user.isprintable()):
        return Rejected(
            ErrorCode.unacceptable_credential,
            f"user {change.user!r} is empty or has a character that cannot be printed",
        )
    if change.mechanism not in _HASHES:
        return Rejected(
            ErrorCode.unsupported_sasl_mechanism,
            f"SCRAM mechanism {change.mechanism} is not accepted; accepted: 1 (SHA-256), 2 (SHA-512)",
        )
    low, high = scram.ITERATIONS_MIN, scram.ITERATIONS_MAX
    if isinstance(change, Upsertion) and not low <= change.iterations <= high:
        return Rejected(
            ErrorCode.unacceptable_credential,
            f"{change.iterations} iterations are not accepted; accepted: {low} to {high}",
        )
    return None


def _missing(image: Image, change: Deletion | Upsertion) -> Rejected | None:
    key = (UserScramCredentialRecord.__name__, (change.user, change.mechanism))
    if isinstance(change, Upsertion) or key in image.foreign:
        return None
    return Rejected(
        ErrorCode.resource_not_found, f"user {change.user!r} has no such credential to delete"
    )
