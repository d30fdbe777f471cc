"""SASL PLAIN and SCRAM of a real broker: right, wrong, replayed, malformed and slow clients, ours and foreign."""

import asyncio
import socket
import struct
from base64 import b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kafka import KafkaConsumer, KafkaProducer
from tests.integration.server_process import strata

from stratalog.adapters.blocking_socket import BlockingNetwork
from stratalog.adapters.network import TcpNetwork
from stratalog.broker.network import connections
from stratalog.client.aio import Client
from stratalog.client.blocking import BlockingClient
from stratalog.client.calls import NewTopic
from stratalog.client.security import security_of
from stratalog.errors import ErrorCode, Rejected, UserError
from stratalog.testing.broker import TemporaryBroker
from stratalog.testing.temporary_cluster import TemporaryCluster
from stratalog.wire import scram

WORD = "planted-password"
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
USERS = f'{PLAIN_MODULE} required username="admin" password="{WORD}" user_admin="{WORD}" user_a.b="x y;z";'
ALL = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
TIMEOUT_S = 20


def settings(**more: str) -> dict[str, str]:
    return {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": ",".join(ALL),
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": USERS,
        "connection.failed.authentication.delay.ms": "1",
        **{name.replace("_", "."): value for name, value in more.items()},
    }


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporaryBroker]:
    place = tmp_path_factory.mktemp("broker") / "data"
    with TemporaryBroker(settings(), directory=place) as started:
        admin = AdminClient(librdkafka(started, "PLAIN", "admin", WORD))
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            info = ScramCredentialInfo(mechanism, 4096)
            for user in ("alice", "al,i=ce"):
                change = UserScramCredentialUpsertion(user, info, WORD.encode())
                admin.alter_user_scram_credentials([change])[user].result(TIMEOUT_S)
        yield started


def librdkafka(broker: TemporaryBroker, mechanism: str, user: str, password: str) -> dict[str, str]:
    return {
        "bootstrap.servers": broker.address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }


def ours(mechanism: str, user: str, password: str) -> dict[str, str]:
    module = PLAIN_MODULE if mechanism == "PLAIN" else SCRAM_MODULE
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{module} required username="{user}" password="{password}";',
    }


def user_of(mechanism: str) -> str:
    return "admin" if mechanism == "PLAIN" else "al,i=ce"


def principals(broker: TemporaryBroker) -> set[str]:
    assert broker._node is not None
    return {str(one.session.principal) for one in broker._node._connections}


@pytest.mark.parametrize("mechanism", ALL)
def test_both_shells_log_in_and_are_known_by_name(broker: TemporaryBroker, mechanism: str) -> None:
    security = security_of(ours(mechanism, user_of(mechanism), WORD))
    client = BlockingClient(BlockingNetwork(), broker.address, security=security)
    assert client.metadata().brokers
    assert f"User:{user_of(mechanism)}" in principals(broker)
    client.close()

    async def story() -> None:
        async with await Client.connect(TcpNetwork(), broker.address, security=security) as one:
            assert (await one.metadata()).brokers

    asyncio.run(story())


@pytest.mark.parametrize("mechanism", ALL)
def test_librdkafka_and_kafka_python_log_in(broker: TemporaryBroker, mechanism: str) -> None:
    user = user_of(mechanism)
    admin = AdminClient(librdkafka(broker, mechanism, user, WORD))
    assert admin.list_topics(timeout=TIMEOUT_S).brokers
    topic = f"python-{mechanism}"
    user = "admin" if mechanism == "PLAIN" else "alice"  # kafka-python escapes no name
    login = {
        "bootstrap_servers": broker.address,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
        "sasl_plain_password": WORD,
    }
    producer = KafkaProducer(**login)
    producer.send(topic, b"a book").get(TIMEOUT_S)
    producer.close()
    consumer = KafkaConsumer(
        topic, auto_offset_reset="earliest", consumer_timeout_ms=TIMEOUT_S * 1000, **login
    )
    assert next(consumer).value == b"a book"
    consumer.close()


@pytest.mark.parametrize("mechanism", ALL)
@pytest.mark.parametrize("wrong", ["password", "user", "no password", "longer password"])
def test_a_wrong_login_gets_no_answer_but_the_refusal(
    broker: TemporaryBroker, mechanism: str, wrong: str
) -> None:
    user, password = {
        "password": (user_of(mechanism), "other"),
        "user": ("mallory", WORD),
        "no password": ("mallory", "-"),
        "longer password": (user_of(mechanism), WORD + "x"),
    }[wrong]
    security = security_of(ours(mechanism, user, password))
    network = Unhurried()
    client = BlockingClient(network, broker.address, security=security)
    with pytest.raises(Rejected, match="invalid credentials") as no:
        client.metadata()
    assert no.value.code is ErrorCode.sasl_authentication_failed
    assert WORD not in str(no.value)
    assert broker.address in str(no.value)
    assert network.pauses == 0, "a login that is refused once is refused again"

    async def story() -> None:
        with pytest.raises(Rejected, match="invalid credentials"):
            await Client.connect(TcpNetwork(), broker.address, security=security)

    asyncio.run(story())


class Unhurried(BlockingNetwork):
    """Counts the pauses between attempts."""

    pauses = 0

    def pause(self, seconds: float) -> None:
        self.pauses += 1
        super().pause(seconds)


class Raw:
    """A connection that sends what it likes."""

    def __init__(self, broker: TemporaryBroker) -> None:
        host, _, port = broker.address.partition(":")
        self.stream = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)

    def ask(self, key: int, version: int, body: bytes) -> bytes | None:
        """Return the answer behind its correlation id; None once the broker has closed the connection."""
        frame = struct.pack(">hhih", key, version, 7, -1) + body
        try:
            self.stream.sendall(struct.pack(">i", len(frame)) + frame)
            head = self._exactly(4)
            return None if head is None else (self._exactly(*struct.unpack(">i", head)) or b"")[4:]
        except ConnectionError:
            return None

    def _exactly(self, size: int) -> bytes | None:
        data = b""
        while len(data) < size:
            received = self.stream.recv(size - len(data))
            if not received:
                return None
            data += received
        return data

    def handshake(self, mechanism: str, version: int = 1) -> int | None:
        answer = self.ask(17, version, struct.pack(">h", len(mechanism)) + mechanism.encode())
        return None if answer is None else int(struct.unpack_from(">h", answer)[0])

    def bare(self, token: bytes) -> bytes | None:
        """Return the server's token, both without a header; None once the broker has closed the connection."""
        try:
            self.stream.sendall(struct.pack(">i", len(token)) + token)
            head = self._exactly(4)
            return None if head is None else self._exactly(*struct.unpack(">i", head))
        except ConnectionError:
            return None

    def token(self, token: bytes) -> tuple[int, bytes] | None:
        """Return the error and the server's token."""
        answer = self.ask(36, 0, struct.pack(">i", len(token)) + token)
        if answer is None:
            return None
        code, size = struct.unpack_from(">hh", answer)
        at = 4 + max(size, 0)
        (length,) = struct.unpack_from(">i", answer, at)
        return code, answer[at + 4 : at + 4 + max(length, 0)]

    def is_open(self) -> bool:
        """Return whether a Metadata request is answered."""
        return self.ask(3, 4, struct.pack(">i?", 0, False)) is not None

    def close(self) -> None:
        self.stream.close()


def test_nothing_but_the_login_is_served_before_it(broker: TemporaryBroker) -> None:
    for key in (0, 1, 2, 3, 8, 10, 19, 32, 50, 51, 999):
        raw = Raw(broker)
        assert raw.ask(key, 0, b"") is None, key
        raw.close()
    raw = Raw(broker)
    assert raw.ask(18, 0, b"") is not None
    assert raw.handshake("PLAIN") == 0
    assert not raw.is_open()
    raw.close()


MALFORMED: Mapping[str, list[bytes]] = {
    "PLAIN": [
        b"",
        b"admin",
        b"\0admin",
        b"\0\0",
        b"\0admin\0" + WORD.encode() + b"\0",
        b"a.b\0admin\0" + WORD.encode(),
        b"\xff\0admin\0x",
        b"\0a.b\0",
        bytes(70_000),
    ],
    "SCRAM-SHA-256": [
        b"",
        b"n,,",
        b"n,,n=al=2Ci=3Dce",
        b"n,,n=al=2Ci=3Dce,r=",
        b"n,,n==,r=abc",
        b"y,,n=a,r=b",
        b"p=tls-unique,,n=a,r=b",
        b"n,,m=x,n=a,r=b",
        b"\xff\xfe",
    ],
}


@pytest.mark.parametrize("mechanism", MALFORMED)
def test_malformed_tokens_are_refused_and_the_connection_ends(
    broker: TemporaryBroker, mechanism: str
) -> None:
    for token in MALFORMED[mechanism]:
        raw = Raw(broker)
        assert raw.handshake(mechanism) == 0
        answer = raw.token(token)
        assert answer == (58, b""), token
        assert not raw.is_open()
        raw.close()


def test_an_unknown_mechanism_and_tokens_out_of_order_are_refused(broker: TemporaryBroker) -> None:
    for mechanism in ("GSSAPI", "OAUTHBEARER", "plain", ""):
        raw = Raw(broker)
        assert raw.handshake(mechanism) == 33
        assert not raw.is_open()
        raw.close()
    raw = Raw(broker)
    assert raw.token(b"\0admin\0" + WORD.encode()) == (34, b"")
    assert not raw.is_open()
    raw.close()
    raw = Raw(broker)
    assert raw.handshake("PLAIN") == 0
    assert raw.handshake("SCRAM-SHA-256") == 34
    assert not raw.is_open()
    raw.close()


def exchange(raw: Raw, nonce: str, password: str = WORD) -> tuple[bytes, tuple[int, bytes] | None]:
    """Run SCRAM; return the client's last message and its answer."""
    assert raw.handshake("SCRAM-SHA-256") == 0
    bare = f"n=al=2Ci=3Dce,r={nonce}"
    answer = raw.token(f"n,,{bare}".encode())
    assert answer is not None
    first = answer[1].decode()
    parts = dict(part.split("=", 1) for part in first.split(","))
    salted = scram.salted_password("sha256", password, scram.decoded(parts["s"]), int(parts["i"]))
    unsigned = scram.client_final("n,,", parts["r"])
    proof = scram.client_proof("sha256", salted, f"{bare},{first},{unsigned}")
    last = f"{unsigned},p={b64encode(proof).decode()}".encode()
    return last, raw.token(last)


def test_a_replayed_exchange_is_refused(broker: TemporaryBroker) -> None:
    raw = Raw(broker)
    recorded, answer = exchange(raw, "same")
    assert answer is not None
    assert answer[0] == 0
    assert raw.is_open()
    raw.close()
    again = Raw(broker)
    assert again.handshake("SCRAM-SHA-256") == 0
    assert again.token(b"n,,n=al=2Ci=3Dce,r=same") is not None
    assert again.token(recorded) == (58, b"")
    assert not again.is_open()
    again.close()


def test_every_changed_byte_of_a_proof_is_refused(broker: TemporaryBroker) -> None:
    random = Random(18)
    for _ in range(40):
        raw = Raw(broker)
        assert raw.handshake("SCRAM-SHA-256") == 0
        assert raw.token(b"n,,n=al=2Ci=3Dce,r=abc") is not None
        size = random.randrange(1, 200)
        answer = raw.token(random.randbytes(size))
        assert answer is None or answer == (58, b"")
        assert not raw.is_open()
        raw.close()


def test_an_unknown_user_looks_like_a_known_one_with_a_wrong_password(
    broker: TemporaryBroker,
) -> None:
    def first(user: bytes) -> dict[str, str]:
        raw = Raw(broker)
        assert raw.handshake("SCRAM-SHA-512") == 0
        answer = raw.token(b"n,,n=" + user + b",r=abc")
        raw.close()
        assert answer is not None
        assert answer[0] == 0
        return dict(part.split("=", 1) for part in answer[1].decode().split(","))

    known, unknown, again = first(b"al=2Ci=3Dce"), first(b"mallory"), first(b"mallory")
    assert unknown.keys() == known.keys()
    assert unknown["i"] == known["i"]
    assert unknown["s"] == again["s"], "a salt that changes gives the user away"
    assert len(unknown["s"]) == len(known["s"])
    assert unknown["r"] != again["r"]


def test_a_client_that_is_too_slow_or_sends_too_much_is_closed(
    broker: TemporaryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = Raw(broker)
    assert large.ask(18, 0, bytes(600_000)) is None
    large.close()
    slow = Raw(broker)
    assert slow.handshake("PLAIN") == 0
    monkeypatch.setattr(connections, "_LOGIN_S_MAX", 0.1)
    assert slow.stream.recv(1) == b""
    slow.close()


def test_a_session_ends_and_our_client_goes_on(tmp_path: Path) -> None:
    with TemporaryBroker(settings() | {"connections.max.reauth.ms": "1000"}) as broker:
        raw = Raw(broker)
        assert raw.handshake("PLAIN") == 0
        assert raw.token(b"\0admin\0" + WORD.encode()) == (0, b"")
        assert raw.is_open()
        assert raw.handshake("PLAIN") == 0, "a client may authenticate again"
        assert raw.token(b"\0a.b\0x y;z") == (58, b""), "but not as another user"
        assert not raw.is_open()
        raw.close()
        over = Raw(broker)
        assert over.handshake("PLAIN") == 0
        assert over.token(b"\0a.b\0x y;z") == (0, b"")
        broker.advance(1001)
        assert not over.is_open()
        over.close()
        config = tmp_path / "client.properties"
        login = ours("PLAIN", "admin", WORD) | {"bootstrap.servers": broker.address}
        config.write_text("".join(f"{name}={value}\n" for name, value in login.items()))
        done = strata("--config", str(config), "topic", "create", "t")
        assert done.returncode == 0, done.stderr
        assert WORD not in done.stdout + done.stderr


def test_scram_users_are_described_changed_and_deleted(broker: TemporaryBroker) -> None:
    admin = AdminClient(librdkafka(broker, "PLAIN", "admin", WORD))
    found = admin.describe_user_scram_credentials(["al,i=ce"])["al,i=ce"].result(TIMEOUT_S)
    assert {one.mechanism for one in found.scram_credential_infos} == {
        ScramMechanism.SCRAM_SHA_256,
        ScramMechanism.SCRAM_SHA_512,
    }
    with pytest.raises(KafkaException, match="no SCRAM credential"):
        admin.describe_user_scram_credentials(["mallory"])["mallory"].result(TIMEOUT_S)
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    upsert = UserScramCredentialUpsertion("bob", info, b"first")
    admin.alter_user_scram_credentials([upsert])["bob"].result(TIMEOUT_S)
    security = security_of(ours("SCRAM-SHA-256", "bob", "first"))
    client = BlockingClient(BlockingNetwork(), broker.address, security=security, timeout_s=5)
    assert client.metadata().brokers
    client.close()
    delete = UserScramCredentialDeletion("bob", ScramMechanism.SCRAM_SHA_256)
    admin.alter_user_scram_credentials([delete])["bob"].result(TIMEOUT_S)
    with pytest.raises(Rejected, match="invalid credentials"):
        BlockingClient(BlockingNetwork(), broker.address, security=security, timeout_s=5).metadata()
    few = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 100)
    with pytest.raises(KafkaException, match="4096 to 16384"):
        admin.alter_user_scram_credentials([UserScramCredentialUpsertion("bob", few, b"x")])[
            "bob"
        ].result(TIMEOUT_S)


def test_nodes_log_in_to_one_another() -> None:
    jaas = (
        f'{PLAIN_MODULE} required username="node" password="{WORD}" user_node="{WORD}" user_c="c";'
    )
    nodes = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.plaintext.plain.sasl.jaas.config": jaas,
        "listener.name.controller.plain.sasl.jaas.config": jaas,
    }
    security = security_of(ours("PLAIN", "c", "c"))

    async def story(address: str) -> None:
        async with await Client.connect(TcpNetwork(), address, security=security) as client:
            (made,) = await client.create_topics([NewTopic("t", 3, 3)])
            assert made.error == 0, made.message

    with TemporaryCluster(3, nodes) as three:
        asyncio.run(story(three.address))
        three.kill(1)
        three.restart(1)


NOT_STARTED = {
    "no mechanism": ({"sasl.enabled.mechanisms": ""}, "accepted: PLAIN, SCRAM"),
    "one that is not served": ({"sasl.enabled.mechanisms": "GSSAPI"}, "'GSSAPI' is not accepted"),
    "no users": (
        {"listener.name.sasl_plaintext.plain.sasl.jaas.config": ""},
        "plain.sasl.jaas.config is not set",
    ),
    "a malformed value": (
        {"listener.name.sasl_plaintext.plain.sasl.jaas.config": f'x required a="{WORD}"'},
        "this value is not accepted",
    ),
    "another module": (
        {"listener.name.sasl_plaintext.plain.sasl.jaas.config": USERS.replace("Plain", "Scram")},
        "this value is not accepted; accepted: .*PlainLoginModule",
    ),
}


@pytest.mark.parametrize("case", NOT_STARTED)
def test_a_listener_without_usable_users_does_not_start(case: str) -> None:
    change, message = NOT_STARTED[case]
    with pytest.raises(UserError, match=message) as refused:
        TemporaryBroker(settings() | change).start()
    assert WORD not in str(refused.value)
