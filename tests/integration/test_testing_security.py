"""A test's broker with TLS and users: real clients log in with each mechanism, and others do not."""

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AclBinding, AdminClient, ConfigResource, NewTopic
from confluent_kafka.admin import AclOperation as Operation
from confluent_kafka.admin import AclPermissionType as Permission
from confluent_kafka.admin import ResourcePatternType as Pattern
from confluent_kafka.admin import ResourceType as Kind

from stratalog import read
from stratalog.errors import UserError
from stratalog.testing import TemporaryBroker, TemporaryCluster, cluster

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
HARD = 'a"\\ b;,=é'
"""Every character that JAAS or SCRAM treats specially."""
USERS = {"alice": HARD, "bob": "b"}
MODULES = "org.apache.kafka.common.security"
TIMEOUT_S = 10


def client(
    broker: TemporaryBroker,
    user: str,
    password: str,
    mechanism: str,
    *,
    tls: bool = False,
    of: TemporaryCluster | None = None,
) -> AdminClient:
    settings = {
        "bootstrap.servers": broker.address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
        "log_level": 0,
    }
    if tls:
        settings |= {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str((of or broker).authority.certificate),
        }
    return AdminClient(settings)


@pytest.mark.parametrize("tls", [False, True])
def test_users_log_in_with_each_mechanism_and_again_after_reset(tls: bool) -> None:
    with TemporaryBroker(tls=tls, users=USERS) as broker:
        for mechanism in MECHANISMS:
            for user, password in USERS.items():
                client(broker, user, password, mechanism, tls=tls).list_topics(timeout=TIMEOUT_S)
            with pytest.raises(KafkaException):
                client(broker, "alice", "b", mechanism, tls=tls).list_topics(timeout=1)
        broker.reset()
        client(broker, "alice", HARD, "SCRAM-SHA-512", tls=tls).list_topics(timeout=TIMEOUT_S)
        broker.kill()
        broker.restart()
        client(broker, "bob", "b", "SCRAM-SHA-256", tls=tls).list_topics(timeout=TIMEOUT_S)


def test_rights_of_users_are_settings() -> None:
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:alice",
    }
    with TemporaryBroker(settings, users=USERS) as broker:
        alice = client(broker, "alice", HARD, "PLAIN")
        bob = client(broker, "bob", "b", "SCRAM-SHA-256")
        for made in alice.create_topics([NewTopic("t", 1)]).values():
            made.result(TIMEOUT_S)
        assert set(bob.list_topics(timeout=TIMEOUT_S).topics) == set()
        described = ("User:bob", "*", Operation.DESCRIBE, Permission.ALLOW)
        binding = AclBinding(Kind.TOPIC, "t", Pattern.LITERAL, *described)
        for added in alice.create_acls([binding]).values():
            added.result(TIMEOUT_S)
        assert set(bob.list_topics(timeout=TIMEOUT_S).topics) == {"t"}
        for created in bob.create_topics([NewTopic("of-bob", 1)]).values():
            with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
                created.result(TIMEOUT_S)


def test_users_log_in_to_each_node_of_a_cluster_also_after_a_kill() -> None:
    with cluster(3, tls=True, users=USERS) as three:
        for node, broker in three.brokers.items():
            made = client(broker, "alice", HARD, MECHANISMS[node - 1], tls=True, of=three)
            assert len(made.list_topics(timeout=TIMEOUT_S).brokers) == 3
        every = client(three.brokers[1], "bob", "b", "SCRAM-SHA-512", tls=True, of=three)
        every.create_topics([NewTopic("t", 3, 3)])["t"].result(TIMEOUT_S)
        with pytest.raises(KafkaException):
            client(three.brokers[2], "bob", "x", "PLAIN", tls=True, of=three).list_topics(timeout=1)
        three.kill(1)
        three.restart(1)
        again = client(three.brokers[1], "bob", "b", "SCRAM-SHA-256", tls=True, of=three)
        assert "t" in again.list_topics(timeout=TIMEOUT_S).topics


@pytest.mark.parametrize(("tls", "users"), [(True, None), (False, USERS)])
def test_a_cluster_has_only_tls_or_only_users(tls: bool, users: dict[str, str] | None) -> None:
    with cluster(2, tls=tls, users=users) as two:
        for broker in two.brokers.values():
            if tls:
                secured = certified(broker, two, "alice")
                assert len(secured.list_topics(timeout=TIMEOUT_S).brokers) == 2
            else:
                made = client(broker, "bob", "b", "SCRAM-SHA-512")
                assert len(made.list_topics(timeout=TIMEOUT_S).brokers) == 2
            with pytest.raises(KafkaException):
                AdminClient({"bootstrap.servers": broker.address, "log_level": 0}).list_topics(
                    timeout=1
                )


def certified(
    broker: TemporaryBroker, of: TemporaryBroker | TemporaryCluster, name: str
) -> AdminClient:
    identity = of.authority.issue(name)
    return AdminClient(
        {
            "bootstrap.servers": broker.address,
            "security.protocol": "SSL",
            "ssl.ca.location": str(of.authority.certificate),
            "ssl.certificate.location": str(identity.certificate),
            "ssl.key.location": str(identity.key),
        }
    )


def test_a_clients_certificate_is_its_principal() -> None:
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:CN=alice;User:ANONYMOUS",
    }
    with TemporaryBroker(settings, tls=True) as broker:
        alice, bob = (certified(broker, broker, name) for name in ("alice", "bob"))
        for made in alice.create_topics([NewTopic("t", 1)]).values():
            made.result(TIMEOUT_S)
        assert set(bob.list_topics(timeout=TIMEOUT_S).topics) == set()


def test_a_wrong_password_of_a_test_is_answered_at_once() -> None:
    with TemporaryBroker(users=USERS) as broker:
        wanted = ConfigResource(ConfigResource.Type.BROKER, "1")
        admin = client(broker, "bob", "b", "PLAIN")
        described = admin.describe_configs([wanted])[wanted]
        delay = described.result(TIMEOUT_S)["connection.failed.authentication.delay.ms"]
        assert delay.value == "0"


def test_our_own_reader_logs_in_over_tls() -> None:
    with TemporaryBroker(tls=True, users=USERS) as broker:
        admin = client(broker, "bob", "b", "PLAIN", tls=True)
        for made in admin.create_topics([NewTopic("t", 1)]).values():
            made.result(TIMEOUT_S)
        security = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": f'{MODULES}.scram.ScramLoginModule required username="bob" password="b";',
            "ssl.truststore.location": str(broker.authority.certificate),
        }
        with read("t", bootstrap_servers=broker.address, security=security) as found:
            assert found.read_all().num_rows == 0


@pytest.mark.parametrize("users", [{"a b": "x"}, {"": "x"}, {"a": ""}, {"a": "x\ny"}])
def test_a_user_that_cannot_log_in_is_refused(users: dict[str, str]) -> None:
    with pytest.raises(UserError, match="users: "):
        TemporaryBroker(users=users)
