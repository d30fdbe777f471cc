"""Goal: each way to log in x {right, wrong, expired, replayed, malformed, too slow} ends as with Apache Kafka 4.3.

Method: the table of `tests/integration/test_login_table.py` on plain sockets over TLS, against both. Equal are codes,
and whether the client is served afterwards. Kafka has no limit of 30 s for a login: `connections.max.idle.ms` counts.
"""

import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.broker_process import broker_process
from tests.compat.apache_kafka import apache_kafka
from tests.compat.test_logins import SCRAMS, SETTINGS
from tests.integration.issuer import Issuer
from tests.integration.test_login_table import (
    CERTIFICATE,
    TOKENS,
    WAYS,
    Login,
    Taped,
    malformed,
)
from tests.integration.test_sasl import PLAIN_MODULE, WORD
from tests.integration.waiting import wait_for

from stratalog.adapters.blocking_socket import BlockingNetwork
from stratalog.client.blocking import BlockingClient
from stratalog.client.security import security_of
from stratalog.client.tokens import Token, create_token, describe_tokens
from stratalog.client.users import Credential, set_credentials
from stratalog.testing.certificates import Authority
from stratalog.wire import scram

pytestmark = [pytest.mark.serial, pytest.mark.timeout(300)]
LONG = 1000
SESSION_MS, SHORT_S, IDLE_MS, TIMEOUT_S = 10_000, 5, 6_000, 60
ALERT = 0x15
"""A type of TLS's records."""
SASL = tuple(way for way in WAYS if way != CERTIFICATE)
PROVEN = (*scram.MECHANISMS, *TOKENS)
Outcome = tuple[int | None, bool]
"""The code of the last message, and whether the client is served afterwards."""


class Place(NamedTuple):
    """A broker of either product, as `Login` and `Taped` want one."""

    address: str
    authority: Authority


class Timed(Taped):
    """Keeps the session's lifetime that the last answer of a login has (version 1)."""

    lifetime_ms = 0

    def token(self, token: bytes) -> tuple[int, bytes] | None:
        answer = self.ask(36, 1, struct.pack(">i", len(token)) + token)
        if answer is None:
            return None
        code, size = struct.unpack_from(">hh", answer)
        rest = answer[4 + max(size, 0) :]
        length, self.lifetime_ms = *struct.unpack_from(">i", rest), *struct.unpack(">q", rest[-8:])
        return code, rest[4 : 4 + length]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def started(
    stack: ExitStack, factory: pytest.TempPathFactory, authority: Authority, **settings: str
) -> list[Place]:
    """Start ours and Kafka's with equal settings."""
    named = {
        "ssl.keystore.location": str(authority.issue("server").pem),
        "ssl.keystore.type": "PEM",
        "ssl.truststore.location": str(authority.certificate),
        "ssl.truststore.type": "PEM",
        "connections.max.idle.ms": str(IDLE_MS),
        **settings,
    }
    named = {name.replace(".", "__"): value for name, value in named.items()}
    ours = broker_process(factory.mktemp("ours"), tier__url="", **named)
    theirs = apache_kafka(factory.mktemp("kafka"), **named)
    return [
        Place(stack.enter_context(ours).address, authority),
        Place(stack.enter_context(theirs), authority),
    ]


@pytest.fixture(scope="module")
def logins(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[list[Login]]:
    """Yield both with each mechanism of SASL, the user alice, and two delegation tokens of hers."""
    issuer = Issuer(tmp_path_factory.mktemp("issuer"))
    keys = issuer.keys.as_uri()
    settings = SETTINGS | {
        "listener.security.protocol.map": "PLAINTEXT:SASL_SSL,CONTROLLER:PLAINTEXT",
        "sasl.oauthbearer.jwks.endpoint.url": keys,
        "delegation.token.secret.key": "planted-secret",
        "delegation.token.expiry.check.interval.ms": "1000",
        "connections.max.reauth.ms": str(SESSION_MS),
    }
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("JDK_JAVA_OPTIONS", f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys}")
        found = []
        for place in started(stack, tmp_path_factory, authority, **settings):
            with as_alice(place) as client:
                for one in SCRAMS:
                    client.call(set_credentials([Credential("alice", one, 4096, WORD)]))
                tokens = [client.call(create_token()) for _ in range(2)]
                wait_for_token(client, tokens[-1])
            found.append(Login(place, issuer, tokens))
        yield found


def as_alice(place: Place) -> BlockingClient:
    settings = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{PLAIN_MODULE} required username="alice" password="{WORD}";',
        "ssl.truststore.location": str(place.authority.certificate),
    }
    return BlockingClient(BlockingNetwork(), place.address, security=security_of(settings))


def wait_for_token(client: BlockingClient, token: Token) -> None:
    def is_known() -> bool:
        return token.token_id in [one.token_id for one in client.call(describe_tokens())]

    wait_for(is_known, "a new token")


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[list[Place]]:
    """Yield both with a listener that asks for certificates."""
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:SSL,CONTROLLER:PLAINTEXT",
        "ssl.client.auth": "required",
    }
    with ExitStack() as stack:
        yield started(stack, tmp_path_factory, authority, **settings)


def outcome(login: Login, way: str, secret: str) -> Outcome:
    with closing(Taped(login.broker)) as raw:
        answer = login.show(raw, way, secret)[1]
        return None if answer is None else answer[0], raw.is_open()


@pytest.mark.parametrize("way", SASL)
def test_right_and_wrong(logins: list[Login], way: str) -> None:
    assert [outcome(one, way, one.secret(way)) for one in logins] == [(0, True)] * 2
    assert [outcome(one, way, one.wrong(way)) for one in logins] == [(58, False)] * 2


@pytest.mark.parametrize("way", SASL)
def test_replayed(logins: list[Login], way: str) -> None:
    """A proof of SCRAM is worth nothing again; the message of PLAIN and a token are the secret itself."""
    for login in logins:
        with closing(Taped(login.broker)) as raw:
            last = login.show(raw, way, login.secret(way))[0]
            assert raw.is_open()
        with closing(Taped(login.broker)) as raw:
            assert raw.handshake(TOKENS.get(way, way)) == 0
            if way in PROVEN:
                login.begun(raw, way)
            found = code(raw.token(last)), raw.is_open()
        assert found == ((58, False) if way in PROVEN else (0, True))


@pytest.mark.parametrize("way", SASL)
def test_malformed(logins: list[Login], way: str) -> None:
    found: list[list[Any]] = [[], []]
    for login, into in zip(logins, found, strict=True):
        # The long message overflows the stack of Java's regular expressions, and Kafka closes without a code.
        for message in [one for one in malformed(way) if len(one) < LONG]:
            with closing(Taped(login.broker)) as raw:
                assert raw.handshake(TOKENS.get(way, way)) == 0
                into.append((message[:40], code(raw.token(message)), raw.is_open()))
        if way in PROVEN:
            for last in (b"", b"c=biws", b"c=biws,r=abc,p=", b"c=biws,r=abc,p=!", bytes(100)):
                with closing(Taped(login.broker)) as raw:
                    assert raw.handshake(TOKENS.get(way, way)) == 0
                    login.begun(raw, way)
                    into.append((last, code(raw.token(last)), raw.is_open()))
    assert found[0] == found[1]


def code(answer: tuple[int, bytes] | None) -> int | None:
    return None if answer is None else answer[0]


def test_sessions_and_secrets_expire(logins: list[Login]) -> None:
    """A session ends at its time or at its token's, whatever the mechanism; a token that has ended is refused."""
    for login in logins:
        with as_alice(login.broker) as client:
            token = client.call(create_token(lifetime_ms=SHORT_S * 1000))
            wait_for_token(client, token)
        short = login._replace(tokens=[token, login.tokens[1]])
        with ExitStack() as stack:
            streams: dict[str, Timed] = {}
            for way in SASL:
                streams[way] = raw = stack.enter_context(closing(Timed(login.broker)))
                token_ends = time.time() + SHORT_S
                is_token = way == "OAUTHBEARER"
                secret = login.issuer.token(exp=token_ends) if is_token else short.secret(way)
                assert code(short.show(raw, way, secret)[1]) == 0
                if is_token or way in TOKENS:
                    assert 0 < raw.lifetime_ms <= SHORT_S * 1000
                else:
                    assert raw.lifetime_ms == SESSION_MS
            plain = streams["PLAIN"]
            wait_for(lambda raw=plain: not raw.is_open(), "the end of a session")
            assert [way for way, raw in streams.items() if raw.is_open()] == []
        for way in TOKENS:
            assert outcome(short, way, short.secret(way)) == (58, False)
        assert outcome(short, "OAUTHBEARER", secret_of_old(login.issuer)) == (58, False)


def secret_of_old(issuer: Issuer) -> str:
    return issuer.token(iat=time.time() - 600, exp=time.time() - 300)


def test_too_slow(logins: list[Login], mutual: list[Place]) -> None:
    """A client that falls silent in the middle of its login, or handshake, gets nothing until the connection's end."""
    with ExitStack() as stack:
        streams: list[Any] = []
        for login in logins:
            for way in SASL:
                raw = stack.enter_context(closing(Taped(login.broker)))
                assert raw.handshake(TOKENS.get(way, way)) == 0
                if way in PROVEN:
                    assert code(login.begun(raw, way)[1]) == 0
                streams.append(raw.stream)
        for place in mutual:
            streams.append(stack.enter_context(connected(place)))
            streams[-1].sendall(b"\x16\x03\x01\0\x64")  # 100 bytes follow, and do not come
        assert [stream.recv(1) for stream in streams] == [b""] * len(streams)


def connected(place: Place) -> socket.socket:
    host, _, port = place.address.partition(":")
    return socket.create_connection((host, int(port)), timeout=TIMEOUT_S)


CERTIFICATES: dict[str, Callable[[Authority, Path], Path | None]] = {
    "right": lambda authority, _: authority.issue("alice").pem,
    "none": lambda *_: None,
    "of another authority": lambda _, place: Authority(place).issue("alice").pem,
    "expired": lambda authority, _: authority.issue("late", days=-1).pem,
    "not valid yet": lambda authority, _: authority.issue("early", begins=2).pem,
}


@pytest.mark.parametrize("case", CERTIFICATES)
def test_certificates(mutual: list[Place], tmp_path: Path, case: str) -> None:
    certificate = CERTIFICATES[case](mutual[0].authority, tmp_path)
    assert [is_served(place, certificate) for place in mutual] == [case == "right"] * 2


def is_served(place: Place, certificate: Path | None) -> bool:
    with suppress(ConnectionError), closing(Taped(place, certificate)) as raw:
        return raw.is_open()
    return False


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", bytes(100), b"\x16\x03\x01\0\5hello"])
def test_other_protocols_get_an_alert_at_most(mutual: list[Place], sent: bytes) -> None:
    for place in mutual:
        with connected(place) as stream, suppress(ConnectionError):
            stream.sendall(sent)
            while data := stream.recv(1 << 16):
                assert data[0] == ALERT, data
