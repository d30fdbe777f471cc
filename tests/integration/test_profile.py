"""`strata server --profile`, and Confluent's names of settings, through the command line and admin clients."""

from pathlib import Path

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    ResourceType,
)
from tests.integration.server_process import Server, strata

from stratalog.testing import TemporaryBroker


def configs(admin: AdminClient, topic: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = admin.describe_configs([resource])[resource].result(30)
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {name: entry.value for name, entry in found.items() if entry.source == own}


def test_a_topic_accepts_confluents_names_of_settings(tmp_path: Path) -> None:
    with TemporaryBroker({"tier.url": f"file://{tmp_path}"}) as broker:
        admin = AdminClient({"bootstrap.servers": broker.address})
        settings = {"confluent.tier.enable": "true", "confluent.tier.local.hotset.ms": "1000"}
        admin.create_topics([NewTopic("t", 1, 1, config=settings)])["t"].result(30)
        ours = {"remote.storage.enable": "true", "local.retention.ms": "1000"}
        assert configs(admin, "t") == ours
        change = ConfigEntry(
            "confluent.tier.local.hotset.ms", "-1", incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ResourceType.TOPIC, "t", incremental_configs=[change])
        admin.incremental_alter_configs([resource])[resource].result(30)
        assert configs(admin, "t") == ours | {"local.retention.ms": "-2"}


def test_new_topics_are_tiered_if_tier_enable_is_set(tmp_path: Path) -> None:
    settings = {"confluent.tier.enable": "true", "tier.url": f"file://{tmp_path}"}
    with TemporaryBroker(settings) as broker:
        admin = AdminClient({"bootstrap.servers": broker.address})
        asked = {
            "plain": {},
            "not": {"remote.storage.enable": "false"},
            "compacted": {"cleanup.policy": "compact"},
        }
        new = [NewTopic(name, 1, 1, config=config) for name, config in asked.items()]
        for made in admin.create_topics(new).values():
            made.result(30)
        assert {name: configs(admin, name) for name in asked} == asked | {
            "plain": {"remote.storage.enable": "true"}
        }


def test_a_server_logs_what_its_profile_changed(tmp_path: Path) -> None:
    with Server(tmp_path, ["log.roll.hours=9"], options=["--profile", "production"]) as server:
        said = server.output.read_text()
        assert "profile production: message.max.bytes=4194304 instead of 1048588" in said
        assert "profile production: log.roll.hours stays 9 (from the override)" in said
        admin = AdminClient({"bootstrap.servers": server.address})
        broker = ConfigResource(ResourceType.BROKER, "1")
        found = admin.describe_configs([broker])[broker].result(30)
        assert found["message.max.bytes"].value == "4194304"
        assert found["message.max.bytes"].source == ConfigSource.STATIC_BROKER_CONFIG.value
        assert found["auto.create.topics.enable"].value == "false"


def test_the_command_line_reports_what_a_confluent_name_stands_for(tmp_path: Path) -> None:
    with TemporaryBroker({"tier.url": f"file://{tmp_path}"}) as broker:
        asked = ["--config", "confluent.tier.enable=true", "--bootstrap-server", broker.address]
        done = strata("topic", "create", "t", *asked)
        assert done.returncode == 0, done.stderr
        assert "confluent.tier.enable stands for remote.storage.enable=true" in done.stderr
    wrong = strata("server", "--profile", "fast")
    assert wrong.returncode == 2
    assert wrong.stderr.count("\n") == 1
