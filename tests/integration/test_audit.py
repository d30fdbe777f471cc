"""The audit of a real broker: denials, failed logins and changes, each with its client, and no secret."""

import json
import socket
import ssl
import struct
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
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
from tests.integration.issuer import Issuer
from tests.integration.server_process import strata
from tests.integration.test_sasl import Raw
from tests.integration.waiting import wait_for

from stratalog.adapters import tls_server
from stratalog.adapters.blocking_socket import BlockingNetwork
from stratalog.adapters.free_ports import free_ports
from stratalog.broker.network import connections
from stratalog.client.blocking import BlockingClient
from stratalog.client.quotas import alter_quotas
from stratalog.client.security import security_of
from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.client_quotas import entity_of
from stratalog.testing.broker import TemporaryBroker
from stratalog.testing.certificates import Authority

WORD, WRONG = "planted-password", "guessed-password"
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
USERS = f'{PLAIN_MODULE} required user_admin="{WORD}" user_alice="{WORD}";'
TIMEOUT_S = 20
METADATA = struct.pack(">ihhihi", 14, 3, 1, 7, -1, -1)
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


def test_changes_of_records_quotas_and_acls_have_one_line_each(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    module = f'{PLAIN_MODULE} required username="%s" password="{WORD}";'
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    as_admin = security_of(login | {"sasl.jaas.config": module % "admin"})
    as_alice = security_of(login | {"sasl.jaas.config": module % "alice"})
    literal = ResourcePatternType.LITERAL
    rule = (ResourceType.GROUP, "g", literal, "User:alice", "*", AclOperation.READ)
    with TemporaryBroker(settings(path)) as broker:
        admin = AdminClient(client(broker, "admin"))
        done(admin.create_topics([NewTopic("orders", 1)]))
        producer = Producer(client(broker, "admin"))
        producer.produce("orders", b"x")
        assert producer.flush(TIMEOUT_S) == 0
        done(admin.delete_records([TopicPartition("orders", 0, 1)]))
        topic = ConfigResource(ConfigResource.Type.TOPIC, "orders", {"retention.ms": "9"})
        with pytest.warns(DeprecationWarning, match="alter_configs"):
            done(admin.alter_configs([topic]))
        done(admin.create_acls([AclBinding(*rule, AclPermissionType.ALLOW)]))
        done(admin.delete_acls([AclBindingFilter(*rule, AclPermissionType.ALLOW)]))
        network, quota = BlockingNetwork(), {"producer_byte_rate": 1.0}
        entity = entity_of([("user", "bob")])
        with BlockingClient(network, broker.address, security=as_admin) as ours:
            ours.call(alter_quotas(entity, quota))
        with (
            BlockingClient(network, broker.address, security=as_alice) as ours,
            pytest.raises(Rejected, match=r"(?i)authorization|not allowed"),
        ):
            ours.call(alter_quotas(entity, quota))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["event"] for line in lines] == [
        "topic created",
        "records deleted",
        "settings changed",
        "acl created",
        "acl deleted",
        "quotas changed",
        "denied",
    ]
    _, records, changed, _, acl, quotas, denied = lines
    assert (records["topic"], records["log_start_offsets"]) == ("orders", {"0": 1})
    assert changed["settings"] == {"retention.ms": "9"}
    assert acl["acl"]["name"] == "g"
    assert (quotas["entity"], quotas["quotas"]) == ({"user": "bob"}, quota)
    assert denied["principal"] == "User:alice"
    assert denied["denied"] == ["ALTER_CONFIGS CLUSTER kafka-cluster"]


@pytest.mark.parametrize("has_authorizer", [True, False])
def test_allowed_data_requests_have_lines_where_the_settings_ask(
    tmp_path: Path, has_authorizer: bool
) -> None:
    path = tmp_path / "audit.log"
    chosen = {**settings(path), "audit.log.data.requests": "true"}
    if not has_authorizer:
        chosen = {"audit.log.path": str(path), "audit.log.data.requests": "true"}
    with TemporaryBroker(chosen) as broker:
        reached = client(broker, "admin")
        if not has_authorizer:
            reached = {name: reached[name] for name in ("bootstrap.servers", "client.id")}
        admin = AdminClient(reached)
        done(admin.create_topics([NewTopic("orders", 1)]))
        producer = Producer(reached)
        for _ in range(5):  # the door takes no connection
            producer.produce("orders", b"x")
            assert producer.flush(TIMEOUT_S) == 0
        consumer = Consumer({**reached, "group.id": "g"})
        consumer.assign([TopicPartition("orders", 0, OFFSET_BEGINNING)])
        assert len(consumer.consume(5, TIMEOUT_S)) == 5
        consumer.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    allowed = [line for line in lines if line["event"] == "allowed"]
    principal = "User:admin" if has_authorizer else "User:ANONYMOUS"
    assert {(one["principal"], one["client_id"]) for one in allowed} == {(principal, "of-admin")}
    of_produce = [one["allowed"] for one in allowed if one["api"] == "Produce"]
    of_fetch = [one["allowed"] for one in allowed if one["api"] == "Fetch"]
    assert of_produce == [["WRITE TOPIC orders"]] * 5
    assert of_fetch
    assert of_fetch == [["READ TOPIC orders"]] * len(of_fetch)


def test_each_failed_handshake_and_unfinished_login_has_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_LOGIN_S_MAX", 3.0)
    monkeypatch.setattr(tls_server, "HANDSHAKE_S", 3.0)
    path, authority = tmp_path / "audit.log", Authority(tmp_path / "ca")
    ports = free_ports(2)
    stranger = Authority(tmp_path / "other").issue("mallory")
    secured = {
        "listeners": f"SSL://127.0.0.1:{ports[0]},SASL_PLAINTEXT://127.0.0.1:{ports[1]}",
        "ssl.keystore.location": str(authority.issue("server").pem),
        "ssl.truststore.location": str(authority.certificate),
        "ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=alice.*$/alice/",
    }
    with TemporaryBroker(settings(path) | secured):
        tls, sasl = (("127.0.0.1", port) for port in ports)
        for own in (None, stranger, authority.issue("bob")):
            context = ssl.create_default_context(cafile=str(authority.certificate))
            if own is not None:
                context.load_cert_chain(own.pem)
            with (
                suppress(OSError),
                socket.create_connection(tls, TIMEOUT_S) as raw,
                context.wrap_socket(raw, server_hostname="127.0.0.1") as stream,
            ):
                stream.recv(1)
        for place, sent in ((tls, b"GET / HTTP/1.1"), (tls, b""), (sasl, b""), (sasl, METADATA)):
            with socket.create_connection(place, TIMEOUT_S) as raw, suppress(OSError):
                raw.sendall(sent)
                if sent:  # its end must not hide the failure
                    raw.shutdown(socket.SHUT_WR)
                raw.recv(1)
        with socket.create_connection(tls, TIMEOUT_S):
            pass  # a probe of the port is no failed handshake
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert {(line["principal"], line["host"]) for line in lines} == {
        ("User:ANONYMOUS", "127.0.0.1")
    }
    assert [line["error"].rpartition(": ")[2] for line in lines] == [
        "peer did not return a certificate",
        "unable to get local issuer certificate",
        "no rule of ssl.principal.mapping.rules names the client, on one line",
        "http request; does the client use TLS?",
        "no TLS handshake in 3 s",
        "no authentication in 3 s",
        "a request before authentication",
    ]
    assert [line["event"] for line in lines] == ["handshake failed"] * 5 + ["login failed"] * 2
    assert [line["listener"] for line in lines] == ["SSL"] * 5 + ["SASL_PLAINTEXT"] * 2


def test_a_login_without_headers_has_its_line_too(tmp_path: Path) -> None:
    """SaslHandshake version 0: a bare token goes past the dispatch of requests."""
    path = tmp_path / "audit.log"
    with TemporaryBroker(settings(path)) as broker:
        wrong = Raw(broker)
        assert wrong.handshake("PLAIN", 0) == 0
        assert wrong.bare(b"\0mallory\0" + WRONG.encode()) is None
        unfinished = Raw(broker)
        assert unfinished.handshake("SCRAM-SHA-256", 0) == 0
        assert unfinished.bare(b"malformed") is None
        right = Raw(broker)
        assert right.handshake("PLAIN", 0) == 0
        assert right.bare(b"\0admin\0" + WORD.encode()) == b""
        for one in (wrong, unfinished, right):
            one.close()
    text = path.read_text()
    assert WRONG not in text
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(one["event"], one["mechanism"], one["user"], one["error"]) for one in lines] == [
        ("login failed", "PLAIN", "mallory", "SASL_AUTHENTICATION_FAILED"),
        ("login failed", "SCRAM-SHA-256", "", "SASL_AUTHENTICATION_FAILED"),
    ]


def reset(stream: socket.socket) -> None:
    """End a connection with RST."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.close()


def lines_of(path: Path, count: int) -> list[dict[str, Any]]:
    """Wait for lines, and return them."""
    wait_for(lambda: path.exists() and path.read_text().count("\n") >= count, "a line of the audit")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_client_that_resets_within_a_failing_handshake_has_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[Any] = []
    may_go_on = threading.Event()
    take_step = tls_server.TlsConnection._take_step

    def late(self: Any) -> bool:
        steps.append(self)
        may_go_on.wait(TIMEOUT_S)
        return take_step(self)

    monkeypatch.setattr(tls_server.TlsConnection, "_take_step", late)
    path = tmp_path / "audit.log"
    with TemporaryBroker({"audit.log.path": str(path)}, tls=True) as broker:
        host, _, port = broker.address.partition(":")
        client = socket.create_connection((host, int(port)), TIMEOUT_S)
        client.sendall(b"GET / HTTP/1.1")
        wait_for(lambda: steps, "a step of the handshake")
        reset(client)
        wait_for(lambda: steps[0]._raw is None, "the client's end")
        may_go_on.set()
        (line,) = lines_of(path, 1)
    assert (line["event"], line["host"]) == ("handshake failed", "127.0.0.1")
    assert "does the client use TLS?" in line["error"]


def test_a_client_that_resets_within_a_failing_login_has_its_line(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    slow = {"connection.failed.authentication.delay.ms": "600000"}
    with TemporaryBroker(settings(path) | slow) as broker:
        raw = Raw(broker)
        raw.handshake("PLAIN")
        token = b"\0mallory\0" + WRONG.encode()
        frame = struct.pack(">hhihi", 36, 0, 7, -1, len(token)) + token
        raw.stream.sendall(struct.pack(">i", len(frame)) + frame)

        def has_failed() -> bool:
            assert broker._node is not None
            found = [one.session.sasl for one in broker._node._connections]
            return any(one is not None and one.has_failed for one in found)

        wait_for(has_failed, "the refusal")
        reset(raw.stream)
        (line,) = lines_of(path, 1)
    assert (line["event"], line["user"]) == ("login failed", "mallory")
    assert line["error"] == "SASL_AUTHENTICATION_FAILED"


def test_a_name_with_a_line_break_is_refused_and_stays_on_one_line(tmp_path: Path) -> None:
    name = 'al\nice{"event": "topic deleted"}'
    path, issuer = tmp_path / "audit.log", Issuer(tmp_path)
    bearer = {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": issuer.keys.as_uri(),
    }
    with TemporaryBroker(settings(path) | bearer) as broker:
        for sub, code in ((name, ErrorCode.sasl_authentication_failed), ("alice", ErrorCode.none)):
            raw = Raw(broker)
            raw.handshake("OAUTHBEARER")
            answer = raw.token(f"n,,\1auth=Bearer {issuer.token(sub=sub)}\1\1".encode())
            if answer is not None and answer[1]:  # the server's reasons, before its refusal
                answer = raw.token(b"\1")
            assert answer is not None
            assert answer[0] == code
            raw.close()
    by_certificate = {"audit.log.path": str(path), "ssl.client.auth": "required"}
    with TemporaryBroker(by_certificate, tls=True) as broker:
        authority = broker.authority
        context = ssl.create_default_context(cafile=str(authority.certificate))
        context.load_cert_chain(authority.issue(name[:7]).pem)
        host, _, port = broker.address.partition(":")
        with (
            suppress(OSError),
            socket.create_connection((host, int(port)), TIMEOUT_S) as tcp,
            context.wrap_socket(tcp, server_hostname="127.0.0.1") as stream,
        ):
            assert stream.recv(1) == b""
        lines = lines_of(path, 2)
    assert [line["event"] for line in lines] == ["login failed", "handshake failed"]
    assert repr(name)[1:-1] in lines[0]["reason"], lines
    assert {line["principal"] for line in lines} == {"User:ANONYMOUS"}


def test_a_path_that_cannot_be_written_ends_the_start(tmp_path: Path) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text(
        f"log.dirs={tmp_path / 'data'}\nlisteners=PLAINTEXT://127.0.0.1:0\n"
        f"audit.log.path={tmp_path / 'none' / 'audit.log'}\n"
    )
    refused = strata("server", str(properties))
    assert (refused.returncode, "audit.log.path" in refused.stderr) == (2, True), refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
