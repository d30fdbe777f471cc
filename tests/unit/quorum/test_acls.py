"""ACLs are created once each, deleted by filters, and refused with INVALID_REQUEST."""

import pytest
from tests.unit.quorum.metadata_log import SeededEntropy

from stratalog.errors import ErrorCode
from stratalog.metadata.acls import Acl, AclFilter
from stratalog.metadata.rights import Operation, PatternType, Permission, Resource
from stratalog.quorum.controller import Controller

SEEDED = SeededEntropy(1)
GOOD = Acl(
    Resource.TOPIC, "orders", PatternType.LITERAL, "User:a", "*", Operation.READ, Permission.ALLOW
)


def created(controller: Controller, *acls: Acl) -> list[str]:
    """Create ACLs; return each refusal's text, "" for none."""
    decision = controller.create_acls(acls, SEEDED)
    controller.replay_batch(controller.image.offset + 1, decision.records)
    assert all(one is None or one.code is ErrorCode.invalid_request for one in decision.answer)
    return ["" if one is None else one.message for one in decision.answer]


def test_an_acl_is_created_once() -> None:
    controller = Controller()
    other = GOOD._replace(host="10.0.0.1")
    assert created(controller, GOOD, GOOD, other) == ["", "", ""]
    assert len(controller.image.foreign) == 2
    assert created(controller, GOOD) == [""]
    assert len(controller.image.foreign) == 2


def test_filters_delete_what_they_match_and_name_it() -> None:
    controller = Controller()
    prefix = GOOD._replace(pattern_type=PatternType.PREFIXED, name="ord")
    created(controller, GOOD, prefix, GOOD._replace(name="other"))
    filters = [
        AclFilter(Resource.TOPIC, "orders", PatternType.MATCH),
        AclFilter(name="nothing"),
        AclFilter(operation=99),
    ]
    decision = controller.delete_acls(filters)
    controller.replay_batch(controller.image.offset + 1, decision.records)
    matched, nothing, refused = decision.answer
    assert matched == sorted([GOOD, prefix])
    assert nothing == []
    assert "operation 99" in str(refused)
    assert [one.resource_name for one in controller.image.foreign.values()] == ["other"]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"resource_type": Resource.ANY}, "resource type 1"),
        ({"resource_type": 99}, "resource type 99"),
        ({"pattern_type": PatternType.MATCH}, "pattern type 2"),
        ({"operation": Operation.ANY}, "operation 1"),
        ({"operation": 99}, "operation 99"),
        ({"permission": Permission.ANY}, "permission 1"),
        ({"name": ""}, "name of the resource is empty"),
        ({"resource_type": Resource.CLUSTER}, "kafka-cluster"),
        ({"principal": "alice"}, "User:alice"),
        ({"principal": "User:"}, "User:alice"),
        ({"principal": "User:a\nUser:b"}, "cannot be printed"),
        ({"host": ""}, "host is empty"),
    ],
)
def test_an_acl_that_cannot_be_is_refused_alone(wrong: dict[str, object], reason: str) -> None:
    controller = Controller()
    first, second = created(controller, GOOD._replace(**wrong), GOOD)  # type: ignore[arg-type]
    assert reason in first
    assert second == ""
    assert len(controller.image.foreign) == 1
