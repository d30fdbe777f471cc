"""Goal: delegation tokens mean on our broker what they mean on Apache Kafka, and Kafka's tools and clients use them.

Method: one story runs against both, each with SASL, StandardAuthorizer and a secret; the codes, owners and lives of all
answers must be equal. Then Kafka's command and its producer work with our broker.
"""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.broker_process import broker_process
from tests.compat.apache_kafka import apache_kafka
from tests.compat.mixed_cluster import MixedCluster, Product
from tests.compat.test_logins import At
from tests.compat.test_mixed_clusters import CONTROLLER, KAFKAS, OURS, SERVED_BY_BOTH
from tests.compat.tools import java_tool
from tests.integration.test_delegation_tokens import PLAIN_MODULE, SCRAM_MODULE, as_user, by_token
from tests.integration.test_sasl import Raw
from tests.integration.waiting import wait_for

from stratalog.client.acls import create_acls
from stratalog.client.blocking import BlockingClient
from stratalog.client.calls import NewTopic, create_topics
from stratalog.client.tokens import Token, create_token, describe_tokens, expire_token, renew_token
from stratalog.errors import Rejected
from stratalog.metadata.acls import Acl
from stratalog.metadata.rights import Operation, PatternType, Permission, Resource
from stratalog.wire import scram
from stratalog.wire.envelope import decode_response, encode_request
from stratalog.wire.messages.create_delegation_token import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
)
from stratalog.wire.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from stratalog.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from stratalog.wire.messages.renew_delegation_token import RenewDelegationTokenRequest

pytestmark = [pytest.mark.serial, pytest.mark.timeout(300)]
WORD, SECRET = "planted-password", "planted-secret"
USERS = ("admin", "alice", "bob", "carol")
SCRAMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
SETTINGS = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "sasl.enabled.mechanisms": ",".join(("PLAIN", *SCRAMS)),
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.plaintext.plain.sasl.jaas.config": f'{PLAIN_MODULE} required username="admin" '
    f'password="{WORD}" ' + " ".join(f'user_{one}="{WORD}"' for one in USERS) + ";",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin;User:ANONYMOUS",
    "delegation.token.secret.key": SECRET,
    "delegation.token.max.lifetime.ms": "86400000",
    "delegation.token.expiry.time.ms": "3600000",
    "connection.failed.authentication.delay.ms": "1",
} | {
    f"listener.name.plaintext.{name.lower()}.sasl.jaas.config": f"{SCRAM_MODULE} required;"
    for name in SCRAMS
}
HOUR_MS, DAY_MS = 3_600_000, 86_400_000


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Yield our address and Kafka's."""
    named = {name.replace(".", "__"): value for name, value in SETTINGS.items()}
    with (
        apache_kafka(tmp_path_factory.mktemp("kafka"), **named) as theirs,
        broker_process(tmp_path_factory.mktemp("ours"), tier__url="", **named) as ours,
    ):
        yield ours.address, theirs


class Story:
    """Users of one broker, and what they were answered."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.trace: list[Any] = []
        self._clients: dict[str, BlockingClient] = {}

    def ask(self, user: str, call: Any) -> Any:
        """Return the answer; None for a refusal, of which the trace has the code."""
        if user not in self._clients:
            self._clients[user] = as_user(self.address, user)
        return self.ask_by(self._clients[user], user, call)

    def ask_by(self, client: BlockingClient, name: str, call: Any) -> Any:
        try:
            answer = client.call(call)
        except Rejected as error:
            self.trace.append((name, error.code.name))
            return None
        self.trace.append((name, shape(answer)))
        return answer

    def ids(self, user: str, owners: list[str] | None = None) -> set[str]:
        if user not in self._clients:
            self._clients[user] = as_user(self.address, user)
        return {one.token_id for one in self._clients[user].call(describe_tokens(owners))}

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


def shape(answer: Any) -> Any:
    """Return what of an answer is the same on every broker."""
    if isinstance(answer, Token):
        lives = answer.expires_ms - answer.issued_ms, answer.ends_ms - answer.issued_ms
        sizes = len(answer.token_id), len(answer.key)
        return answer.owner, answer.requester, answer.renewers, lives, sizes
    if isinstance(answer, list):
        return sorted(shape(one) for one in answer)
    return type(answer).__name__


def right(user: str, operation: Operation, resource: Resource, name: str) -> Acl:
    return Acl(
        resource, name, PatternType.LITERAL, f"User:{user}", "*", operation, Permission.ALLOW
    )


def tell(story: Story) -> None:
    """Create, see, renew and end tokens, by clients that may and clients that may not."""
    ask = story.ask
    mine = ask("alice", create_token(renewers=["User:bob"]))
    wait_for(lambda: mine.token_id in story.ids("alice"), "a new token")
    for user in USERS:
        for owners in (None, ["User:alice"], ["User:bob"], ["User:carol"], []):
            ask(user, describe_tokens(owners))
    ask("alice", create_token(lifetime_ms=5 * HOUR_MS))
    ask("alice", create_token(lifetime_ms=HOUR_MS // 2))
    ask("alice", create_token(lifetime_ms=9 * DAY_MS))
    ask("alice", create_token(renewers=["Group:readers"]))
    ask("bob", create_token("User:alice"))
    ask("admin", create_token("User:alice", ["User:carol"]))
    for user in ("carol", "admin"):
        for change in (renew_token, expire_token):
            ask(user, change(mine.key))
    ask("alice", renew_token(b"no token"))
    ask("alice", renew_token(b""))
    first = ask("bob", renew_token(mine.key, 60_000))
    wait_for(lambda: end_of(story, mine) == first, "a renewal")
    assert mine.issued_ms + 60_000 <= first < mine.issued_ms + 120_000
    longest = ask("bob", renew_token(mine.key, 9 * DAY_MS))
    assert longest < mine.issued_ms + 2 * HOUR_MS
    ask("alice", expire_token(mine.key, 9 * DAY_MS))
    wait_for(lambda: end_of(story, mine) == mine.ends_ms, "an end as late as it may be")
    ask("bob", expire_token(mine.key))
    wait_for(lambda: mine.token_id not in story.ids("alice"), "its end")
    ask("bob", expire_token(mine.key))
    short = ask("alice", create_token(lifetime_ms=1))
    wait_for(lambda: short.token_id in story.ids("alice"), "a short token")
    wait_for(lambda: time.time() * 1000 > short.ends_ms + 1, "its end")
    for call in (renew_token(short.key), expire_token(short.key, 5), expire_token(short.key)):
        ask("alice", call)


def end_of(story: Story, token: Token) -> int:
    found = {one.token_id: one for one in story._clients["alice"].call(describe_tokens())}
    return found[token.token_id].expires_ms if token.token_id in found else 0


def tell_of_rights(story: Story) -> None:
    """Let ACLs permit tokens of others: to create them, and to see one or all of an owner's."""
    ask = story.ask
    rights = right("carol", Operation.CREATE_TOKENS, Resource.USER, "User:alice")
    ask("carol", create_token("User:alice"))
    ask("admin", create_acls([rights]))
    token = eventually(story, "carol", create_token("User:alice"))
    wait_for(lambda: token.token_id in story.ids("alice"), "a token by another")
    ask("carol", renew_token(token.key))
    ask("carol", describe_tokens(["User:alice"]))
    assert token.token_id not in story.ids("bob")
    one = right("bob", Operation.DESCRIBE, Resource.DELEGATION_TOKEN, token.token_id)
    ask("admin", create_acls([one]))
    wait_for(lambda: story.ids("bob") == {token.token_id}, "a right on one token")
    every = right("bob", Operation.DESCRIBE_TOKENS, Resource.USER, "User:alice")
    ask("admin", create_acls([every]))
    wait_for(lambda: story.ids("bob") == story.ids("alice"), "a right on all of an owner's")
    ask("bob", describe_tokens())


def eventually(story: Story, user: str, call: Any) -> Any:
    """Ask until the broker has the ACL; only the last answer is in the trace."""
    found: list[Any] = []

    def is_answered() -> bool:
        mark = len(story.trace)
        found.append(story.ask(user, call))
        if found[-1] is None:
            del story.trace[mark:]
        return found[-1] is not None

    wait_for(is_answered, f"an ACL of {user}")
    return found[-1]


def tell_of_logins(story: Story) -> None:
    """Log in with a token: its client is the owner, and may handle no tokens."""
    alice = "alice"
    story.ask("admin", create_acls([right(alice, Operation.CREATE, Resource.TOPIC, "by-token")]))
    token = story.ask(alice, create_token())
    wait_for(lambda: token.token_id in story.ids(alice), "a new token")
    for mechanism in SCRAMS:
        with by_token(story.address, token.token_id, token.key, mechanism) as agent:
            calls = (create_token(), describe_tokens(), renew_token(token.key), expire_token(b""))
            for call in calls:
                story.ask_by(agent, mechanism, call)
            wanted = create_topics([NewTopic("by-token"), NewTopic("other")], validate_only=True)
            created = sorted((one.name, one.error.name) for one in agent.call(wanted))
            story.trace.append(created)
    for name, key in (
        (token.token_id, b"wrong"),
        ("no-such-token", token.key),
        (alice, WORD.encode()),
    ):
        with by_token(story.address, name, key) as stranger:
            story.ask_by(stranger, "stranger", describe_tokens())
    story.ask(alice, expire_token(token.key))
    wait_for(lambda: token.token_id not in story.ids(alice), "its end")
    with by_token(story.address, token.token_id, token.key) as late:
        story.ask_by(late, "late", describe_tokens())


@pytest.mark.parametrize("telling", [tell, tell_of_rights, tell_of_logins])
def test_the_answers_are_apache_kafkas(both: tuple[str, str], telling: Any) -> None:
    traces = []
    for address in both:
        story = Story(address)
        telling(story)
        story.close()
        traces.append(story.trace)
    ours, theirs = traces
    assert len(ours) == len(theirs)
    assert [pair for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1]] == []
    assert any(isinstance(one, tuple) and "delegation_token" in str(one[1]) for one in ours)


VARIES = ("issue_timestamp_ms", "expiry_timestamp_ms", "max_timestamp_ms", "token_id", "hmac")


def bodies(version: int) -> list[Any]:
    """Return requests that are refused, and one that is not."""
    group = CreatableRenewers(principal_type="Group", principal_name="readers")
    other = {"owner_principal_type": "User", "owner_principal_name": "admin"}
    mine = {"owner_principal_type": None, "owner_principal_name": None}
    owner = DescribeDelegationTokenOwner(principal_type="User", principal_name="mallory")
    found: list[Any] = [
        CreateDelegationTokenRequest(renewers=[group], max_lifetime_ms=-1, **mine),
        CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=60_000, **mine),
        DescribeDelegationTokenRequest(owners=[]),
        DescribeDelegationTokenRequest(owners=[owner]),
    ]
    if version > 2:
        found.append(CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1, **other))
    else:
        found += [
            RenewDelegationTokenRequest(hmac=b"none", renew_period_ms=1),
            ExpireDelegationTokenRequest(hmac=b"none", expiry_time_period_ms=1),
        ]
    return found


def whole_answer(raw: Raw, version: int, body: Any) -> dict[str, Any]:
    """Return all fields of an answer; of those that vary between brokers, whether they are set."""
    raw.stream.sendall(b"".join(map(bytes, encode_request(version, 7, "c", body))))
    size = raw._exactly(4)
    assert size is not None
    frame = raw._exactly(int.from_bytes(size))
    assert frame is not None
    answer = decode_response(body.KEY, version, memoryview(frame))[1]
    fields: dict[str, Any] = msgspec.to_builtins(answer)
    if not answer.error_code:
        fields |= {name: bool(fields[name]) for name in VARIES if name in fields}
    return fields


@pytest.mark.parametrize("version", [1, 2, 3])
def test_each_version_has_apache_kafkas_fields(both: tuple[str, str], version: int) -> None:
    answers = []
    for address in both:
        raw = Raw(At(address))
        raw.handshake("PLAIN")
        assert raw.token(f"\0alice\0{WORD}".encode()) == (0, b"")
        answers.append([whole_answer(raw, version, body) for body in bodies(version)])
        raw.close()
    ours, theirs = answers
    assert ours == theirs


@pytest.mark.big
@pytest.mark.timeout(600)
@pytest.mark.parametrize("controllers", ["kafka", "strata"])
def test_tokens_count_on_both_brokers_of_one_cluster(tmp_path: Path, controllers: Product) -> None:
    """Method: a broker of each product forwards to the controller, and admits the other's tokens."""
    settings = dict.fromkeys((CONTROLLER, KAFKAS, OURS), SETTINGS)
    products: dict[int, Product] = {KAFKAS: "kafka", OURS: "strata"}
    with MixedCluster(
        tmp_path, {CONTROLLER: controllers}, products, features=SERVED_BY_BOTH, settings=settings
    ) as nodes:
        for node in settings:
            nodes.start(node)
        stories = [Story(nodes.address(node)) for node in products]
        for here, there in (stories, stories[::-1]):
            token = eventually(here, "alice", create_token(renewers=["User:bob"]))
            wait_for(lambda t=token, s=there: t.token_id in s.ids("bob"), "the other's token")
            (found,) = there._clients["bob"].call(describe_tokens())
            assert found == token
            for mechanism in SCRAMS:
                with by_token(there.address, token.token_id, token.key, mechanism) as agent:
                    assert agent.metadata().brokers
                    there.ask_by(agent, "agent", create_token())
            assert there.trace[-1] == ("agent", "delegation_token_request_not_allowed")
            assert there.ask("bob", renew_token(token.key, 60_000)) < token.expires_ms
            assert there.ask("carol", expire_token(token.key)) is None
            assert there.trace[-1] == ("carol", "delegation_token_owner_mismatch")
            there.ask("bob", expire_token(token.key))
            wait_for(lambda s=here: not s.ids("alice"), "its end")
        for story in stories:
            story.close()


def test_kafkas_command_and_producer_use_our_tokens(both: tuple[str, str], tmp_path: Path) -> None:
    address = both[0]

    def command(user: str, *words: str) -> str:
        config = tmp_path / f"{user}.properties"
        config.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
            f'sasl.jaas.config={PLAIN_MODULE} required username="{user}" password="{WORD}";\n'
        )
        at = ("--bootstrap-server", address, "--command-config", str(config))
        done = java_tool("org.apache.kafka.tools.DelegationTokenCommand", *at, *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    admin = as_user(address, "admin")
    admin.call(create_topics([NewTopic("java")], validate_only=False))
    admin.call(create_acls([right("carol", Operation.WRITE, Resource.TOPIC, "java")]))
    said = command(
        "carol", "--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob"
    )
    (token,) = (
        one for one in admin.call(describe_tokens(["User:bob"])) if one.owner == "User:carol"
    )
    password = scram.encoded(token.key)
    assert token.token_id in said
    assert password in said
    assert token.token_id in command("bob", "--describe", "--owner-principal", "User:carol")
    renewed = command("bob", "--renew", "--hmac", password, "--renew-time-period", "60000")
    assert re.search(r"renew.*20\d\d-\d\d-\d\d", renewed), renewed

    config = tmp_path / "token.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n"
        f'sasl.jaas.config={SCRAM_MODULE} required username="{token.token_id}" '
        f'password="{password}" tokenauth="true";\n'
    )
    at = ("--bootstrap-server", address, "--command-config", str(config), "--topic", "java")
    done = java_tool("org.apache.kafka.tools.ConsoleProducer", *at, input_text="a book\n")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ERROR" not in done.stdout + done.stderr
    offsets = java_tool(
        "org.apache.kafka.tools.GetOffsetShell",
        "--bootstrap-server",
        address,
        "--command-config",
        str(tmp_path / "admin.properties"),
    )
    assert offsets is not None
    ended = command("carol", "--expire", "--hmac", password, "--expiry-time-period", "-1")
    assert "expire" in ended
    assert token.token_id not in {one.token_id for one in admin.call(describe_tokens())}
    admin.close()
