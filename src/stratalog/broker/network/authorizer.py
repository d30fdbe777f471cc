"""Kafka's operations, resources and rights, and the authorizer that grants them to clients.

In: a session, an operation, a resource. Out: whether the authorizer allows the operation. It knows no request: each
`Api` names the rights that its requests need.

Kafka: `Authorizer`, `AclOperation`, `AclEntry`.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from stratalog.broker.network.session import Session
from stratalog.errors import ErrorCode

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
]

CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the one resource of type CLUSTER."""
NOT_REQUESTED: Final = -(2**31)
"""Authorized operations in an answer to a request that did not request them (KIP-430)."""


class Operation(IntEnum):
    """An operation on a resource; the numbers are Kafka's `AclOperation` codes."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    TWO_PHASE_COMMIT = 15


class Resource(IntEnum):
    """Types of resources; the numbers are Kafka's `ResourceType` codes."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class Right(NamedTuple):
    """An operation on each resource of a type that a request names; CLUSTER has one resource."""

    operation: Operation
    resource: Resource


SUPPORTED: Final[Mapping[Resource, frozenset[Operation]]] = {
    Resource.TOPIC: frozenset(
        {
            Operation.READ,
            Operation.WRITE,
            Operation.CREATE,
            Operation.DELETE,
            Operation.ALTER,
            Operation.DESCRIBE,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
        }
    ),
    Resource.GROUP: frozenset(
        {
            Operation.READ,
            Operation.DELETE,
            Operation.DESCRIBE,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
        }
    ),
    Resource.CLUSTER: frozenset(
        {
            Operation.CREATE,
            Operation.ALTER,
            Operation.DESCRIBE,
            Operation.CLUSTER_ACTION,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
            Operation.IDEMPOTENT_WRITE,
        }
    ),
    Resource.TRANSACTIONAL_ID: frozenset(
        {Operation.DESCRIBE, Operation.WRITE, Operation.TWO_PHASE_COMMIT}
    ),
}
"""The operations that a type of resource has (Kafka: `AclEntry.supportedOperations`)."""


class Authorizer(Protocol):
    """Decides each client's rights. A broker without an authorizer allows everything (Kafka: no
    `authorizer.class.name`).
    """

    def allows(
        self, session: Session, operation: Operation, resource: Resource, name: str
    ) -> bool: ...

    def allows_any(self, session: Session, operation: Operation, resource: Resource) -> bool:
        """Return whether the client may perform the operation on at least one resource of the type."""


DENIED: Final[Mapping[Resource, ErrorCode]] = {
    Resource.TOPIC: ErrorCode.topic_authorization_failed,
    Resource.GROUP: ErrorCode.group_authorization_failed,
    Resource.CLUSTER: ErrorCode.cluster_authorization_failed,
    Resource.TRANSACTIONAL_ID: ErrorCode.transactional_id_authorization_failed,
}
"""The error for a resource on which the client may not perform an operation."""


def authorized_operations(
    authorizer: Authorizer | None, session: Session, resource: Resource, name: str
) -> int:
    """Return the operations that the client may perform, one bit for each code (KIP-430)."""
    bits = 0
    for operation in SUPPORTED[resource]:
        if authorizer is None or authorizer.allows(session, operation, resource, name):
            bits |= 1 << operation
    return bits
