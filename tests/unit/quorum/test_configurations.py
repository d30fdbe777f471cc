"""Changes of settings: single operations, complete replacement, and refusals."""

import pytest
from tests.unit.quorum.metadata_log import NoRules, started

from stratalog.errors import ErrorCode, Rejected
from stratalog.quorum.configurations import Alteration, Change, Operation
from stratalog.quorum.controller import NewTopic

SET, DELETE, APPEND, SUBTRACT = Operation


def with_topic(**configs):
    log = started()
    log.run(log.controller.create_topics([NewTopic("a", 1, 1, {}, configs)], log.entropy))
    return log


def alter(log, *asked, rules=None, validate_only=False):
    decision = log.controller.alter_configs(asked, rules or NoRules(), validate_only=validate_only)
    return [one.error.name for one in log.run(decision)]


def topic(*changes, name="a", **options):
    return Alteration(2, name, tuple(Change(*change) for change in changes), **options)


@pytest.mark.parametrize(
    ("before", "operation", "value", "after"),
    [
        ({"list": "x"}, APPEND, "y,z", "x,y,z"),
        ({"list": "x,y"}, APPEND, "y", "x,y"),
        ({}, APPEND, "y", "d,y"),
        ({"list": "x,y,z"}, SUBTRACT, "y,x", "z"),
        ({"list": "x"}, SUBTRACT, "y", "x"),
        ({}, SUBTRACT, "d", ""),
        ({"list": "x,,y"}, APPEND, "z", "x,y,z"),
        ({"list": "x"}, APPEND, "", "x,"),
    ],
)
def test_lists_are_extended_and_shortened(before, operation, value, after):
    log = with_topic(**before)
    assert alter(log, topic(("list", operation, value))) == ["none"]
    assert log.image.topic_configs("a").get("list") == after


def test_settings_are_set_and_unset_one_by_one():
    log = with_topic(x="1", y="2")
    assert alter(log, topic(("x", DELETE, None), ("z", SET, "3"))) == ["none"]
    assert log.image.topic_configs("a") == {"y": "2", "z": "3"}


def test_a_complete_replacement_unsets_the_other_settings():
    log = with_topic(x="1", y="2")
    decision = log.controller.alter_configs([topic(("x", SET, "1"), replaces=True)], NoRules())
    assert [(r.name, r.value) for r in decision.records] == [("y", None)]
    log.run(decision)
    assert log.image.topic_configs("a") == {"x": "1"}


def test_a_dry_run_changes_nothing():
    log = with_topic()
    assert alter(log, topic(("x", SET, "1")), validate_only=True) == ["none"]
    assert log.image.topic_configs("a") == {}


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (topic(("x", SET, "1"), name="b"), "unknown_topic_or_partition"),
        (topic(("x", SET, "1"), name="b/"), "invalid_topic_exception"),
        (topic(("x", SET, None)), "invalid_request"),
        (topic(("x", APPEND, "1")), "invalid_config"),
        (topic(("x", 4, "1")), "invalid_request"),
        (topic(("x", SET, "1"), ("x", SET, "2")), "invalid_request"),
        (Alteration(4, "7", ()), "invalid_request"),
        (Alteration(4, "one", ()), "invalid_request"),
        (Alteration(8, "1", ()), "invalid_request"),
    ],
)
def test_each_wrong_request_gets_its_error(asked, code):
    log = with_topic()
    before = log.image.configs
    assert alter(log, asked) == [code]
    assert log.image.configs == before


def test_the_rules_get_values_before_and_after_and_refuse_one_resource_only():
    class Rules(NoRules):
        def check(self, resource_type, resource_name, before, after):
            if resource_type == 2:
                assert (before, after) == ({"x": "1"}, {"x": "2"})
                raise Rejected(ErrorCode.invalid_config, "x")

    log = with_topic(x="1")
    broker = Alteration(4, "1", (Change("b", SET, "1"),))
    assert alter(log, topic(("x", SET, "2")), broker, rules=Rules()) == ["invalid_config", "none"]
    assert log.image.topic_configs("a") == {"x": "1"}
    assert log.image.configs[4, "1"] == {"b": "1"}
    assert alter(log, broker, broker) == ["invalid_request"]
