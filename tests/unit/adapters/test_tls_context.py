"""Keys and certificates become OpenSSL's contexts, and unusable ones become one line that names setting and remedy."""

import ssl
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa, x25519
from OpenSSL import SSL

from stratalog.adapters.tls_context import client_context
from stratalog.adapters.tls_listener import listener_context
from stratalog.adapters.tls_session import TlsFailed, TlsSession
from stratalog.adapters.tls_settings import state_of
from stratalog.errors import UserError
from stratalog.ports import Store, Tls
from stratalog.testing.certificates import Authority, Identity

CONTEXTS: dict[str, Callable[[Tls], object]] = {
    "listener": listener_context,
    "client": client_context,
}
SETTING = "listener.name.x.ssl.keystore"
PASSWORD = "planted-password"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ca")


@pytest.fixture(scope="module")
def server(authority: Authority) -> Identity:
    return authority.issue("server")


def own(store: Store) -> Tls:
    return Tls(own=store)


@pytest.mark.parametrize("side", CONTEXTS)
def test_pem_files_pem_text_and_pkcs12_are_read(
    authority: Authority, server: Identity, side: str
) -> None:
    one_line = (
        " ".join(server.key.read_text().split("\n")),
        " ".join(server.certificate.read_text().split("\n")),
    )
    encrypted = serialization.load_pem_private_key(server.key.read_bytes(), None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(PASSWORD.encode()),
    )
    chain = server.certificate.read_text()
    for store in (
        Store(SETTING, str(server.pem)),
        Store(SETTING, str(authority.pkcs12(server, PASSWORD)), PASSWORD),
        Store(SETTING, key=server.key.read_text(), certificates=chain),
        Store(SETTING, key=one_line[0], certificates=one_line[1]),
        Store(SETTING, key=encrypted.decode(), certificates=chain, key_password=PASSWORD),
    ):
        CONTEXTS[side](own(store))


def test_a_pkcs12_file_of_openssls_own_command_is_read(tmp_path: Path, server: Identity) -> None:
    path = tmp_path / "openssl.p12"
    subprocess.run(
        [
            "openssl",
            "pkcs12",
            "-export",
            "-in",
            server.pem,
            "-out",
            path,
            "-passout",
            f"pass:{PASSWORD}",
        ],
        check=True,
        timeout=60,
    )
    listener_context(own(Store(SETTING, str(path), PASSWORD)))


def test_a_pkcs12_file_without_lengths_is_read_and_nothing_is_warned(
    tmp_path: Path, authority: Authority, server: Identity
) -> None:
    path = tmp_path / "ber.p12"
    der = authority.pkcs12(server, PASSWORD).read_bytes()
    assert der[:2] == b"\x30\x82"
    path.write_bytes(b"\x30\x80" + der[4:] + bytes(2))  # an end instead of a length: BER
    listener_context(own(Store(SETTING, str(path), PASSWORD)))


RSA_KEY = rsa.generate_private_key(65537, 2048).private_bytes(
    serialization.Encoding.PEM,
    serialization.PrivateFormat.TraditionalOpenSSL,
    serialization.NoEncryption(),
)
DAMAGED = b"-----BEGIN CERTIFICATE-----\nQUJD\n-----END CERTIFICATE-----\n"


def damaged(tmp_path: Path, content: bytes) -> Store:
    path = tmp_path / "file"
    path.write_bytes(content)
    return Store(SETTING, str(path), PASSWORD, key_password=PASSWORD)


Make = Callable[[Path, Authority, Identity], Store]
REFUSED: dict[str, tuple[Make, str]] = {
    "missing file": (
        lambda at, _ca, _server: Store(SETTING, str(at / "none.pem")),
        r"location: cannot use .*none.pem: No such file",
    ),
    "directory": (lambda at, _ca, _server: Store(SETTING, str(at)), r"location: .*Is a directory"),
    "JKS": (
        lambda at, _ca, _server: damaged(at, b"\xfe\xed\xfe\xed\0\0\0\2"),
        r"is a JKS file, which is not read; convert it: keytool -importkeystore .*PKCS12",
    ),
    "neither": (
        lambda at, _ca, _server: damaged(at, b"hello"),
        r"it is neither PEM nor PKCS12",
    ),
    "empty": (lambda at, _ca, _server: damaged(at, b""), r"it is neither PEM nor PKCS12"),
    "damaged PKCS12": (
        lambda at, _ca, _server: damaged(at, b"\x30\x82\x01\x01nonsense"),
        r"ssl.keystore.password does not open it, or it is damaged",
    ),
    "PKCS12 without its password": (
        lambda _at, ca, server: Store(SETTING, str(ca.pkcs12(server, "other")), PASSWORD),
        r"ssl.keystore.password does not open it",
    ),
    "no key": (
        lambda at, _ca, server: damaged(at, server.certificate.read_bytes()),
        r"has no private key",
    ),
    "no certificate": (
        lambda at, _ca, server: damaged(at, server.key.read_bytes()),
        r"has no certificate",
    ),
    "key of another certificate": (
        lambda at, ca, server: damaged(
            at, ca.issue("other").key.read_bytes() + server.certificate.read_bytes()
        ),
        r"the key does not belong to the first certificate",
    ),
    "key of another kind than the certificate's": (
        lambda at, _ca, server: damaged(at, RSA_KEY + server.certificate.read_bytes()),
        r"the key does not belong to the first certificate",
    ),
    "damaged certificate": (
        lambda at, _ca, server: damaged(at, server.key.read_bytes() + DAMAGED),
        r"a key or a certificate is damaged",
    ),
    "damaged key": (
        lambda _at, _ca, server: Store(
            SETTING,
            key="-----BEGIN PRIVATE KEY-----\nQUJD\n-----END PRIVATE KEY-----",
            certificates=server.certificate.read_text(),
        ),
        r"ssl.keystore.key: ",
    ),
}


@pytest.mark.parametrize("side", CONTEXTS)
@pytest.mark.parametrize("case", REFUSED)
def test_unusable_keys_are_one_line_with_setting_and_remedy(
    tmp_path: Path, authority: Authority, server: Identity, case: str, side: str
) -> None:
    make, message = REFUSED[case]
    with pytest.raises(UserError, match=message) as refused:
        CONTEXTS[side](own(make(tmp_path, authority, server)))
    text = str(refused.value)
    assert text.startswith(SETTING)
    assert "\n" not in text
    assert PASSWORD not in text
    assert PASSWORD not in repr(make(tmp_path, authority, server))


FORMS = {
    "PKCS8": serialization.PrivateFormat.PKCS8,
    "old": serialization.PrivateFormat.TraditionalOpenSSL,
}


@pytest.mark.parametrize("side", CONTEXTS)
@pytest.mark.parametrize("form", FORMS)
def test_an_encrypted_key_needs_its_password(
    tmp_path: Path, server: Identity, form: str, side: str
) -> None:
    key = serialization.load_pem_private_key(server.key.read_bytes(), None).private_bytes(
        serialization.Encoding.PEM,
        FORMS[form],
        serialization.BestAvailableEncryption(b"right"),
    )
    store = damaged(tmp_path, key + server.certificate.read_bytes())
    for wrong in ("wrong", ""):
        with pytest.raises(UserError, match=r"ssl\.key\.password does not open the key"):
            CONTEXTS[side](own(replace(store, key_password=wrong)))
    CONTEXTS[side](own(replace(store, key_password="right")))


def test_a_truststore_without_certificates_is_refused(server: Identity) -> None:
    store = Store("ssl.truststore", str(server.key))
    with pytest.raises(UserError, match=r"ssl\.truststore\.location: .* has no certificate"):
        client_context(Tls(trusted=store))


EC_OF_TLS_12 = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"
BOTH = ("TLSv1.2", "TLSv1.3")
# Protocols and suites of the settings; the suites of TLSv1.2 that are allowed; the suite that a client with each
# version gets.
BOUNDS: dict[str, tuple[tuple[str, ...], tuple[str, ...], list[str], dict[str, str]]] = {
    "none named": (
        BOTH,
        (),
        [],
        {"TLSv1.2": "ECDHE-ECDSA-AES256-GCM-SHA384", "TLSv1.3": "TLS_AES_256_GCM_SHA384"},
    ),
    "one version": (("TLSv1.3",), (), [], {"TLSv1.3": "TLS_AES_256_GCM_SHA384"}),
    "a suite of TLSv1.2": (
        BOTH,
        (EC_OF_TLS_12,),
        ["ECDHE-ECDSA-AES256-GCM-SHA384"],
        {"TLSv1.2": "ECDHE-ECDSA-AES256-GCM-SHA384"},
    ),
    # The server's key has a curve: no client agrees to these two, but they are allowed.
    "RSA": (("TLSv1.2",), ("TLS_RSA_WITH_AES_128_GCM_SHA256",), ["AES128-GCM-SHA256"], {}),
    "ChaCha20": (
        ("TLSv1.2",),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",),
        ["ECDHE-RSA-CHACHA20-POLY1305"],
        {},
    ),
    "OpenSSL's name": (
        ("TLSv1.2",),
        ("ECDHE-ECDSA-AES128-SHA256",),
        ["ECDHE-ECDSA-AES128-SHA256"],
        {"TLSv1.2": "ECDHE-ECDSA-AES128-SHA256"},
    ),
    "one suite of TLSv1.3": (
        BOTH,
        ("TLS_AES_128_GCM_SHA256",),
        [],
        {"TLSv1.3": "TLS_AES_128_GCM_SHA256"},
    ),
    "suites of both, in the listener's order": (
        BOTH,
        ("TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_256_GCM_SHA384", EC_OF_TLS_12),
        ["ECDHE-ECDSA-AES256-GCM-SHA384"],
        {"TLSv1.2": "ECDHE-ECDSA-AES256-GCM-SHA384", "TLSv1.3": "TLS_CHACHA20_POLY1305_SHA256"},
    ),
}


@pytest.mark.parametrize("case", BOUNDS)
def test_protocols_and_suites_bound_a_listener(server: Identity, case: str) -> None:
    protocols, suites, allowed, agreed = BOUNDS[case]
    tls = Tls(own=Store(SETTING, str(server.pem)), protocols=protocols, ciphers=suites)
    context = listener_context(tls)
    names = SSL.Connection(context, None).get_cipher_list()
    older = [name for name in names if not name.startswith("TLS_")]
    if allowed:
        assert older == allowed
    else:  # with forward secrecy
        assert older
        assert all(name.startswith("ECDHE-") for name in older), older
    found = {version: agreed_suite(context, version) for version in BOTH}
    assert {version: name for version, name in found.items() if name} == agreed


def agreed_suite(context: SSL.Context, version: str) -> str:
    """Return the suite of a handshake between a client with one version and the context; "" where none succeeds."""
    client_side = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_side.check_hostname, client_side.verify_mode = False, ssl.CERT_NONE
    chosen = ssl.TLSVersion[version.replace(".", "_")]
    client_side.minimum_version = client_side.maximum_version = chosen
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client, listener = client_side.wrap_bio(incoming, outgoing), TlsSession(context)
    for _ in range(4):
        try:
            client.do_handshake()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            return ""
        if outgoing.pending:
            listener.receive(outgoing.read())
        try:
            if listener.go_on():
                break
        except TlsFailed:
            return ""
        incoming.write(listener.taken())
    name = client.cipher()
    assert name is not None
    return name[0]


def test_a_listener_refuses_a_key_that_signs_nothing(tmp_path: Path, server: Identity) -> None:
    key = x25519.X25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    store = damaged(tmp_path, key + server.certificate.read_bytes())
    with pytest.raises(UserError, match="TLS has no use for a key of this kind"):
        listener_context(own(store))


@pytest.mark.parametrize("side", CONTEXTS)
def test_an_unknown_suite_is_refused(server: Identity, side: str) -> None:
    with pytest.raises(UserError, match="'TLS_FOO_WITH_BAR' is not accepted"):
        CONTEXTS[side](Tls(own=Store(SETTING, str(server.pem)), ciphers=("TLS_FOO_WITH_BAR",)))


@pytest.mark.parametrize("side", CONTEXTS)
def test_suites_of_no_allowed_version_are_refused(server: Identity, side: str) -> None:
    tls = Tls(Store(SETTING, str(server.pem)), protocols=("TLSv1.3",), ciphers=(EC_OF_TLS_12,))
    with pytest.raises(UserError, match=r"has no suite of ssl\.enabled\.protocols"):
        CONTEXTS[side](tls)


def test_a_client_refuses_suites_that_it_cannot_enforce() -> None:
    with pytest.raises(
        UserError, match=r"together only, not TLS_AES_128_GCM_SHA256; accepted: all"
    ):
        client_context(Tls(ciphers=("TLS_AES_128_GCM_SHA256",)))


def test_a_client_checks_the_servers_name_unless_the_settings_say_no(authority: Authority) -> None:
    trusted = Store("ssl.truststore", str(authority.certificate))
    assert client_context(Tls(trusted=trusted)).check_hostname
    lax = client_context(Tls(trusted=trusted, verifies_host=False))
    assert not lax.check_hostname
    assert lax.verify_mode is ssl.CERT_REQUIRED


def test_the_state_changes_with_the_file(tmp_path: Path, server: Identity) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(server.pem.read_bytes())
    tls = own(Store(SETTING, str(path)))
    before = state_of(tls)
    assert state_of(tls) == before
    path.write_bytes(server.pem.read_bytes() + b"\n")
    assert state_of(tls) != before
