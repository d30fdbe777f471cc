"""Goal: the index of ACLs gives the verdicts of a plain list, and filters match as Kafka's.

Method: Hypothesis draws few names, principals, hosts and operations, so that ACLs overlap. The model looks at every
ACL, by the rules of `StandardAuthorizerData` and `Authorizer.authorizeByResourceType`.
"""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stratalog.metadata.acls import Acl, AclFilter, Acls
from stratalog.metadata.image import EMPTY, Image
from stratalog.metadata.rights import Operation, PatternType, Permission, Resource
from stratalog.wire.internal.security_records import AccessControlEntryRecord

NAMES = st.sampled_from(["*", "a", "ab", "abc", "b"])
PRINCIPALS = st.sampled_from(["User:*", "User:x", "User:y"])
HOSTS = st.sampled_from(["*", "h", "i"])
OPERATIONS = st.sampled_from(
    [
        Operation.ALL,
        Operation.READ,
        Operation.WRITE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ]
)
TYPES = st.sampled_from([Resource.TOPIC, Resource.GROUP])
ACLS = st.builds(
    Acl,
    TYPES,
    NAMES,
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    PRINCIPALS,
    HOSTS,
    OPERATIONS,
    st.sampled_from([Permission.ALLOW, Permission.DENY]),
)
ONE = Acl(Resource.TOPIC, "a", PatternType.LITERAL, "User:x", "*", Operation.READ, Permission.ALLOW)


def image_of(acls: dict[UUID, Acl]) -> Image:
    records = {
        ("AccessControlEntryRecord", key): AccessControlEntryRecord(
            id=key,
            resource_type=acl.resource_type,
            resource_name=acl.name,
            pattern_type=acl.pattern_type,
            principal=acl.principal,
            host=acl.host,
            operation=acl.operation,
            permission_type=acl.permission,
        )
        for key, acl in acls.items()
    }
    return replace(EMPTY, foreign=records)


def applies(acl: Acl, principal: str, host: str, resource_type: int) -> bool:
    return (
        acl.resource_type == resource_type
        and acl.principal in ("User:*", principal)
        and acl.host in ("*", host)
    )


def has_name(acl: Acl, name: str) -> bool:
    if acl.pattern_type == PatternType.PREFIXED:
        return name.startswith(acl.name)
    return acl.name in ("*", name)


def permits(acl: Acl, operation: int) -> bool:
    implying = {
        Operation.DESCRIBE: {"READ", "WRITE", "DELETE", "ALTER", "DESCRIBE"},
        Operation.DESCRIBE_CONFIGS: {"ALTER_CONFIGS", "DESCRIBE_CONFIGS"},
    }.get(Operation(operation), {Operation(operation).name})
    return acl.operation == Operation.ALL or Operation(acl.operation).name in implying


def verdict_of(
    acls: list[Acl], principal: str, host: str, operation: int, kind: int, name: str
) -> bool | None:
    named = [acl for acl in acls if acl.resource_type == kind and has_name(acl, name)]
    mine = [acl for acl in named if applies(acl, principal, host, kind)]
    if any(
        acl.permission == Permission.DENY and acl.operation in (Operation.ALL, operation)
        for acl in mine
    ):
        return False
    if any(acl.permission == Permission.ALLOW and permits(acl, operation) for acl in mine):
        return True
    return False if named else None


def some_name_is_allowed(
    acls: list[Acl], principal: str, host: str, operation: int, kind: int
) -> bool:
    mine = [
        acl
        for acl in acls
        if applies(acl, principal, host, kind) and acl.operation in (Operation.ALL, operation)
    ]

    def is_wild(acl: Acl) -> bool:
        return acl.pattern_type == PatternType.LITERAL and acl.name == "*"

    denying = [acl for acl in mine if acl.permission == Permission.DENY]
    allowing = [acl for acl in mine if acl.permission == Permission.ALLOW]
    if any(map(is_wild, denying)):
        return False
    return any(
        is_wild(acl)
        or not any(
            acl.name.startswith(other.name)
            if other.pattern_type == PatternType.PREFIXED
            else other.name == acl.name and acl.pattern_type == PatternType.LITERAL
            for other in denying
        )
        for acl in allowing
    )


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 9), ACLS), max_size=8), min_size=1, max_size=3),
    st.tuples(PRINCIPALS, HOSTS, OPERATIONS, TYPES, NAMES),
)
def test_verdicts_are_those_of_a_plain_list(
    images: list[list[tuple[int, Acl]]], asked: tuple[str, str, int, int, str]
) -> None:
    """One index follows several images; each may remove ACLs, and give an id to another one never."""
    acls = Acls()
    for number, drawn in enumerate(images):
        unique = {acl: UUID(int=100 * number + key) for key, acl in drawn}
        now = {key: acl for acl, key in unique.items()}
        acls.follow(image_of(now))
        listed = list(now.values())
        assert sorted(acls.ids) == sorted(listed)
        verdict = acls.decide(*asked)
        assert verdict.is_allowed == verdict_of(listed, *asked)
        assert (verdict.acl is None) <= (verdict.is_allowed is not True)
        assert acls.allows_some(*asked[:4]) == some_name_is_allowed(listed, *asked[:4])


@given(st.lists(ACLS, max_size=20), NAMES, TYPES)
def test_a_match_filter_finds_what_applies_to_a_name(
    drawn: list[Acl], name: str, kind: Resource
) -> None:
    wanted = AclFilter(kind, name, PatternType.MATCH)
    expected = {acl for acl in drawn if acl.resource_type == kind and has_name(acl, name)}
    assert list(Acls.of(drawn).matching(wanted)) == sorted(expected)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (AclFilter(), True),
        (AclFilter(Resource.GROUP), False),
        (AclFilter(Resource.TOPIC, "a"), True),
        (AclFilter(name="ab"), False),
        (AclFilter(name="ab", pattern_type=PatternType.MATCH), False),
        (AclFilter(pattern_type=PatternType.PREFIXED), False),
        (AclFilter(principal="User:x"), True),
        (AclFilter(principal="User:*"), False),
        (AclFilter(host="h"), False),
        (AclFilter(operation=Operation.READ), True),
        (AclFilter(operation=Operation.ALL), False),
        (AclFilter(permission=Permission.DENY), False),
    ],
)
def test_a_filter_matches_each_property(wanted: AclFilter, found: bool) -> None:
    assert wanted.matches(ONE) == found


def test_an_image_without_a_change_of_acls_costs_nothing() -> None:
    acls = Acls()
    image = image_of({UUID(int=1): ONE})
    acls.follow(image)
    version = acls.version
    acls.follow(replace(image, offset=7))
    acls.follow(replace(image, foreign={**image.foreign, ("Other", 1): None}))
    assert acls.version == version


@pytest.mark.parametrize(
    ("stored", "host"),
    [
        ("::1", "0:0:0:0:0:0:0:1"),
        ("0:0:0:0:0:0:0:1", "0:0:0:0:0:0:0:1"),
        ("2001:DB8::1", "2001:db8:0:0:0:0:0:1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1%2", "fe80:0:0:0:0:0:0:1%2"),
    ],
)
def test_a_denial_counts_for_an_address_in_each_form(stored: str, host: str) -> None:
    denial = ONE._replace(host=stored, permission=Permission.DENY)
    acls = Acls.of([ONE, denial])
    assert acls.decide("User:x", host, Operation.READ, Resource.TOPIC, "a") == (False, denial)
    assert not acls.allows_some("User:x", host, Operation.READ, Resource.TOPIC)
    assert acls.decide("User:x", "10.0.0.2", Operation.READ, Resource.TOPIC, "a").is_allowed
    for wanted in (stored, host):
        assert list(acls.matching(AclFilter(host=wanted))) == [denial]
    assert not list(acls.matching(AclFilter(host="10.0.0.2")))
    acls.follow(image_of({UUID(int=9): ONE}))
    assert not list(acls.matching(AclFilter(host=host)))
