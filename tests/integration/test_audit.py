"""The audit of a real broker: denials, failed logins and changes, each with its client, and no secret."""

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from tests.integration.server_process import strata

from stratalog.testing.broker import TemporaryBroker

WORD, WRONG = "planted-password", "guessed-password"
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
USERS = f'{PLAIN_MODULE} required user_admin="{WORD}" user_alice="{WORD}";'
TIMEOUT_S = 20
SECRET = "listener.name.sasl_plaintext.ssl.keystore.password"


def settings(path: Path) -> dict[str, str]:
    return {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": USERS,
        "connection.failed.authentication.delay.ms": "1",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin;User:ANONYMOUS",
        "audit.log.path": str(path),
    }


def client(broker: TemporaryBroker, user: str, password: str = WORD) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": password,
        "client.id": f"of-{user}",
        "log_level": 0,
    }


def done(futures: dict[Any, Any]) -> None:
    for one in futures.values():
        one.result(TIMEOUT_S)


def change_everything(admin: AdminClient) -> None:
    done(admin.create_topics([NewTopic("orders", 2)]))
    done(admin.create_partitions([NewPartitions("orders", 3)]))
    with pytest.raises(KafkaException):
        done(admin.create_topics([NewTopic("orders", 2)]))
    done(admin.create_topics([NewTopic("dry", 2)], validate_only=True))
    entry = ConfigEntry("retention.ms", "5000", incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource(ConfigResource.Type.TOPIC, "orders", incremental_configs=[entry])
    secret = ConfigEntry(SECRET, WORD, incremental_operation=AlterConfigOpType.SET)
    broker = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[secret])
    for resource in (topic, broker):
        done(admin.incremental_alter_configs([resource]))
    acl = AclBinding(
        ResourceType.TOPIC,
        "orders",
        ResourcePatternType.LITERAL,
        "User:alice",
        "*",
        AclOperation.DESCRIBE,
        AclPermissionType.ALLOW,
    )
    done(admin.create_acls([acl]))
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    done(admin.alter_user_scram_credentials([UserScramCredentialUpsertion("bob", info, b"secret")]))
    gone = UserScramCredentialDeletion("bob", ScramMechanism.SCRAM_SHA_256)
    done(admin.alter_user_scram_credentials([gone]))


def test_each_change_denial_and_failed_login_has_one_line(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    with TemporaryBroker(settings(path)) as broker:
        admin = AdminClient(client(broker, "admin"))
        change_everything(admin)
        failed: list[Any] = []
        producer = Producer(client(broker, "alice"))
        producer.produce("orders", b"x", on_delivery=lambda error, _: failed.append(error))
        assert producer.flush(TIMEOUT_S) == 0
        assert failed[0] is not None
        with pytest.raises(KafkaException):
            AdminClient(client(broker, "mallory\n", WRONG)).list_topics(timeout=1)
        done(admin.delete_topics(["orders"]))
    text = path.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    found = {line["event"]: line for line in lines}
    assert WORD not in text
    assert WRONG not in text

    changes = [line["event"] for line in lines if line["event"] not in {"denied", "login failed"}]
    assert changes == [
        "topic created",
        "partitions added",
        "settings changed",
        "settings changed",
        "acl created",
        "user changed",
        "user changed",
        "topic deleted",
    ]
    created = found["topic created"]
    assert (created["topic"], created["partitions"]) == ("orders", 2)
    assert (created["principal"], created["client_id"]) == ("User:admin", "of-admin")
    assert (created["host"], created["listener"]) == ("127.0.0.1", "SASL_PLAINTEXT")
    assert created["time"].startswith("20")
    of_settings = [line["settings"] for line in lines if line["event"] == "settings changed"]
    assert of_settings == [{"retention.ms": "5000"}, {SECRET: "(hidden)"}]
    assert found["acl created"]["acl"]["principal"] == "User:alice"
    assert found["acl created"]["acl"]["permission"] == "ALLOW"
    assert found["user changed"]["deleted"] == ["SCRAM-SHA-256"]

    denied = found["denied"]
    assert (denied["principal"], denied["api"]) == ("User:alice", "Produce")
    assert denied["denied"] == ["WRITE TOPIC orders"]
    login = found["login failed"]
    assert (login["user"], login["mechanism"]) == ("mallory\n", "PLAIN")
    assert login["error"] == "SASL_AUTHENTICATION_FAILED"
    assert login["principal"] == "User:ANONYMOUS"


def test_a_path_that_cannot_be_written_ends_the_start(tmp_path: Path) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text(
        f"log.dirs={tmp_path / 'data'}\nlisteners=PLAINTEXT://127.0.0.1:0\n"
        f"audit.log.path={tmp_path / 'none' / 'audit.log'}\n"
    )
    refused = strata("server", str(properties))
    assert (refused.returncode, "audit.log.path" in refused.stderr) == (2, True), refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
