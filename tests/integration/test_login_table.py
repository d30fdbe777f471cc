"""Goal: each way to log in x {right, wrong, expired, replayed, malformed, too slow}: only a right login is served.

Method: real brokers over TLS, one with each mechanism of SASL and one that asks for certificates. Clients keep each
byte that they send, so that a whole connection can be replayed.
"""

import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.integration.issuer import Issuer
from tests.integration.test_sasl import MALFORMED, PLAIN_MODULE, TIMEOUT_S, WORD, Raw, principals
from tests.integration.waiting import wait_for

from stratalog.adapters import tls_server
from stratalog.adapters.blocking_socket import BlockingNetwork
from stratalog.broker.network import connections
from stratalog.client.blocking import BlockingClient
from stratalog.client.security import security_of
from stratalog.client.tokens import create_token
from stratalog.testing.broker import TemporaryBroker
from stratalog.testing.certificates import Authority
from stratalog.wire import scram

HOUR_MS = 3_600_000
REFUSED = (58, b"")
TOKENS = {f"delegation token, {name}": name for name in scram.MECHANISMS}
CERTIFICATE = "certificate"
WAYS = ("PLAIN", *scram.MECHANISMS, "OAUTHBEARER", *TOKENS, CERTIFICATE)


class Tape:
    """A stream over TLS that keeps each encrypted byte that it sends."""

    def __init__(self, address: str, context: ssl.SSLContext) -> None:
        host, _, port = address.partition(":")
        self.sent = b""
        self._socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=host)
        self._finish(self._tls.do_handshake)

    def sendall(self, data: bytes) -> None:
        self._tls.write(data)
        self._flush()

    def recv(self, size: int) -> bytes:
        """Return received bytes, b"" at the stream's end. Raises ConnectionError for an alert."""
        return self._finish(lambda: self._tls.read(size)) or b""

    def close(self) -> None:
        self._socket.close()

    def _finish(self, step: Callable[[], Any]) -> Any:
        """Return a step's result; None where the broker has ended the stream before it."""
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                self._flush()
                data = self._socket.recv(1 << 16)
                if not data:
                    return None
                self._in.write(data)
            except ssl.SSLZeroReturnError:
                return None
            except ssl.SSLError as error:
                raise ConnectionError(error.reason) from None
            finally:
                self._flush()

    def _flush(self) -> None:
        data = self._out.read()
        self.sent += data
        self._socket.sendall(data)


class Taped(Raw):
    """Requests of Kafka's protocol over a `Tape`."""

    def __init__(self, broker: TemporaryBroker, certificate: Path | None = None) -> None:
        context = ssl.create_default_context(cafile=str(broker.authority.certificate))
        if certificate is not None:
            context.load_cert_chain(certificate)
        self.stream: Any = Tape(broker.address, context)


class Login(NamedTuple):
    """What a client shows. `issuer` signs the tokens of OAUTHBEARER, `tokens` are delegation tokens."""

    broker: TemporaryBroker
    issuer: Issuer
    tokens: list[Any]

    def secret(self, way: str) -> str:
        """Return the right secret."""
        if way == "OAUTHBEARER":
            return self.issuer.token()
        return scram.encoded(self.tokens[0].key) if way in TOKENS else WORD

    def wrong(self, way: str) -> str:
        if way == "OAUTHBEARER":
            return self.issuer.token(iss="other")
        return scram.encoded(self.tokens[1].key) if way in TOKENS else WORD + "x"

    def begun(self, raw: Raw, way: str) -> tuple[str, tuple[int, bytes] | None]:
        """Send the first message of SCRAM; return it without its header, and the broker's answer."""
        user = self.tokens[0].token_id if way in TOKENS else "alice"
        bare = f"n={user},r=abc" + (",tokenauth=true" if way in TOKENS else "")
        return bare, raw.token(f"n,,{bare}".encode())

    def show(self, raw: Raw, way: str, secret: str) -> tuple[bytes, tuple[int, bytes] | None]:
        """Log in; return the client's last message, and the broker's code and token."""
        mechanism = TOKENS.get(way, way)
        assert raw.handshake(mechanism) == 0
        if way == "PLAIN":
            message = f"\0alice\0{secret}".encode()
            return message, raw.token(message)
        if way == "OAUTHBEARER":
            message = f"n,,\1auth=Bearer {secret}\1\1".encode()
            answer = raw.token(message)
            return message, raw.token(b"\1") if answer is not None and answer[1] else answer
        bare, answer = self.begun(raw, way)
        if answer is None or answer[0]:
            return bare.encode(), answer
        first, hash_name = answer[1].decode(), scram.MECHANISMS[mechanism][1]
        parts = dict(part.split("=", 1) for part in first.split(","))
        salt = scram.decoded(parts["s"])
        salted = scram.salted_password(hash_name, secret, salt, int(parts["i"]))
        unsigned = scram.client_final("n,,", parts["r"])
        proof = scram.client_proof(hash_name, salted, f"{bare},{first},{unsigned}")
        last = f"{unsigned},p={scram.encoded(proof)}".encode()
        return last, raw.token(last)


@contextmanager
def started(place: Path) -> Iterator[Login]:
    """Start a broker with each mechanism, the user alice, and two delegation tokens of hers."""
    place.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        issuer = stack.enter_context(Issuer(place))
        settings = {
            "sasl.enabled.mechanisms": ",".join(("PLAIN", *scram.MECHANISMS, "OAUTHBEARER")),
            "sasl.oauthbearer.jwks.endpoint.url": issuer.keys.as_uri(),
            "sasl.oauthbearer.expected.issuer": "issuer",
            "sasl.oauthbearer.expected.audience": "kafka",
            "delegation.token.secret.key": "planted-secret",
            "connections.max.reauth.ms": str(HOUR_MS),
            "audit.log.path": str(place / "audit.log"),
        }
        broker = stack.enter_context(TemporaryBroker(settings, tls=True, users={"alice": WORD}))
        as_alice = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{PLAIN_MODULE} required username="alice" password="{WORD}";',
            "ssl.truststore.location": str(broker.authority.certificate),
        }
        security = security_of(as_alice)
        with BlockingClient(BlockingNetwork(), broker.address, security=security) as client:
            tokens = [client.call(create_token(lifetime_ms=2 * HOUR_MS)) for _ in range(2)]
        yield Login(broker, issuer, tokens)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logins")


@pytest.fixture(scope="module")
def login(place: Path) -> Iterator[Login]:
    with started(place) as found:
        yield found


@pytest.fixture(scope="module")
def mutual(place: Path) -> Iterator[TemporaryBroker]:
    settings = {"ssl.client.auth": "required", "audit.log.path": str(place / "mutual.log")}
    with TemporaryBroker(settings, tls=True) as broker:
        yield broker


@pytest.mark.parametrize("way", WAYS)
def test_right(login: Login, mutual: TemporaryBroker, way: str) -> None:
    if way == CERTIFICATE:
        raw, name, broker = Taped(mutual, mutual.authority.issue("alice").pem), "CN=alice", mutual
    else:
        raw, name, broker = Taped(login.broker), "alice", login.broker
        _, answer = login.show(raw, way, login.secret(way))
        assert answer is not None
        assert answer[0] == 0
    with closing(raw):
        assert raw.is_open()
        assert f"User:{name}" in principals(broker)


@pytest.mark.parametrize("way", WAYS)
def test_wrong(login: Login, mutual: TemporaryBroker, place: Path, way: str) -> None:
    if way == CERTIFICATE:
        stranger = Authority(place / "other").issue("alice").pem
        for certificate in (None, stranger):
            assert not is_served(mutual, certificate)
        return
    with closing(Taped(login.broker)) as raw:
        assert login.show(raw, way, login.wrong(way))[1] == REFUSED
        assert not raw.is_open()


def is_served(mutual: TemporaryBroker, certificate: Path | None) -> bool:
    with suppress(ConnectionError), closing(Taped(mutual, certificate)) as raw:
        return raw.is_open()
    return False


@pytest.mark.parametrize("way", WAYS)
def test_expired(mutual: TemporaryBroker, tmp_path: Path, way: str) -> None:
    """A certificate and a token have an end; of a password only the session ends (KIP-368)."""
    if way == CERTIFICATE:
        assert not is_served(mutual, mutual.authority.issue("late", days=-1).pem)
        return
    with started(tmp_path) as own, closing(Taped(own.broker)) as raw:
        secret = own.secret(way)
        assert (own.show(raw, way, secret)[1] or REFUSED)[0] == 0
        assert raw.is_open()
        own.broker.advance(2 * HOUR_MS + 1)
        assert not raw.is_open(), "the session is over"
        with closing(Taped(own.broker)) as again:
            is_alive = way in ("PLAIN", *scram.MECHANISMS)
            assert ((own.show(again, way, secret)[1] or REFUSED)[0] == 0) == is_alive
            assert again.is_open() == is_alive


@pytest.mark.parametrize("way", WAYS)
def test_replayed(login: Login, mutual: TemporaryBroker, place: Path, way: str) -> None:
    """No recorded connection is served again, and no proof of SCRAM.

    The message of PLAIN, and that of OAUTHBEARER until its token ends, are the secret itself: TLS alone protects them.
    """
    is_certificate = way == CERTIFICATE
    broker = mutual if is_certificate else login.broker
    audit = place / ("mutual.log" if is_certificate else "audit.log")
    with closing(Taped(broker, broker.authority.issue("eve").pem)) as raw:
        last = b"" if is_certificate else login.show(raw, way, login.secret(way))[0]
        assert raw.is_open()
        recorded = raw.stream.sent
    failed = failed_handshakes(audit)
    host, _, port = broker.address.partition(":")
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as replay:
        replay.sendall(recorded)
        with suppress(ConnectionError):
            while replay.recv(1 << 16):
                pass
    wait_for(lambda: failed_handshakes(audit) > failed, "a line about the replay")
    if way in scram.MECHANISMS or way in TOKENS:
        with closing(Taped(broker)) as raw:
            assert raw.handshake(TOKENS.get(way, way)) == 0
            login.begun(raw, way)
            assert raw.token(last) == REFUSED
            assert not raw.is_open()


def failed_handshakes(audit: Path) -> int:
    return audit.read_text().count('"event": "handshake failed"')


def malformed(way: str) -> list[bytes]:
    """Return messages that are none of the mechanism."""
    if way == "OAUTHBEARER":
        return [b"", b"n,,", b"n,,\1auth=Bearer\1\1", b"\xff\xfe", b"n,,\1" + b"a=b\1" * 20_000]
    if way in TOKENS:
        ends = [b",tokenauth=true,", b",tokenauth", b",=true", b",tokenauth=true\0,,"]
        return [b"n,,n=x,r=a" + end for end in ends] + [b"n,,tokenauth=true,n=x,r=a"]
    return MALFORMED["PLAIN" if way == "PLAIN" else "SCRAM-SHA-256"]


@pytest.mark.parametrize("way", WAYS)
def test_malformed(login: Login, mutual: TemporaryBroker, way: str) -> None:
    if way == CERTIFICATE:
        host, _, port = mutual.address.partition(":")
        for message in (b"\x16\x03\x01\x00\x05hello", b"GET / HTTP/1.1\r\n\r\n", bytes(100)):
            with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as stream:
                stream.sendall(message)
                with suppress(ConnectionError):
                    while data := stream.recv(1 << 16):
                        assert data[0] == 0x15, "an alert"
        return
    for message in malformed(way):
        with closing(Taped(login.broker)) as raw:
            assert raw.handshake(TOKENS.get(way, way)) == 0
            assert raw.token(message) == REFUSED, message
            assert not raw.is_open()
    if way in scram.MECHANISMS or way in TOKENS:
        for last in (b"", b"c=biws", b"c=biws,r=abc,p=", b"c=biws,r=abc,p=!", bytes(100)):
            with closing(Taped(login.broker)) as raw:
                assert raw.handshake(TOKENS.get(way, way)) == 0
                assert login.begun(raw, way)[1] is not None
                assert raw.token(last) == REFUSED, last
                assert not raw.is_open()


@pytest.mark.parametrize("way", WAYS)
def test_too_slow(
    login: Login, mutual: TemporaryBroker, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == CERTIFICATE:
        monkeypatch.setattr(tls_server, "HANDSHAKE_S", 0.2)
        host, _, port = mutual.address.partition(":")
        with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as stream:
            stream.sendall(struct.pack(">BHH", 22, 0x301, 100))  # 100 bytes follow, and do not come
            assert stream.recv(1) == b""
        return
    with closing(Taped(login.broker)) as raw:
        assert raw.handshake(TOKENS.get(way, way)) == 0
        if way in scram.MECHANISMS or way in TOKENS:
            assert login.begun(raw, way)[1] is not None
        monkeypatch.setattr(connections, "_LOGIN_S_MAX", 0.0)
        assert raw.stream.recv(1) == b""
