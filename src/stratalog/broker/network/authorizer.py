"""The rights that requests need, and the interface of the authorizer that grants them to clients.

In: a session, an operation, a resource. Out: whether the authorizer allows the operation. It knows no request: each
`Api` names the rights that its requests need.

Kafka: `Authorizer`.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from stratalog.broker.network.session import Session
from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.rights import CLUSTER_NAME, SUPPORTED, Operation, Resource

__all__ = [
    "CLUSTER_NAME",
    "DENIED",
    "NOT_REQUESTED",
    "SUPPORTED",
    "Authorizer",
    "Operation",
    "Resource",
    "Right",
    "authorized_operations",
    "no_authorizer",
]

NOT_REQUESTED: Final = -(2**31)
"""Authorized operations in an answer to a request that did not request them (KIP-430)."""


class Right(NamedTuple):
    """An operation on each resource of a type that a request names; CLUSTER has one resource."""

    operation: Operation
    resource: Resource


class Authorizer(Protocol):
    """Decides each client's rights. A broker without an authorizer allows everything (Kafka: no
    `authorizer.class.name`).
    """

    def allows(
        self, session: Session, operation: Operation, resource: Resource, name: str
    ) -> bool: ...

    def allows_any(self, session: Session, operation: Operation, resource: Resource) -> bool:
        """Return whether the client may perform the operation on at least one resource of the type."""

    def would_allow(
        self, session: Session, operation: Operation, resource: Resource, name: str
    ) -> bool:
        """Return the decision of `allows` on an operation that the client has not tried: no audit notes it."""
        return self.allows(session, operation, resource, name)


DENIED: Final[Mapping[Resource, ErrorCode]] = {
    Resource.TOPIC: ErrorCode.topic_authorization_failed,
    Resource.GROUP: ErrorCode.group_authorization_failed,
    Resource.CLUSTER: ErrorCode.cluster_authorization_failed,
    Resource.TRANSACTIONAL_ID: ErrorCode.transactional_id_authorization_failed,
    Resource.DELEGATION_TOKEN: ErrorCode.delegation_token_authorization_failed,
    Resource.USER: ErrorCode.delegation_token_authorization_failed,
}
"""The error for a resource on which the client may not perform an operation."""


def authorized_operations(
    authorizer: Authorizer | None, session: Session, resource: Resource, name: str
) -> int:
    """Return the operations that the client may perform, one bit for each code (KIP-430)."""
    bits = 0
    for operation in SUPPORTED[resource]:
        if authorizer is None or authorizer.would_allow(session, operation, resource, name):
            bits |= 1 << operation
    return bits


def no_authorizer() -> Rejected:
    """Return the refusal of a request about ACLs where no authorizer is configured (SECURITY_DISABLED)."""
    return Rejected(
        ErrorCode.security_disabled, "authorizer.class.name is empty: no ACL has an effect"
    )
