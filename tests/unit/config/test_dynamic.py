"""Settings of a running broker: their precedence, allowed changes, and the effect on topics."""

import pytest

from stratalog.config import (
    BrokerConfig,
    ClusterRules,
    ConfigSource,
    DynamicConfigs,
    describe_broker,
    describe_every_broker,
    describe_topic,
    log_config,
)
from stratalog.errors import ErrorCode, Rejected

TOPIC, BROKER = 2, 4


def broker(*overrides: str) -> BrokerConfig:
    return BrokerConfig.load(overrides=overrides)[0]


def entry(entries, name):
    return next(one for one in entries if one.name == name)


def test_own_values_beat_cluster_values_beat_static_values_beat_defaults():
    static = broker("log.retention.hours=1")
    name = "log.retention.ms"
    steps = [
        (DynamicConfigs(), 3_600_000),
        (DynamicConfigs(every={name: "2"}), 2),
        (DynamicConfigs(own={name: "1"}, every={name: "2"}), 1),
    ]
    for dynamic, expected in steps:
        assert log_config(dynamic.over(static), {}).retention_ms == expected
    assert log_config(steps[2][0].over(static), {"retention.ms": "9"}).retention_ms == 9


def test_only_values_of_this_broker_or_of_all_brokers_count():
    configs = {(BROKER, "1"): {"a": "1"}, (BROKER, ""): {"a": "2"}, (BROKER, "2"): {"a": "3"}}
    assert DynamicConfigs.of(configs, 1) == DynamicConfigs({"a": "1"}, {"a": "2"})
    assert DynamicConfigs.of({}, 1).over(broker()) == broker()


def test_a_removed_setting_is_ignored():
    dynamic = DynamicConfigs(every={"no.such.setting": "x"})
    assert dynamic.over(broker()).values == broker().values
    assert describe_every_broker(dynamic.every) == []


def test_every_source_is_described():
    dynamic = DynamicConfigs({"log.segment.bytes": "2000000"}, {"log.segment.bytes": "3000000"})
    static = broker("log.segment.bytes=4000000")
    of_topic = entry(describe_topic(static, {"segment.bytes": "1048576"}, dynamic), "segment.bytes")
    of_broker = entry(describe_broker(static, dynamic), "log.segment.bytes")
    sources = [
        ("2000000", ConfigSource.DYNAMIC_BROKER_CONFIG),
        ("3000000", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ("4000000", ConfigSource.STATIC_BROKER_CONFIG),
    ]
    assert [(s.value, s.source) for s in of_topic.synonyms] == [
        ("1048576", ConfigSource.TOPIC_CONFIG),
        *sources,
        ("1073741824", ConfigSource.DEFAULT_CONFIG),
    ]
    assert [(s.value, s.source) for s in of_broker.synonyms][:3] == sources
    assert not of_broker.read_only
    (of_every,) = describe_every_broker(dynamic.every)
    assert (of_every.value, of_every.source) == sources[1]


@pytest.mark.parametrize(
    ("resource", "before", "after", "code"),
    [
        (BROKER, {}, {"log.segment.bytes": "2000000"}, None),
        (BROKER, {"log.segment.bytes": "2000000"}, {}, None),
        (BROKER, {"gone": "1"}, {"gone": "1"}, None),
        (BROKER, {}, {"log.segment.bytes": "much"}, "invalid_request"),
        (BROKER, {}, {"log.dirs": "/"}, "invalid_request"),
        (BROKER, {}, {"no.such": "1"}, "invalid_request"),
        (TOPIC, {}, {"segment.bytes": "2000000"}, None),
        (TOPIC, {}, {"segment.bytes": "much"}, "invalid_config"),
        (TOPIC, {}, {"remote.storage.enable": "true"}, None),
        (TOPIC, {"remote.storage.enable": "true"}, {}, "invalid_config"),
        (
            TOPIC,
            {"remote.storage.enable": "true"},
            {"remote.storage.enable": "FALSE"},
            "invalid_config",
        ),
    ],
)
def test_only_allowed_changes_of_settings_are_accepted(resource, before, after, code):
    rules = ClusterRules(broker("tier.url=memory://b"))
    try:
        rules.check(resource, "1" if resource == BROKER else "t", before, after)
        found = None
    except Rejected as refused:
        found = refused.code
    assert found == (None if code is None else ErrorCode[code])


def test_lists_are_extended_from_the_value_in_effect():
    rules = ClusterRules(broker("log.cleanup.policy=compact"))
    assert rules.default_items(TOPIC, "cleanup.policy") == ("compact",)
    assert rules.default_items(BROKER, "log.cleanup.policy") == ("compact",)
    assert rules.default_items(TOPIC, "retention.ms") is None
    assert rules.default_items(TOPIC, "no.such") is None
