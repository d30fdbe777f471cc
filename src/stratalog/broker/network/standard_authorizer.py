"""Decide clients' rights by the ACLs of the cluster.

In: a session, an operation, a resource; the ACLs. Out: whether the authorizer allows it. It never
changes an ACL, and never waits.

A decision is kept until an ACL changes, since a client asks for the same few rights with every request. Kafka:
`StandardAuthorizer`, without its cache.
"""

from collections import OrderedDict
from collections.abc import Collection
from typing import Final, Protocol

from stratalog.broker.network.authorizer import Authorizer
from stratalog.broker.network.session import Session
from stratalog.config import BrokerConfig
from stratalog.metadata.acls import Acls
from stratalog.metadata.rights import Operation, Resource

__all__ = ["StandardAuthorizer", "standard_authorizer"]

_KEPT_MAX: Final = 20_000
"""Decisions to keep at most, some 4 MB: a client chooses the names that it asks for."""
_NAME_KEPT_MAX: Final = 255
"""Characters of the longest name whose decision is kept: names of groups have up to 32,767."""


class HasAcls(Protocol):
    """The part of the cluster's image that an authorizer reads."""

    @property
    def acls(self) -> Acls:
        """The ACLs now; their `version` grows with each change."""


class StandardAuthorizer(Authorizer):
    """The `Authorizer` of one node."""

    def __init__(self, metadata: HasAcls, super_users: Collection[str], *, default: bool) -> None:
        """`super_users` (`User:alice`) may do everything; `default` decides on resources without any ACL."""
        self._metadata = metadata
        self._super_users = frozenset(super_users)
        self._default = default
        self._kept: OrderedDict[tuple[object, ...], bool] = OrderedDict()
        self._kept_version = 0

    def allows(self, session: Session, operation: Operation, resource: Resource, name: str) -> bool:
        """Return whether the session's client may perform the operation on the resource."""
        key = (session.principal, session.host, operation, resource, name)
        found = self._fresh().get(key)
        if found is None:
            found = self._decide(session, operation, resource, name)
            if len(name) <= _NAME_KEPT_MAX:
                self._keep(key, allowed=found)
        return found

    def allows_any(self, session: Session, operation: Operation, resource: Resource) -> bool:
        """Return whether the session's client may perform the operation on at least one resource of the type."""
        key = (session.principal, session.host, operation, resource)
        found = self._fresh().get(key)
        if found is None:
            # Kafka asks for a name that no ACL has, so a super user and the default come first.
            found = self._decide(session, operation, resource, "hardcode") or (
                self._metadata.acls.allows_some(
                    str(session.principal), session.host, operation, resource
                )
            )
            self._keep(key, allowed=found)
        return found

    def _decide(
        self, session: Session, operation: Operation, resource: Resource, name: str
    ) -> bool:
        principal = str(session.principal)
        if principal in self._super_users:
            return True
        verdict = self._metadata.acls.decide(principal, session.host, operation, resource, name)
        return self._default if verdict.is_allowed is None else verdict.is_allowed

    def _fresh(self) -> dict[tuple[object, ...], bool]:
        """Return the decisions that still hold."""
        version = self._metadata.acls.version
        if version != self._kept_version:
            self._kept_version = version
            self._kept.clear()
        return self._kept

    def _keep(self, key: tuple[object, ...], *, allowed: bool) -> None:
        if len(self._kept) >= _KEPT_MAX:
            self._kept.popitem(last=False)  # one alone: to drop them all takes many milliseconds
        self._kept[key] = allowed


def standard_authorizer(config: BrokerConfig, metadata: HasAcls) -> StandardAuthorizer | None:
    """Return the authorizer of `authorizer.class.name`; None where that is empty: every client has all rights."""
    if not config.str("authorizer.class.name"):
        return None
    super_users = [one.strip() for one in config.str("super.users").split(";") if one.strip()]
    return StandardAuthorizer(
        metadata, super_users, default=config.bool("allow.everyone.if.no.acl.found")
    )
