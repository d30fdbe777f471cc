"""`strata acl` and ACLs in effect: a real broker with Kafka's authorizer, `strata`, librdkafka and one more principal.

Without authentication every client is User:ANONYMOUS, so the ACLs here tell clients apart by their addresses.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from kafka.admin import (
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    KafkaAdminClient,
    ResourcePatternFilter,
)
from kafka.admin import ResourceType as ResourceKind
from kafka.errors import ClusterAuthorizationFailedError
from tests.broker_process import BrokerProcess, broker_process
from tests.integration.server_process import strata

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
ANYONE = AclBindingFilter(
    ResourceType.ANY,
    None,
    ResourcePatternType.ANY,
    None,
    None,
    AclOperation.ANY,
    AclPermissionType.ANY,
)


def acl(broker: BrokerProcess, *words: str) -> tuple[int, str, str]:
    done = strata("acl", *words, "-b", broker.address)
    return done.returncode, done.stdout, done.stderr


def listed(broker: BrokerProcess, *words: str) -> Any:
    status, output, errors = acl(broker, "list", *words, "--json")
    assert status == 0, errors
    return json.loads(output)


def test_acls_are_added_listed_checked_and_removed(tmp_path: Path) -> None:
    settings = {"authorizer__class__name": STANDARD, "allow__everyone__if__no__acl__found": "true"}
    with broker_process(tmp_path, **settings) as broker:
        alice = ("--principal", "User:alice", "--operation", "read")
        assert acl(broker, "add", *alice, "--topic", "orders", "--group", "g")[0] == 0
        assert acl(broker, "add", *alice, "--topic", "ord", "--prefixed")[0] == 0
        assert (
            acl(broker, "add", *alice, "--topic", "orders", "--deny", "--host", "10.9.9.9")[0] == 0
        )
        assert len(listed(broker)) == 4
        assert {row["name"] for row in listed(broker, "--topic", "orders")} == {"orders", "ord"}
        assert listed(broker, "--principal", "User:bob") == []

        status, output, _ = acl(broker, "check", "User:alice", "read", "--topic", "orders")
        assert (status, "yes" in output) == (0, True), output
        words = ("check", "User:alice", "describe", "--topic", "ordering", "--json")
        status, output, _ = acl(broker, *words)
        assert (status, json.loads(output)[0]["by"]["pattern"]) == (0, "PREFIXED")
        assert acl(broker, "check", "User:bob", "read", "--topic", "orders")[0] == 1
        denied = ("check", "User:alice", "read", "--topic", "orders", "--host", "10.9.9.9")
        assert acl(broker, *denied)[0] == 1

        # What librdkafka lists and creates is the same.
        admin = AdminClient({"bootstrap.servers": broker.address})
        assert len(admin.describe_acls(ANYONE).result(30)) == 4
        assert acl(broker, "remove", *alice, "--topic", "orders", "--group", "g")[0] == 0
        assert len(admin.describe_acls(ANYONE).result(30)) == 2
        status, _, errors = acl(broker, "remove", *alice, "--topic", "orders")
        assert (status, errors) == (2, "strata: no such ACL; strata acl list shows all\n")


def test_a_denied_client_gets_kafkas_error(tmp_path: Path) -> None:
    settings = {"authorizer__class__name": STANDARD, "allow__everyone__if__no__acl__found": "true"}
    with broker_process(tmp_path, **settings) as broker:
        assert strata("topic", "create", "open", "-b", broker.address).returncode == 0
        assert strata("topic", "create", "shut", "-b", broker.address).returncode == 0
        words = ("--principal", "User:ANONYMOUS", "--operation", "write", "--topic", "shut")
        assert acl(broker, "add", *words, "--deny")[0] == 0
        errors = {}
        for topic in ("open", "shut"):
            producer = Producer({"bootstrap.servers": broker.address})
            producer.produce(
                topic,
                b"x",
                on_delivery=lambda error, record: errors.update({record.topic(): error}),
            )
            assert producer.flush(30) == 0
        assert errors["open"] is None
        assert errors["shut"].name() == "TOPIC_AUTHORIZATION_FAILED"
        assert acl(broker, "remove", *words, "--deny")[0] == 0
        producer = Producer({"bootstrap.servers": broker.address})
        producer.produce("shut", b"x", on_delivery=lambda error, _: errors.update(last=error))
        assert producer.flush(30) == 0
        assert errors["last"] is None


def test_a_client_without_rights_sees_and_changes_no_acl(tmp_path: Path) -> None:
    with broker_process(
        tmp_path, authorizer__class__name=STANDARD, super__users="User:x"
    ) as broker:
        alice = ("--principal", "User:alice", "--operation", "read", "--topic", "t")
        for words in (
            ("list",),
            ("add", *alice),
            ("remove", *alice),
            ("check", "User:alice", "read", "--topic", "t"),
        ):
            status, output, errors = acl(broker, *words)
            assert (status, output) == (2, ""), words
            (line,) = errors.splitlines()
            assert "CLUSTER_AUTHORIZATION_FAILED" in line
        # librdkafka drops the error of this answer.
        admin = KafkaAdminClient(bootstrap_servers=broker.address)
        every = ResourcePatternFilter(ResourceKind.ANY, None, ACLResourcePatternType.ANY)
        with pytest.raises(ClusterAuthorizationFailedError):
            admin.describe_acls(
                ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, every)
            )
        admin.close()


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    with broker_process(tmp_path, authorizer__class__name=STANDARD) as broker:
        alice = ("--principal", "User:alice", "--operation", "read", "--topic", "t")
        # No super user: User:ANONYMOUS has no right at all.
        assert acl(broker, "add", *alice)[2].startswith("strata: CLUSTER_AUTHORIZATION_FAILED")
        assert acl(broker, "list")[:2] == (2, "")
        wrong = acl(broker, "add", *alice[:3], "reading", *alice[4:])
        assert wrong[0] == 2
        assert wrong[2].startswith("strata: operation 'reading' is not accepted; accepted: all, ")
        for words, said in (
            (
                ("--operation", "create-tokens", "--topic", "t"),
                "is not one of a topic; accepted: all, ",
            ),
            (("--operation", "write", "--group", "g"), "is not one of a group; accepted: all, "),
            (
                ("--operation", "read", "--topic", "t", "--host", "a b"),
                "--host: 'a b' is not accepted",
            ),
            (
                ("--operation", "read", "--topic", "t", "--host", "10.0.0.0/8"),
                "accepted: an address",
            ),
            (
                ("--operation", "read", "--topic", "t", "--host", "fe80::1%eth0"),
                "has the number of the broker's interface, as fe80::1%2",
            ),
        ):
            status, _, line = acl(broker, "add", "--deny", "--principal", "User:a", *words)
            assert (status, said in line, line.count("\n")) == (2, True, 1), line
        for principal in ("Group:a", "user:a", "a", ""):
            words = ("--principal", principal, "--operation", "read", "--topic", "t")
            status, _, line = acl(broker, "add", *words)
            assert (status, line.count("\n")) == (2, 1)
            assert f"--principal: {principal!r} is not accepted" in line
        assert "--operation is missing" in acl(broker, "add", *alice[:2], *alice[4:])[2]
        assert "name a resource: --topic" in acl(broker, "add", *alice[:4])[2]
    with broker_process(tmp_path / "other") as broker:
        status, _, errors = acl(broker, "list")
        assert (status, "SECURITY_DISABLED" in errors) == (2, True)
        assert "authorizer.class.name is empty" in errors


def test_a_wrong_setting_ends_the_server_with_one_line(tmp_path: Path) -> None:
    for setting, accepted in (
        ("authorizer.class.name=com.example.Mine", STANDARD),
        ("super.users=root", "User:admin"),
        ("sasl.mechanism.inter.broker.protocol=PLAINN", "SCRAM-SHA-256"),
        ("sasl.mechanism.controller.protocol=PLAINN", "SCRAM-SHA-256"),
    ):
        done = strata("server", "--override", f"log.dirs={tmp_path}", "--override", setting)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert accepted in done.stderr


def test_a_denial_counts_for_an_ipv6_client_in_javas_form_and_in_the_short_one(
    tmp_path: Path,
) -> None:
    settings = {"authorizer__class__name": STANDARD, "allow__everyone__if__no__acl__found": "true"}
    with broker_process(tmp_path, listeners="PLAINTEXT://[::1]:0", **settings) as broker:
        address = f"[::1]:{broker.port}"
        for topic, host in (("short", "::1"), ("long", "0:0:0:0:0:0:0:1"), ("other", "::2")):
            words = ("--principal", "User:*", "--operation", "all", "--topic", topic)
            for more in ((), ("--deny", "--host", host)):
                done = strata("acl", "add", *words, *more, "-b", address)
                assert done.returncode == 0, done.stderr
        for topic, is_denied in (("short", True), ("long", True), ("other", False)):
            assert strata("topic", "create", topic, "-b", address).returncode == 0
            done = strata("topic", "describe", topic, "-b", address)
            assert ("TOPIC_AUTHORIZATION_FAILED" in done.stderr) == is_denied, done.stderr
            words = ("acl", "check", "User:a", "read", "--topic", topic, "--host", "::1")
            assert strata(*words, "-b", address).returncode == is_denied
