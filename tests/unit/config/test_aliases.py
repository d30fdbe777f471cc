"""Confluent's names for the tier, and profiles: the settings that they set, and the explicit ones that win."""

import pytest

from stratalog.config import BrokerConfig
from stratalog.config.aliases import (
    BROKER_ALIASES,
    BUCKET_ALIASES,
    TOPIC_ALIASES,
    our_topic_setting,
)
from stratalog.config.broker_settings import BROKER_SETTINGS
from stratalog.config.kinds import Kind
from stratalog.config.profiles import LEFT_TO_YOU, PROFILES, WITH_THREE
from stratalog.config.topic_settings import TOPIC_SETTINGS
from stratalog.errors import UserError

# The settings in the article on FlashBlade.
FLASHBLADE = {
    "CONFLUENT_TIER_FEATURE": "true",
    "CONFLUENT_TIER_ENABLE": "true",
    "CONFLUENT_TIER_BACKEND": "S3",
    "CONFLUENT_TIER_S3_BUCKET": "kafka",
    "CONFLUENT_TIER_S3_REGION": "any",
    "CONFLUENT_TIER_S3_AWS_ENDPOINT_OVERRIDE": "https://10.62.64.200",
    "KAFKA_LOG_SEGMENT_BYTES": "104857600",
    "CONFLUENT_TIER_ARCHIVER_NUM_THREADS": "8",
    "CONFLUENT_TIER_FETCHER_NUM_THREADS": "16",
    "CONFLUENT_TIER_LOCAL_HOTSET_MS": "0",
}


def test_the_articles_environment_works_unchanged() -> None:
    config, lines = BrokerConfig.load(environ=FLASHBLADE)
    assert config.tier_url == "s3://kafka?region=any&endpoint=https://10.62.64.200"
    assert config.bool("tier.enable")
    assert config.int("log.segment.bytes") == 100 << 20
    assert config.int("remote.log.manager.copier.thread.pool.size") == 8
    assert config.int("remote.log.reader.threads") == 16
    assert config.int("log.local.retention.ms") == 0
    assert len(lines) == len(FLASHBLADE) - 1
    assert (
        "confluent.tier.local.hotset.ms (from the environment CONFLUENT_TIER_LOCAL_HOTSET_MS) "
        "stands for log.local.retention.ms=0"
    ) in lines


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({"s3.bucket": "b", "s3.prefix": "a/b/"}, "s3://b/a/b"),
        ({"backend": "GCS", "gcs.bucket": "b", "s3.region": "r"}, "gs://b"),
        ({"backend": "AzureBlockBlob", "azure.block.blob.container": "c"}, "az://c"),
        ({"feature": "false", "s3.bucket": "b"}, ""),
        ({}, ""),
    ],
)
def test_confluents_bucket_settings_become_one_url(settings: dict[str, str], url: str) -> None:
    names = {f"confluent.tier.{name}": value for name, value in settings.items()}
    config, lines = BrokerConfig.load(names)
    assert config.tier_url == url
    assert len(lines) == len(settings)


def test_our_own_name_wins_over_an_alias() -> None:
    config, lines = BrokerConfig.load(
        {
            "confluent.tier.feature": "true",
            "confluent.tier.fetcher.num.threads": "9",
            "remote.log.reader.threads": "3",
            "tier.url": "memory://here",
        }
    )
    assert config.int("remote.log.reader.threads") == 3
    assert config.tier_url == "memory://here"
    assert lines == [
        "confluent.tier.feature (from the file) yields to tier.url",
        "confluent.tier.fetcher.num.threads (from the file) yields to remote.log.reader.threads",
    ]


def test_the_monitors_former_name_is_still_taken() -> None:
    config, lines = BrokerConfig.load({"console.listener": "127.0.0.1:9404"})
    assert config.monitor == ("127.0.0.1", 9404)
    assert lines == ["console.listener (from the file) stands for monitor.listener=127.0.0.1:9404"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"feature": "true"}, r"s3\.bucket is not set"),
        ({"s3.bucket": "b", "backend": "tape"}, "'tape' is not accepted"),
        ({"local.hotset.ms": "soon"}, r"log\.local\.retention\.ms: 'soon' is not accepted"),
    ],
)
def test_an_unusable_setting_is_an_error(settings: dict[str, str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        BrokerConfig.load({f"confluent.tier.{name}": value for name, value in settings.items()})


def test_confluents_other_names_are_reported_as_confluents() -> None:
    _, lines = BrokerConfig.load({"confluent.license": "x"})
    assert lines == [
        "settings without effect here (docs/settings.md): confluent.license (file, Confluent's)"
    ]


def test_a_topics_settings_have_aliases_too() -> None:
    assert our_topic_setting("confluent.tier.enable", "true") == ("remote.storage.enable", "true")
    hotset = "confluent.tier.local.hotset.ms"
    assert our_topic_setting(hotset, "-1") == ("local.retention.ms", "-2")
    assert our_topic_setting(hotset, None) == ("local.retention.ms", None)
    assert our_topic_setting("retention.ms", "-1") == ("retention.ms", "-1")


def test_every_alias_stands_for_a_setting() -> None:
    assert set(BROKER_ALIASES.values()) <= set(BROKER_SETTINGS)
    assert set(TOPIC_ALIASES.values()) <= set(TOPIC_SETTINGS)


def test_a_profile_sets_only_unset_settings_and_says_so() -> None:
    config, lines = BrokerConfig.load(
        {"message.max.bytes": "77"}, ["log.roll.hours=5"], profile="production"
    )
    assert not config.bool("auto.create.topics.enable")
    assert config.int("message.max.bytes") == 77
    assert config.int("log.roll.hours") == 5
    assert config.int("log.segment.bytes") == 1 << 30  # the profile sets this only for a tier
    assert lines == [
        "profile production: auto.create.topics.enable=false instead of true",
        "profile production: message.max.bytes stays 77 (from the file)",
        "profile production: log.roll.hours stays 5 (from the override)",
    ]


def test_a_profile_recognises_a_tier_by_any_name() -> None:
    config, lines = BrokerConfig.load({"confluent.tier.s3.bucket": "b"}, profile="production")
    assert config.int("log.segment.bytes") == 104857600
    assert config.int("log.local.retention.ms") == 0
    assert len(lines) == 1 + sum(one.where != WITH_THREE for one in PROFILES["production"])


@pytest.mark.parametrize(
    ("voters", "factor", "min_isr"),
    [("", 1, 1), ("1@a:9,2@b:9", 1, 1), ("1@a:9,2@b:9,3@c:9", 3, 2)],
)
def test_a_profile_keeps_copies_where_the_cluster_has_three_voters(
    voters: str, factor: int, min_isr: int
) -> None:
    settings = {
        "controller.quorum.voters": voters,
        "controller.listener.names": "CONTROLLER",
        "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }
    config, _ = BrokerConfig.load(settings, profile="production")
    assert config.int("default.replication.factor") == factor
    assert config.int("min.insync.replicas") == min_isr


def test_an_unknown_profile_is_refused() -> None:
    with pytest.raises(UserError, match="--profile: 'fast' is not accepted; accepted: production"):
        BrokerConfig.load(profile="fast")


def test_profiles_set_valid_values() -> None:
    for advice in PROFILES["production"]:
        setting = BROKER_SETTINGS[advice.name]
        assert setting.parse(advice.value) != setting.default
        assert setting.kind is not Kind.PASSWORD
    assert not {name for name, *_ in LEFT_TO_YOU} & {a.name for a in PROFILES["production"]}


def test_each_setting_of_the_two_articles_is_set_or_has_an_alias_or_a_reason() -> None:
    tips = """
        log.dirs message.max.bytes socket.send.buffer.bytes socket.receive.buffer.bytes log.roll.hours
        auto.create.topics.enable default.replication.factor cleanup.policy log.retention.hours
        controlled.shutdown.enable num.partitions compression.type
    """
    flashblade = """
        confluent.tier.feature confluent.tier.enable confluent.tier.backend confluent.tier.s3.bucket
        confluent.tier.s3.region confluent.tier.s3.aws.endpoint.override log.segment.bytes
        confluent.tier.archiver.num.threads confluent.tier.fetcher.num.threads
        confluent.tier.local.hotset.ms confluent.tier.local.hotset.bytes
    """
    known = {name for names, *_ in LEFT_TO_YOU for name in names.split(", ")}
    known |= {advice.name for advice in PROFILES["production"]}
    known |= {*BROKER_ALIASES, *BUCKET_ALIASES}
    assert {*tips.split(), *flashblade.split()} <= known
