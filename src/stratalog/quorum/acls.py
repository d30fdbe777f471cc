"""Create and delete ACLs: refuse, or return records.

In: ACLs or filters of a request, and the ACLs that the cluster has. Out: records, and a result for each. It never
changes an ACL, and never asks whether the client may.

Refusals and their codes are Kafka's (`AclControlManager`); the messages are this project's.
"""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.acls import Acl, AclFilter, Acls
from stratalog.metadata.rights import CLUSTER_NAME, Operation, PatternType, Permission, Resource
from stratalog.ports import Entropy
from stratalog.wire.internal.security_records import (
    AccessControlEntryRecord,
    RemoveAccessControlEntryRecord,
)

__all__ = ["Matched", "create_records", "delete_records", "refusal_of"]

Matched = list[Acl] | Rejected
"""The ACLs that a filter deletes, or why it is refused."""
_IN_FILTERS: Final = (
    ("resource type", frozenset(Resource)),
    ("pattern type", frozenset(PatternType)),
    ("operation", frozenset(Operation)),
    ("permission", frozenset(Permission)),
)
_TYPES: Final = frozenset(Resource) - {Resource.ANY}
_OPERATIONS: Final = frozenset(Operation) - {Operation.ANY}
_PATTERN_TYPES: Final = frozenset({PatternType.LITERAL, PatternType.PREFIXED})
_PERMISSIONS: Final = frozenset({Permission.ALLOW, Permission.DENY})


def create_records(
    acls: Acls, wanted: Sequence[Acl], entropy: Entropy
) -> tuple[list[AccessControlEntryRecord], list[Rejected | None]]:
    """Return a record for each valid ACL that the cluster lacks, and for each ACL why it is refused, or None."""
    records = {}
    results = [_refusal(acl) for acl in wanted]
    for acl, refusal in zip(wanted, results, strict=True):
        if refusal is None and acl not in acls.ids and acl not in records:
            records[acl] = AccessControlEntryRecord(
                id=entropy.uuid(),
                resource_type=acl.resource_type,
                resource_name=acl.name,
                pattern_type=acl.pattern_type,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
    return list(records.values()), results


def delete_records(
    acls: Acls, filters: Sequence[AclFilter]
) -> tuple[list[RemoveAccessControlEntryRecord], list[Matched]]:
    """Return a record for each ACL that a filter matches, and for each filter the ACLs that it matches."""
    results: list[Matched] = []
    gone: dict[Acl, UUID] = {}
    for wanted in filters:
        refusal = refusal_of(wanted)
        if refusal is not None:
            results.append(refusal)
            continue
        matched = list(acls.matching(wanted))
        gone.update((acl, acls.ids[acl]) for acl in matched)
        results.append(matched)
    return [RemoveAccessControlEntryRecord(id=one) for one in gone.values()], results


def refusal_of(wanted: AclFilter) -> Rejected | None:
    """Return why a filter is refused (INVALID_REQUEST), or None."""
    values = (wanted.resource_type, wanted.pattern_type, wanted.operation, wanted.permission)
    for (what, numbers), value in zip(_IN_FILTERS, values, strict=True):
        if value not in numbers:
            return Rejected(ErrorCode.invalid_request, f"a filter cannot name {what} {value}")
    return None


def _refusal(acl: Acl) -> Rejected | None:
    reason = None
    if acl.resource_type not in _TYPES:
        reason = f"an ACL cannot have resource type {acl.resource_type}"
    elif acl.pattern_type not in _PATTERN_TYPES:
        reason = f"an ACL cannot have pattern type {acl.pattern_type}; accepted: 3 (LITERAL), 4 (PREFIXED)"
    elif acl.operation not in _OPERATIONS:
        reason = f"an ACL cannot have operation {acl.operation}"
    elif acl.permission not in _PERMISSIONS:
        reason = f"an ACL cannot have permission {acl.permission}; accepted: 2 (DENY), 3 (ALLOW)"
    elif not acl.name:
        reason = "the name of the resource is empty; accepted: a name, or * for each"
    elif acl.resource_type == Resource.CLUSTER and acl.name != CLUSTER_NAME:
        reason = f"the only resource of type CLUSTER is {CLUSTER_NAME}"
    elif not all(acl.principal.partition(":")):
        reason = f"principal {acl.principal!r} is not of the form TYPE:NAME, as in User:alice"
    elif not acl.principal.isprintable():
        reason = f"principal {acl.principal!r} has a character that cannot be printed"
    elif not acl.host:
        reason = "the host is empty; * is every host"
    return None if reason is None else Rejected(ErrorCode.invalid_request, reason)
