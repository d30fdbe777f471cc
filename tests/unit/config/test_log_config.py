"""A topic's settings over the broker's, as Kafka derives them."""

import pytest

from stratalog.config import (
    BrokerConfig,
    ConfigSource,
    DynamicConfigs,
    LogConfig,
    check_topic_configs,
    describe_broker,
    describe_topic,
    log_config,
)
from stratalog.config.broker_settings import BROKER_SETTINGS
from stratalog.config.topic_settings import TOPIC_SETTINGS
from stratalog.errors import ErrorCode, Rejected

TIERED = "tier.url=file:///bucket"


def broker(*overrides: str) -> BrokerConfig:
    return BrokerConfig.load({}, overrides, {})[0]


def test_defaults_are_kafkas() -> None:
    assert log_config(broker(), {}) == LogConfig()


def test_a_topic_beats_its_broker() -> None:
    config = log_config(broker("log.segment.bytes=2097152"), {"segment.bytes": "1048576"})
    assert config.segment_bytes == 1048576
    assert log_config(broker("log.segment.bytes=2097152"), {}).segment_bytes == 2097152


@pytest.mark.parametrize(
    ("overrides", "retention_ms"),
    [
        ([], 7 * 24 * 3_600_000),
        (["log.retention.hours=2"], 2 * 3_600_000),
        (["log.retention.hours=2", "log.retention.minutes=3"], 3 * 60_000),
        (["log.retention.hours=2", "log.retention.minutes=3", "log.retention.ms=4"], 4),
        (["log.retention.hours=-1"], -1),
        (["log.retention.minutes=-1"], -1),
    ],
)
def test_the_finest_unit_of_retention_wins(overrides: list[str], retention_ms: int) -> None:
    assert log_config(broker(*overrides), {}).retention_ms == retention_ms


def test_roll_and_flush_have_settings_in_other_units_too() -> None:
    assert log_config(broker("log.roll.hours=1"), {}).segment_ms == 3_600_000
    assert log_config(broker("log.roll.hours=1", "log.roll.ms=5"), {}).segment_ms == 5
    assert log_config(broker("log.flush.scheduler.interval.ms=9"), {}).flush_ms == 9
    assert (
        log_config(
            broker("log.flush.scheduler.interval.ms=9", "log.flush.interval.ms=8"), {}
        ).flush_ms
        == 8
    )


def test_a_topics_log_config_has_each_setting_with_an_effect() -> None:
    fields = {name.replace(".", "_") for name, t in TOPIC_SETTINGS.items() if not t.setting.inert}
    # The first is the broker's only; the second comes from the topic's name. Of the other two, one means
    # `segment.bytes`, and the controller reads one.
    own = {"producer_id_expiration_ms", "is_state"}
    other = {"internal_segment_bytes", "unclean_leader_election_enable"}
    assert fields - other == set(LogConfig.__struct_fields__) - own


def test_an_internal_setting_allows_segments_of_any_size() -> None:
    assert log_config(broker(), {"internal.segment.bytes": "100"}).segment_bytes == 100
    both = {"internal.segment.bytes": "0", "segment.bytes": "1048576"}
    assert log_config(broker(), both).segment_bytes == 0
    assert log_config(broker(), {"segment.bytes": "1048576"}).segment_bytes == 1048576


def test_every_synonym_with_an_effect_is_a_setting_of_the_broker() -> None:
    for name, topic in TOPIC_SETTINGS.items():
        if not topic.setting.inert:
            missing = [s.name for s in topic.synonyms if s.name not in BROKER_SETTINGS]
            assert not missing, f"{name}: {missing}"


def test_a_stored_value_that_this_release_does_not_accept_counts_as_not_set() -> None:
    """Earlier releases took lists with empty items; newer ones of Kafka have settings that are unknown here."""
    empty = log_config(broker(), {"cleanup.policy": ","})
    assert empty.cleanup_policy == ()
    both = log_config(broker(), {"cleanup.policy": "delete,,compact", "a.name": "x"})
    assert both.cleanup_policy == ("delete", "compact")
    assert log_config(broker("log.retention.ms=7"), {"retention.ms": "soon"}).retention_ms == 7
    dynamic = DynamicConfigs(every={"log.retention.ms": "soon", "log.cleanup.policy": "compact,"})
    over = dynamic.over(broker())
    assert not over.is_set("log.retention.ms")
    assert over.list("log.cleanup.policy") == ("compact",)
    shown = next(
        one for one in describe_topic(broker(), {"segment.ms": "soon"}) if one.name == "segment.ms"
    )
    assert (shown.value, shown.is_default) == ("604800000", True)


@pytest.mark.parametrize(
    ("configs", "said"),
    [
        ({"cleanup.policy": ","}, "cleanup.policy: ',' is not accepted"),
        ({"segment.byte": "1"}, "unknown topic setting segment.byte"),
        (
            {"segment.bytes": "5"},
            "segment.bytes: '5' is not accepted; accepted: a whole number from 1048576",
        ),
        ({"cleanup.policy": "burn"}, "items of delete, compact"),
        ({"retention.ms": "-2"}, "retention.ms: '-2'"),
        (
            {"remote.storage.enable": "true", "retention.ms": "5", "local.retention.ms": "6"},
            "local.retention.ms: '6'",
        ),
        (
            {"remote.storage.enable": "true", "retention.ms": "5", "local.retention.ms": "-1"},
            "local.retention.ms",
        ),
        (
            {"remote.storage.enable": "true", "retention.bytes": "5", "local.retention.bytes": "6"},
            "up to 5",
        ),
    ],
)
def test_a_topic_setting_that_is_wrong_is_refused_by_name(
    configs: dict[str, str], said: str
) -> None:
    with pytest.raises(Rejected) as caught:
        check_topic_configs(configs, broker(TIERED))
    assert caught.value.code == ErrorCode.invalid_config
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("policy", "total", "local"),
    [("delete", 9, 5), ("compact,delete", 9, 5), ("compact", -1, 5)],
)
def test_the_retention_of_a_tiered_topic_follows_its_policy(
    policy: str, total: int, local: int
) -> None:
    configs = {"remote.storage.enable": "true", "cleanup.policy": policy, "retention.ms": "9"}
    whole = log_config(broker(TIERED), configs)
    assert whole.total_retention == (total, -1)
    assert whole.local_retention == (total, -1)
    some = log_config(broker(TIERED), {**configs, "local.retention.ms": "5"})
    assert some.local_retention == (local, -1)
    assert some.is_compacted == ("compact" in policy)


@pytest.mark.parametrize(
    "configs",
    [
        {},
        {"retention.ms": "-1", "segment.bytes": "1048576"},
        {"remote.storage.enable": "true", "local.retention.ms": "0"},
        {"remote.storage.enable": "true", "retention.ms": "5", "local.retention.ms": "-2"},
        {"retention.ms": "5", "local.retention.ms": "6"},
        {"min.cleanable.dirty.ratio": "0.1", "cleanup.policy": "compact"},
        {"remote.storage.enable": "true", "cleanup.policy": "compact"},
        {
            "remote.storage.enable": "true",
            "cleanup.policy": "compact",
            "retention.ms": "5",
            "local.retention.ms": "6",
        },
    ],
)
def test_values_that_kafka_accepts_are_accepted(configs: dict[str, str]) -> None:
    check_topic_configs(configs, broker(TIERED))


def test_a_broker_without_a_tier_refuses_tiered_topics() -> None:
    with pytest.raises(Rejected, match=r"no tier\.url"):
        check_topic_configs({"remote.storage.enable": "true"}, broker())


def test_describe_names_the_source_of_each_value() -> None:
    described = broker("log.retention.hours=2", "log.segment.bytes=2097152")
    entries = {e.name: e for e in describe_topic(described, {"segment.bytes": "1048576"})}
    assert TOPIC_SETTINGS.keys() - entries.keys() == {"internal.segment.bytes"}
    listed = {e.name: e for e in describe_topic(broker(), {"internal.segment.bytes": "9"})}
    assert listed["internal.segment.bytes"].value == "9"
    segment = entries["segment.bytes"]
    assert (segment.value, segment.source, segment.is_default) == (
        "1048576",
        ConfigSource.TOPIC_CONFIG,
        False,
    )
    assert [(s.name, s.value) for s in segment.synonyms] == [
        ("segment.bytes", "1048576"),
        ("log.segment.bytes", "2097152"),
        ("log.segment.bytes", "1073741824"),
    ]
    retention = entries["retention.ms"]
    assert (retention.value, retention.source) == ("7200000", ConfigSource.STATIC_BROKER_CONFIG)
    assert entries["flush.ms"].source == ConfigSource.DEFAULT_CONFIG
    assert not any(entry.read_only for entry in entries.values())


def test_describe_broker_covers_every_setting() -> None:
    entries = {
        entry.name: entry for entry in describe_broker(broker("node.id=4"), DynamicConfigs())
    }
    assert BROKER_SETTINGS.keys() - entries.keys() == {
        "allow.everyone.if.no.acl.found",
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
        "super.users",
    }
    rates = DynamicConfigs(every={"leader.replication.throttled.rate": "5"})
    assert "leader.replication.throttled.rate" in {
        entry.name for entry in describe_broker(broker(), rates)
    }
    assert entries["node.id"].value == "4"
    assert entries["node.id"].source == ConfigSource.STATIC_BROKER_CONFIG
    assert entries["num.partitions"].is_default
    assert entries["log.retention.ms"].value is None
