"""ACLs: which ones the cluster has, which ones a filter matches, and which one decides a request.

In: images of the metadata, with their AccessControlEntryRecords. Out: matching ACLs, and verdicts. It never asks
for a right itself, and knows no super user.

A verdict looks at few ACLs however many there are: those of the resource's name, of "*" and of each prefix of the
name, and of them those of the principal and of `User:*`.

Kafka: `StandardAuthorizerData`, `AclBindingFilter`, `Authorizer.authorizeByResourceType`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from stratalog.config.addresses import address_text, is_same_address
from stratalog.metadata.image import EMPTY, Image
from stratalog.metadata.rights import Operation, PatternType, Permission, Resource
from stratalog.wire.internal.security_records import AccessControlEntryRecord

__all__ = ["WILDCARD", "Acl", "AclFilter", "Acls", "Verdict"]

WILDCARD: Final = "*"
_EVERY_PRINCIPAL: Final = "User:*"
_RECORD: Final = AccessControlEntryRecord.__name__
_DESCRIBE: Final = frozenset(
    {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE}
)
_IMPLIED_BY: Final[Mapping[int, frozenset[Operation]]] = {
    Operation.DESCRIBE: _DESCRIBE,
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS}),
}
"""The operations whose permission also permits the key. A denial of one of them denies no other."""


class Acl(NamedTuple):
    """One ACL. The numbers are Kafka's: a record of a later Kafka may have one that `rights` lacks."""

    resource_type: int
    name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int

    @classmethod
    def of(cls, one: Any, pattern_type: int) -> "Acl":
        """Return the ACL of a message or record, in which the pattern's type has one of two names."""
        return cls(
            one.resource_type,
            one.resource_name,
            pattern_type,
            one.principal,
            one.host,
            one.operation,
            one.permission_type,
        )

    def named(self) -> dict[str, str]:
        """Return the fields as text, with Kafka's names for their numbers: to print, and for the audit."""
        return {
            "resource": _name(Resource, self.resource_type),
            "name": self.name,
            "pattern": _name(PatternType, self.pattern_type),
            "principal": self.principal,
            "host": self.host,
            "operation": _name(Operation, self.operation),
            "permission": _name(Permission, self.permission),
        }


class AclFilter(NamedTuple):
    """Properties of wanted ACLs. None, and ANY of each enumeration, match every value; a host matches in any form."""

    resource_type: int = Resource.ANY
    name: str | None = None
    pattern_type: int = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: int = Operation.ANY
    permission: int = Permission.ANY

    def matches(self, acl: Acl) -> bool:
        """Return whether the ACL is wanted. PatternType.MATCH wants every ACL that applies to the name."""
        return (
            self.resource_type in (Resource.ANY, acl.resource_type)
            and self._matches_name(acl)
            and self.principal in (None, acl.principal)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
            and (self.host is None or is_same_address(self.host, acl.host))
        )

    def _matches_name(self, acl: Acl) -> bool:
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if self.name is None:
            return True
        if self.pattern_type != PatternType.MATCH:
            return self.name == acl.name
        if acl.pattern_type == PatternType.PREFIXED:
            return self.name.startswith(acl.name)
        return acl.name in (self.name, WILDCARD)


class Verdict(NamedTuple):
    """The decision on one operation: `acl` is the ACL behind it.

    Without one, `is_allowed` is False where the resource has other ACLs, and None where it has none.
    """

    is_allowed: bool | None
    acl: Acl | None = None


class _Rule(NamedTuple):
    """An ACL, with its host in the form of `address_text`."""

    host: str
    acl: Acl


_ByPrincipal: TypeAlias = dict[str, list[_Rule]]


class Acls:
    """The ACLs of one image after another."""

    def __init__(self) -> None:
        self.ids: dict[Acl, UUID] = {}
        """The id of each ACL."""
        self.version = 0
        """Grows with each change: what was decided before may no longer hold."""
        self._by_id: dict[UUID, Acl] = {}
        self._seen = EMPTY.foreign
        self._patterns: dict[tuple[int, int, str], _ByPrincipal] = {}
        """By resource type, pattern type and name."""
        self._prefix_lengths: dict[int, Counter[int]] = {}
        """By resource type: how many ACLs have a prefix of each length."""

    @classmethod
    def of(cls, acls: Iterable[Acl]) -> "Acls":
        """Return these ACLs, with ids of their own."""
        found = cls()
        for number, acl in enumerate(dict.fromkeys(acls)):
            found._add(UUID(int=number), acl)
        return found

    def follow(self, image: Image) -> None:
        """Take the ACLs of an image. A change costs what it adds and removes, and one look at each id."""
        if image.foreign is self._seen:
            return
        self._seen = image.foreign
        now = {key for kind, key in image.foreign if kind == _RECORD}
        for gone in self._by_id.keys() - now:
            self._remove(gone)
        for new in now - self._by_id.keys():
            record = image.foreign[_RECORD, new]
            self._add(new, Acl.of(record, record.pattern_type))

    def matching(self, wanted: AclFilter) -> Iterator[Acl]:
        """Yield the ACLs that the filter matches, in an order that depends on nothing else."""
        return iter(sorted(filter(wanted.matches, self.ids)))

    def decide(
        self, principal: str, host: str, operation: int, resource_type: int, name: str
    ) -> Verdict:
        """Return the verdict on an operation of a principal (`User:alice`) at an address. A denial wins.

        The address has the form of `address_text`; ACLs may have others.
        """
        has_acls = False
        allowing = None
        for rules in self._rules(resource_type, name):
            has_acls = True
            for at, acl in _of(rules, principal):
                if at in (WILDCARD, host) and _covers(acl, operation):
                    if acl.permission == Permission.DENY:
                        return Verdict(is_allowed=False, acl=acl)
                    allowing = acl
        if allowing is not None:
            return Verdict(is_allowed=True, acl=allowing)
        return Verdict(is_allowed=False if has_acls else None)

    def allows_some(self, principal: str, host: str, operation: int, resource_type: int) -> bool:
        """Return whether an ACL permits the operation on a name that no other ACL denies.

        Kafka: `Authorizer.authorizeByResourceType`, for which a permission of another operation implies none.
        """
        found: dict[int, dict[int, set[str]]] = {
            permission: {pattern: set() for pattern in PatternType} for permission in Permission
        }
        for (of_type, pattern_type, name), rules in self._patterns.items():
            if of_type == resource_type:
                for at, acl in _of(rules, principal):
                    if at in (WILDCARD, host) and acl.operation in (Operation.ALL, operation):
                        found[acl.permission][pattern_type].add(name)
        denied, allowed = found[Permission.DENY], found[Permission.ALLOW]
        if WILDCARD in denied[PatternType.LITERAL]:
            return False
        if WILDCARD in allowed[PatternType.LITERAL]:
            return True
        names = allowed[PatternType.PREFIXED]
        names |= allowed[PatternType.LITERAL] - denied[PatternType.LITERAL]
        prefixes = denied[PatternType.PREFIXED]
        return any(
            prefixes.isdisjoint(name[:length] for length in range(1, len(name) + 1))
            for name in names
        )

    def _rules(self, resource_type: int, name: str) -> Iterator[_ByPrincipal]:
        """Yield the ACLs of each pattern that the name matches."""
        patterns = self._patterns
        keys = [(PatternType.LITERAL, name), (PatternType.LITERAL, WILDCARD)]
        if name == WILDCARD:
            keys.pop()
        keys += (
            (PatternType.PREFIXED, name[:length])
            for length in self._prefix_lengths.get(resource_type, ())
            if length <= len(name)
        )
        for pattern_type, pattern in keys:
            rules = patterns.get((resource_type, pattern_type, pattern))
            if rules is not None:
                yield rules

    def _add(self, key: UUID, acl: Acl) -> None:
        self.version += 1
        self._by_id[key] = acl
        self.ids[acl] = key
        rules = self._patterns.setdefault((acl.resource_type, acl.pattern_type, acl.name), {})
        rules.setdefault(acl.principal, []).append(_rule(acl))
        if acl.pattern_type == PatternType.PREFIXED:
            self._prefix_lengths.setdefault(acl.resource_type, Counter())[len(acl.name)] += 1

    def _remove(self, key: UUID) -> None:
        acl = self._by_id.pop(key)
        self.version += 1
        self.ids.pop(acl, None)
        pattern = (acl.resource_type, acl.pattern_type, acl.name)
        rules = self._patterns[pattern]
        rules[acl.principal].remove(_rule(acl))
        if not rules[acl.principal]:
            del rules[acl.principal]
        if not rules:
            del self._patterns[pattern]
        if acl.pattern_type == PatternType.PREFIXED:
            lengths = self._prefix_lengths[acl.resource_type]
            lengths[len(acl.name)] -= 1
            if not lengths[len(acl.name)]:
                del lengths[len(acl.name)]


def _name(names: type[IntEnum], value: int) -> str:
    return names(value).name if value in set(names) else str(value)


def _rule(acl: Acl) -> _Rule:
    return _Rule(address_text(acl.host), acl)


def _of(rules: _ByPrincipal, principal: str) -> Iterator[_Rule]:
    yield from rules.get(principal, ())
    if principal != _EVERY_PRINCIPAL:
        yield from rules.get(_EVERY_PRINCIPAL, ())


def _covers(acl: Acl, operation: int) -> bool:
    """Return whether the ACL speaks of the operation: it names it, or permits one that implies it."""
    if acl.operation in (Operation.ALL, operation):
        return True
    return acl.permission == Permission.ALLOW and acl.operation in _IMPLIED_BY.get(operation, ())
