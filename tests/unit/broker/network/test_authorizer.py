"""Each API's rights are rights that its resources have; the authorizer's answers reach clients (KIP-430)."""

import pytest

from stratalog.broker.apis import APIS
from stratalog.broker.network.authorizer import (
    SUPPORTED,
    Authorizer,
    Operation,
    Resource,
    Right,
    authorized_operations,
)
from stratalog.broker.network.session import ListenerContext, Session

FREE = {
    "ApiVersions",
    "ExpireDelegationToken",
    "GetTelemetrySubscriptions",
    "PushTelemetry",
    "RenewDelegationToken",
    "SaslAuthenticate",
    "SaslHandshake",
}
"""Operations that Kafka grants to each client. Of a token, owner and renewers alone decide."""
UNSUPPORTED = {Right(Operation.DELETE, Resource.CLUSTER)}
"""An operation that Kafka checks, and that only a client with all rights on the cluster has."""


@pytest.mark.parametrize("key", sorted(APIS))
def test_an_api_names_rights_that_its_resources_have(key: int) -> None:
    api = APIS[key]
    assert bool(api.rights) != (api.name in FREE)
    assert len(set(api.rights)) == len(api.rights)
    for operation, resource in set(api.rights) - UNSUPPORTED:
        assert operation in SUPPORTED[resource]


class AllowReads(Authorizer):
    def allows(self, session: Session, operation: Operation, resource: Resource, name: str) -> bool:
        is_anonymous = str(session.principal) == "User:ANONYMOUS"
        return is_anonymous and name == "t" and operation is Operation.READ

    def allows_any(self, session: Session, operation: Operation, resource: Resource) -> bool:
        return self.allows(session, operation, resource, "t")


class Counting(AllowReads):
    """Counts the operations that clients try."""

    tried = 0

    def allows(self, session: Session, operation: Operation, resource: Resource, name: str) -> bool:
        self.tried += 1
        return super().allows(session, operation, resource, name)

    def would_allow(
        self, session: Session, operation: Operation, resource: Resource, name: str
    ) -> bool:
        return super().allows(session, operation, resource, name)


def test_operations_that_are_only_reported_are_not_tried() -> None:
    counting = Counting()
    session = Session(ListenerContext("PLAINTEXT"))
    assert authorized_operations(counting, session, Resource.TOPIC, "t") == 1 << 3
    assert not counting.tried


def test_the_operations_are_those_that_the_authorizer_allows() -> None:
    session = Session(ListenerContext("PLAINTEXT"))
    assert authorized_operations(AllowReads(), session, Resource.TOPIC, "t") == 1 << 3
    assert authorized_operations(AllowReads(), session, Resource.TOPIC, "other") == 0
    assert authorized_operations(None, session, Resource.TOPIC, "t") == 0b110111111000
    assert authorized_operations(None, session, Resource.GROUP, "g") == 0b110101001000
    assert authorized_operations(None, session, Resource.CLUSTER, "c") == 0b1111110100000
