"""Delegation tokens of a real broker: rights on them, and logins with them.

Method: clients of this project on listeners with and without SASL. `tests/compat/test_delegation_tokens.py` has those
of Apache Kafka.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.waiting import wait_for

from stratalog.adapters.blocking_socket import BlockingNetwork
from stratalog.client.acls import create_acls
from stratalog.client.blocking import BlockingClient
from stratalog.client.calls import NewTopic, create_topics
from stratalog.client.security import security_of
from stratalog.client.tokens import create_token, describe_tokens, expire_token, renew_token
from stratalog.errors import ErrorCode, Rejected, Unavailable
from stratalog.metadata.acls import Acl
from stratalog.metadata.rights import Operation, PatternType, Permission, Resource
from stratalog.testing.broker import TemporaryBroker
from stratalog.testing.temporary_cluster import TemporaryCluster
from stratalog.wire import scram

WORD, SECRET = "planted-password", "planted-secret"
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
NAMES = ("admin", "alice", "bob", "carol", "dave", "erin", "frank")
USERS = f"{PLAIN_MODULE} required " + " ".join(f'user_{one}="{WORD}"' for one in NAMES) + ";"
SCRAM_AND_PLAIN = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"
SETTINGS = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": SCRAM_AND_PLAIN,
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": USERS,
    "connection.failed.authentication.delay.ms": "1",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin",
    "delegation.token.secret.key": SECRET,
    "delegation.token.expiry.check.interval.ms": "100",
}


def as_user(address: str, user: str) -> BlockingClient:
    jaas = f'{PLAIN_MODULE} required username="{user}" password="{WORD}";'
    return client(address, "PLAIN", jaas)


def by_token(
    address: str, token_id: str, key: bytes, mechanism: str = "SCRAM-SHA-256"
) -> BlockingClient:
    password = scram.encoded(key)
    jaas = f'{SCRAM_MODULE} required username="{token_id}" password="{password}" tokenauth="true";'
    return client(address, mechanism, jaas)


def client(address: str, mechanism: str, jaas: str) -> BlockingClient:
    security = security_of(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": jaas,
        }
    )
    return BlockingClient(BlockingNetwork(), address, security=security)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("broker")


@pytest.fixture(scope="module")
def broker(place: Path) -> Iterator[TemporaryBroker]:
    settings = {**SETTINGS, "audit.log.path": str(place / "audit.log")}
    with TemporaryBroker(settings, directory=place / "data") as started:
        yield started


def code(client: BlockingClient, call: Any) -> ErrorCode:
    try:
        client.call(call)
    except Rejected as error:
        return error.code
    return ErrorCode.none


def right(user: str, operation: Operation, resource: Resource, name: str) -> Acl:
    pattern, permission = PatternType.LITERAL, Permission.ALLOW
    return Acl(resource, name, pattern, f"User:{user}", "*", operation, permission)


def ids(client: BlockingClient, owners: list[str] | None = None) -> set[str]:
    return {one.token_id for one in client.call(describe_tokens(owners))}


def test_a_token_is_created_renewed_seen_and_ended_by_owner_and_renewers(
    broker: TemporaryBroker,
) -> None:
    with as_user(broker.address, "alice") as alice, as_user(broker.address, "bob") as bob:
        mine = alice.call(create_token(renewers=["User:bob"], lifetime_ms=3_600_000))
        assert (mine.owner, mine.requester) == ("User:alice", "User:alice")
        assert mine.ends_ms == mine.expires_ms == mine.issued_ms + 3_600_000
        assert mine in alice.call(describe_tokens())
        assert mine.token_id in ids(bob), "a renewer sees it"
        assert mine.token_id in ids(bob, ["User:alice"])
        assert mine.token_id in ids(bob, ["User:bob"]), "Kafka looks at owners and renewers"
        assert ids(bob, ["User:carol"]) == ids(bob, []) == set()
        ends = bob.call(renew_token(mine.key, 60_000))
        assert mine.issued_ms < ends < mine.ends_ms
        with as_user(broker.address, "carol") as carol:
            assert ids(carol) == set()
            for change in (renew_token, expire_token):
                assert code(carol, change(mine.key)) is ErrorCode.delegation_token_owner_mismatch
        with as_user(broker.address, "admin") as admin:
            assert mine.token_id in ids(admin)
            assert code(admin, expire_token(mine.key)) is ErrorCode.delegation_token_owner_mismatch
        assert alice.call(expire_token(mine.key, 1_000)) < ends
        bob.call(expire_token(mine.key))
        assert mine.token_id not in ids(alice)
        assert code(bob, renew_token(mine.key)) is ErrorCode.delegation_token_not_found
        group = ["Group:readers"]
        assert code(alice, create_token(renewers=group)) is ErrorCode.invalid_principal_type
        assert code(alice, create_token(renewers=["User:a\nb"])) is ErrorCode.invalid_request
        # No look at all of them: the first ones beyond the limit decide.
        many = ["User:bob"] * 5000 + group
        assert code(alice, create_token(renewers=many)) is ErrorCode.invalid_request


def test_acls_allow_tokens_of_others(broker: TemporaryBroker, place: Path) -> None:
    refused = ErrorCode.delegation_token_authorization_failed
    with as_user(broker.address, "admin") as admin, as_user(broker.address, "dave") as dave:
        assert code(dave, create_token("User:frank")) is refused
        rights = [
            right("dave", Operation.CREATE_TOKENS, Resource.USER, "User:frank"),
            right("dave", Operation.CREATE_TOKENS, Resource.USER, "Group:frank"),
        ]
        admin.call(create_acls(rights))
        assert code(dave, create_token("Group:frank")) is ErrorCode.invalid_principal_type
        assert code(dave, create_token("User:admin")) is refused
        denied = '"api": "CreateDelegationToken", "denied": ["CREATE_TOKENS USER User:admin"]'
        wait_for(lambda: denied in (place / "audit.log").read_text(), "the denial's line")
        token = dave.call(create_token("User:frank"))
        assert (token.owner, token.requester) == ("User:frank", "User:dave")
        assert token.token_id in ids(dave), "the requester sees it"
        assert code(dave, renew_token(token.key)) is ErrorCode.delegation_token_owner_mismatch
        with as_user(broker.address, "erin") as erin:
            other = admin.call(create_token("User:frank"))
            assert ids(erin) == set()
            admin.call(
                create_acls(
                    [
                        right(
                            "erin",
                            Operation.DESCRIBE,
                            Resource.DELEGATION_TOKEN,
                            other.token_id,
                        )
                    ]
                )
            )
            assert ids(erin) == {other.token_id}
            admin.call(
                create_acls([right("erin", Operation.DESCRIBE_TOKENS, Resource.USER, "User:frank")])
            )
            assert ids(erin) >= {other.token_id, token.token_id}


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_client_logs_in_with_a_token_and_is_its_owner(
    broker: TemporaryBroker, mechanism: str
) -> None:
    address = broker.address
    with as_user(address, "admin") as admin, as_user(address, "alice") as alice:
        admin.call(
            create_acls([right("alice", Operation.CREATE, Resource.CLUSTER, "kafka-cluster")])
        )
        token = alice.call(create_token(renewers=["User:bob"]))
        with by_token(address, token.token_id, token.key, mechanism) as agent:
            (made,) = agent.call(
                create_topics([NewTopic(f"of-alice-{mechanism}")], validate_only=False)
            )
            assert made.error is ErrorCode.none
            for call in (create_token(), describe_tokens(), renew_token(token.key)):
                found = code(agent, call)
                assert found is ErrorCode.delegation_token_request_not_allowed
        with by_token(address, token.token_id, token.key, mechanism) as idle:
            assert idle.metadata().brokers
            assert code(idle, expire_token(token.key)) is not ErrorCode.none
        alice.call(expire_token(token.key))
        refused(address, token.token_id, token.key, mechanism)


def refused(address: str, token_id: str, key: bytes, mechanism: str = "SCRAM-SHA-256") -> None:
    with by_token(address, token_id, key, mechanism) as stranger, pytest.raises(Rejected) as error:
        stranger.metadata()
    assert error.value.code is ErrorCode.sasl_authentication_failed


def test_wrong_tokens_are_refused_as_any_wrong_login(broker: TemporaryBroker, place: Path) -> None:
    address = broker.address
    with as_user(address, "alice") as alice:
        token, other = alice.call(create_token()), alice.call(create_token())
        refused(address, token.token_id, other.key)
        refused(address, "alice", token.key)
        refused(address, "no\nsuch=id,", token.key)
        password = scram.encoded(token.key)
        jaas = f'{SCRAM_MODULE} required username="{token.token_id}" password="{password}";'
        with client(address, "SCRAM-SHA-256", jaas) as stranger, pytest.raises(Rejected):
            stranger.metadata()  # without tokenauth it is a user's name
        alice.call(renew_token(token.key))
        alice.call(expire_token(token.key))
    audit = place / "audit.log"
    wait_for(lambda: changed_in(audit).count(token.token_id) == 2, "the last line")
    text = (place / "audit.log").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    failed = [line["user"] for line in lines if line["event"] == "login failed"]
    assert failed[-4:] == [token.token_id, "alice", "no\nsuch=id,", token.token_id]
    events = [line for line in lines if line.get("token") == token.token_id]
    assert [line["event"] for line in events] == ["token created", *["token changed"] * 2]
    assert events[0]["owner"] == events[1]["principal"] == "User:alice"
    for planted in (WORD, SECRET, password, token.key.hex()):
        assert planted not in text


def changed_in(audit: Path) -> list[str]:
    """Return the tokens that the audit, which a thread writes, says were changed."""
    lines = audit.read_text().rpartition("\n")[0].splitlines()
    return [one["token"] for one in map(json.loads, lines) if one["event"] == "token changed"]


def test_a_session_and_a_token_end_with_the_tokens_time() -> None:
    with TemporaryBroker(SETTINGS) as broker, as_user(broker.address, "alice") as alice:
        hour_ms = 3_600_000
        token = alice.call(create_token(lifetime_ms=2 * hour_ms))
        agent = by_token(broker.address, token.token_id, token.key)
        agent.metadata()
        (link,) = agent._links.values()
        assert 0 < link.ends_s - time.monotonic() < 2 * 3600
        broker.advance(2 * hour_ms + 1)
        # The session is over: the broker closes its connection, and refuses the next login.
        with pytest.raises((Rejected, Unavailable)):
            agent.metadata()
        agent.close()
        refused(broker.address, token.token_id, token.key)
        with as_user(broker.address, "alice") as again:
            wait_for(lambda: ids(again) == set(), "the active controller removes it")


def test_a_key_of_no_token_is_named(broker: TemporaryBroker) -> None:
    with as_user(broker.address, "alice") as alice:
        for change in (renew_token, expire_token):
            with pytest.raises(Rejected, match="the brokers know no token of this key"):
                alice.call(change(b"k"))


@pytest.mark.parametrize("kind", ["plain text", "TLS", "no secret"])
def test_clients_without_an_identity_handle_no_tokens(kind: str) -> None:
    secret = {"delegation.token.secret.key": SECRET}
    expected = ErrorCode.delegation_token_request_not_allowed
    if kind == "no secret":
        with (
            TemporaryBroker(SETTINGS | {"delegation.token.secret.key": ""}) as broker,
            as_user(broker.address, "alice") as alice,
        ):
            for call in all_calls():
                assert code(alice, call) is ErrorCode.delegation_token_auth_disabled
            refused(broker.address, "t", b"k")
        return
    with TemporaryBroker(secret, tls=kind == "TLS") as broker:
        security = security_of(tls(broker) if kind == "TLS" else {})
        with BlockingClient(BlockingNetwork(), broker.address, security=security) as stranger:
            for call in all_calls():
                assert code(stranger, call) is expected


def tls(broker: TemporaryBroker) -> dict[str, str]:
    return {
        "security.protocol": "SSL",
        "ssl.truststore.location": str(broker.authority.certificate),
    }


def all_calls() -> list[Any]:
    return [create_token(), describe_tokens(), renew_token(b"k"), expire_token(b"k")]


def test_a_clients_certificate_is_an_identity() -> None:
    settings = {"delegation.token.secret.key": SECRET, "ssl.client.auth": "required"}
    with TemporaryBroker(settings, tls=True) as broker:
        own = {"ssl.keystore.location": str(broker.authority.issue("alice").pem)}
        security = security_of(tls(broker) | own)
        with BlockingClient(BlockingNetwork(), broker.address, security=security) as alice:
            assert alice.call(create_token()).owner == "User:CN=alice"


def test_describing_the_configuration_hides_the_secret(broker: TemporaryBroker) -> None:
    with as_user(broker.address, "admin") as admin:
        (found,) = admin.describe_configs([(4, "1")])
        values = {one.name: one.value for one in found.entries}
    assert values["delegation.token.secret.key"] is None
    assert values["delegation.token.expiry.check.interval.ms"] == "100"
    assert SECRET not in repr(found)


def active_controller(three: TemporaryCluster) -> int:
    """Wait for a node that is the active controller, and return its id."""
    found: list[int] = []

    def is_found() -> bool:
        for node, broker in three.brokers.items():
            quorum = None if broker._node is None else broker._node._quorum
            if quorum is not None and quorum.active is not None:
                found.append(node)
        return bool(found)

    wait_for(is_found, "an active controller")
    return found[0]


def test_tokens_survive_restarts_and_the_controllers_end() -> None:
    """Method: three nodes, a token, the end of the active controller, a renewal by another node, a restart."""
    listeners = {"delegation.token.secret.key": SECRET, "sasl.enabled.mechanisms": SCRAM_AND_PLAIN}
    users = dict.fromkeys(NAMES, WORD)
    with TemporaryCluster(3, listeners, users=users) as three:
        with as_user(three.address, "alice") as alice:
            token = alice.call(create_token(renewers=["User:bob"]))
        ends = []
        for node in three.brokers:
            with as_user(three.brokers[node].address, "bob") as bob:
                wait_for(lambda bob=bob: ids(bob) == {token.token_id}, "each node knows it")
                ends.append(bob.call(renew_token(token.key, 60_000 + node)))
        assert ends == sorted(ends)
        active = active_controller(three)
        three.kill(active)
        other = next(node for node in three.brokers if node != active)
        address = three.brokers[other].address
        with as_user(address, "bob") as bob:
            wait_for(lambda: not code(bob, renew_token(token.key)), "another controller")
        with by_token(address, token.token_id, token.key) as agent:
            assert agent.metadata().brokers
        three.restart(active)
        address = three.brokers[active].address
        with by_token(address, token.token_id, token.key) as agent:
            assert agent.metadata().brokers
        with as_user(address, "alice") as alice:
            (kept,) = alice.call(describe_tokens())
            assert (kept.token_id, kept.key, kept.renewers) == (
                token.token_id,
                token.key,
                ("User:bob",),
            )
            alice.call(expire_token(token.key))
        for node in three.brokers:
            with as_user(three.brokers[node].address, "bob") as bob:
                wait_for(lambda bob=bob: ids(bob) == set(), "no node knows it")
