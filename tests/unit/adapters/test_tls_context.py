"""Keys and certificates become OpenSSL's contexts, and unusable ones become one line that names setting and remedy."""

import re
import ssl
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from stratalog.adapters.tls_context import client_context, server_context, state_of
from stratalog.errors import UserError
from stratalog.ports import Store, Tls
from stratalog.testing.certificates import Authority, Identity

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


def test_pem_files_pem_text_and_pkcs12_are_read(authority: Authority, server: Identity) -> None:
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
        assert server_context(own(store)).num_tickets == 0


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
    server_context(own(Store(SETTING, str(path), PASSWORD)))


def test_a_pkcs12_file_without_lengths_is_read_and_nothing_is_warned(
    tmp_path: Path, authority: Authority, server: Identity
) -> None:
    path = tmp_path / "ber.p12"
    der = authority.pkcs12(server, PASSWORD).read_bytes()
    assert der[:2] == b"\x30\x82"
    path.write_bytes(b"\x30\x80" + der[4:] + bytes(2))  # an end instead of a length: BER
    server_context(own(Store(SETTING, str(path), PASSWORD)))


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
    "damaged key": (
        lambda _at, _ca, server: Store(
            SETTING,
            key="-----BEGIN PRIVATE KEY-----\nQUJD\n-----END PRIVATE KEY-----",
            certificates=server.certificate.read_text(),
        ),
        r"ssl.keystore.key: ",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unusable_keys_are_one_line_with_setting_and_remedy(
    tmp_path: Path, authority: Authority, server: Identity, case: str
) -> None:
    make, message = REFUSED[case]
    with pytest.raises(UserError, match=message) as refused:
        server_context(own(make(tmp_path, authority, server)))
    text = str(refused.value)
    assert text.startswith(SETTING)
    assert "\n" not in text
    assert PASSWORD not in text
    assert PASSWORD not in repr(make(tmp_path, authority, server))


def test_an_encrypted_key_needs_its_password(tmp_path: Path, server: Identity) -> None:
    key = serialization.load_pem_private_key(server.key.read_bytes(), None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"right"),
    )
    store = damaged(tmp_path, key + server.certificate.read_bytes())
    for wrong in ("wrong", ""):
        with pytest.raises(UserError, match=r"ssl\.key\.password does not open the key"):
            server_context(own(replace(store, key_password=wrong)))


def test_a_truststore_without_certificates_is_refused(server: Identity) -> None:
    store = Store("ssl.truststore", str(server.key))
    with pytest.raises(UserError, match=r"ssl\.truststore\.location: .* has no certificate"):
        client_context(Tls(trusted=store))


@pytest.mark.parametrize(
    ("protocols", "suites", "lowest", "highest", "allowed"),
    [
        (("TLSv1.2", "TLSv1.3"), (), "TLSv1_2", "TLSv1_3", ""),
        (("TLSv1.3",), (), "TLSv1_3", "TLSv1_3", ""),
        (
            ("TLSv1.2", "TLSv1.3"),
            ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",),
            "TLSv1_2",
            "TLSv1_2",
            "ECDHE-ECDSA-AES256-GCM-SHA384",
        ),
        (("TLSv1.2",), ("TLS_RSA_WITH_AES_128_CBC_SHA",), "TLSv1_2", "TLSv1_2", "AES128-SHA"),
        (
            ("TLSv1.2",),
            ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",),
            "TLSv1_2",
            "TLSv1_2",
            "ECDHE-RSA-CHACHA20-POLY1305",
        ),
        (
            ("TLSv1.2",),
            ("ECDHE-RSA-AES128-SHA256",),
            "TLSv1_2",
            "TLSv1_2",
            "ECDHE-RSA-AES128-SHA256",
        ),
        (
            ("TLSv1.2", "TLSv1.3"),
            ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"),
            "TLSv1_3",
            "TLSv1_3",
            "",
        ),
    ],
)
def test_protocols_and_suites_bound_a_context(
    server: Identity,
    protocols: tuple[str, ...],
    suites: tuple[str, ...],
    lowest: str,
    highest: str,
    allowed: str,
) -> None:
    tls = Tls(own=Store(SETTING, str(server.pem)), protocols=protocols, ciphers=suites)
    context = server_context(tls)
    assert (context.minimum_version.name, context.maximum_version.name) == (lowest, highest)
    if allowed:
        names = [one["name"] for one in context.get_ciphers() if not one["name"].startswith("TLS_")]
        assert names == [allowed]


@pytest.mark.parametrize(
    ("suites", "message"),
    [
        (("TLS_FOO_WITH_BAR",), "'TLS_FOO_WITH_BAR' is not accepted"),
        (("TLS_AES_128_GCM_SHA256",), "allowed together only"),
    ],
)
def test_suites_that_cannot_be_enforced_are_refused(
    server: Identity, suites: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        server_context(Tls(own=Store(SETTING, str(server.pem)), ciphers=suites))


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
