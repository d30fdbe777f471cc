"""Settings of a listener that change while it listens: users, mechanisms, keys, authorities, versions of TLS.

Method: a client of another listener, or of the same one, alters the node; the next connection shows the effect.
`tests/sim/test_broker_settings.py` holds the dynamic settings complete, and names these tests.
"""

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from tests.integration.test_sasl import USERS, WORD, Raw, librdkafka
from tests.integration.test_sasl import settings as sasl_settings
from tests.integration.test_tls import TIMEOUT_S, ask, settings, trusting, until

from stratalog.testing.broker import TemporaryBroker
from stratalog.testing.certificates import Authority, Identity


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ca")


def alter(admin: AdminClient, values: dict[str, str | None]) -> None:
    """Set settings of the broker, or delete them."""
    kinds = AlterConfigOpType
    entries = [
        ConfigEntry(name, value, incremental_operation=kinds.DELETE if value is None else kinds.SET)
        for name, value in values.items()
    ]
    node = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=entries)
    admin.incremental_alter_configs([node])[node].result(TIMEOUT_S)


def test_mechanisms_and_users_change_at_work() -> None:
    with TemporaryBroker(sasl_settings()) as broker:
        admin = AdminClient(librdkafka(broker, "PLAIN", "admin", WORD))

        def token(user: str, password: str) -> tuple[int, bytes] | None:
            raw = Raw(broker)
            assert raw.handshake("PLAIN") == 0
            answer = raw.token(f"\0{user}\0{password}".encode())
            raw.close()
            return answer

        users = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
        waiting = Raw(broker)  # a connection from before the change meets the new users, too
        assert waiting.ask(18, 0, b"") is not None
        assert token("new", "n") == (58, b"")
        alter(admin, {users: USERS.replace("user_a.b", "user_new=n user_a.b")})
        until(lambda: token("new", "n") == (0, b""))
        assert waiting.handshake("PLAIN") == 0
        assert waiting.token(b"\0new\0n") == (0, b"")
        waiting.close()
        alter(admin, {users: USERS.replace("Plain", "Other")})  # unusable: the previous users stay
        assert token("new", "n") == (0, b"")

        def handshake(mechanism: str) -> int | None:
            raw = Raw(broker)
            code = raw.handshake(mechanism)
            raw.close()
            return code

        alter(admin, {"listener.name.sasl_plaintext.sasl.enabled.mechanisms": "SCRAM-SHA-256"})
        until(lambda: handshake("PLAIN") == 33)
        assert handshake("SCRAM-SHA-256") == 0


class Altered:
    """A broker whose SSL listener is altered by a client of another one."""

    def __init__(self, broker: TemporaryBroker) -> None:
        self._admin = AdminClient({"bootstrap.servers": broker.address})
        self._place = second_listener(broker)

    def alter(self, values: dict[str, str | None], prefix: str = "") -> None:
        alter(self._admin, {prefix + name: value for name, value in values.items()})

    def served(self, trusted: Authority, client: Identity | None, most: str = "TLSv1_3") -> str:
        """Return the cipher suite of an answered request, "" where the handshake fails."""
        context = trusting(trusted, client)
        context.maximum_version = ssl.TLSVersion[most]
        try:
            with (
                socket.create_connection(self._place, timeout=TIMEOUT_S) as plain_stream,
                context.wrap_socket(plain_stream, server_hostname="127.0.0.1") as stream,
            ):
                ask(stream)
                cipher = stream.cipher()
                assert cipher is not None
                return cipher[0]
        except (ssl.SSLError, ConnectionError, AssertionError):
            return ""


@pytest.fixture
def altered(authority: Authority) -> Iterator[Altered]:
    listeners = {"listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0"}
    with TemporaryBroker(settings(authority, authority.issue("server")) | listeners) as broker:
        yield Altered(broker)


def test_settings_of_a_listener_change_at_work(altered: Altered, authority: Authority) -> None:
    """Each setting decides about the next connection."""
    alice = authority.issue("alice")
    assert altered.served(authority, alice, "TLSv1_2")
    altered.alter({"ssl.enabled.protocols": "TLSv1.3"})
    until(lambda: not altered.served(authority, alice, "TLSv1_2"))
    assert altered.served(authority, alice)
    altered.alter({"ssl.enabled.protocols": None})
    until(lambda: bool(altered.served(authority, alice, "TLSv1_2")))
    suite = "ECDHE-ECDSA-AES128-GCM-SHA256"
    assert altered.served(authority, alice, "TLSv1_2") != suite
    altered.alter({"ssl.cipher.suites": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"})
    until(lambda: altered.served(authority, alice, "TLSv1_2") == suite)
    altered.alter({"ssl.cipher.suites": None})
    assert not altered.served(authority, None)
    altered.alter({"ssl.client.auth": "none"})
    until(lambda: bool(altered.served(authority, None)))


def test_keys_of_a_listener_change_at_work(
    altered: Altered, authority: Authority, tmp_path: Path
) -> None:
    """Each setting decides about the next connection, alone or with its file."""
    other, others_clients = Authority(tmp_path / "other"), Authority(tmp_path / "clients")
    alice, bob = authority.issue("alice"), others_clients.issue("bob")
    own = "listener.name.ssl.ssl.keystore."
    altered.alter({"location": str(other.issue("first").pem)}, own)
    until(lambda: bool(altered.served(other, alice)))
    assert not altered.served(authority, alice)
    store = str(authority.pkcs12(authority.issue("second"), "p12"))
    altered.alter({"location": store, "password": "p12"}, own)
    until(lambda: bool(altered.served(authority, alice)))
    locked = other.issue("locked")
    locked.pem.write_bytes(with_password(locked, b"key") + locked.certificate.read_bytes())
    altered.alter({"keystore.location": str(locked.pem), "key.password": "key"}, own[:-9])
    until(lambda: bool(altered.served(other, alice)))
    text = authority.issue("text")
    pem = {"key": text.key.read_text(), "certificate.chain": text.certificate.read_text()}
    altered.alter({"location": ""} | pem, own)
    until(lambda: bool(altered.served(authority, alice)))

    trust = "listener.name.ssl.ssl.truststore."
    assert not altered.served(authority, bob)
    authorities = others_clients.certificate.read_text()
    altered.alter({"location": "", "certificates": authorities}, trust)
    until(lambda: bool(altered.served(authority, bob)))
    assert not altered.served(authority, alice)
    store = str(authority.pkcs12(authority.issue("third"), "trusted"))
    altered.alter({"location": store, "password": "trusted", "certificates": None}, trust)
    until(lambda: bool(altered.served(authority, alice)))
    assert not altered.served(authority, bob)


def second_listener(broker: TemporaryBroker) -> tuple[str, int]:
    assert broker._node is not None
    bound = broker._node._listening[-1]._bound[-1][1]
    return "127.0.0.1", bound.port


def with_password(identity: Identity, password: bytes) -> bytes:
    """Return the key as PEM text under a password."""
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(identity.key.read_bytes(), None)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password),
    )
