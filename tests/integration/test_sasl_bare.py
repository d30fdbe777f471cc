"""SaslHandshake version 0, after which tokens have no header: right, wrong, malformed and large ones."""

import struct
from base64 import b64encode
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from tests.integration.test_sasl import (
    TIMEOUT_S,
    WORD,
    Raw,
    librdkafka,
    principals,
    settings,
)

from stratalog.testing.broker import TemporaryBroker
from stratalog.wire import scram


@pytest.fixture(scope="module")
def broker() -> Iterator[TemporaryBroker]:
    with TemporaryBroker(settings()) as started:
        admin = AdminClient(librdkafka(started, "PLAIN", "admin", WORD))
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        change = UserScramCredentialUpsertion("alice", info, WORD.encode())
        admin.alter_user_scram_credentials([change])["alice"].result(TIMEOUT_S)
        yield started


def bare_scram(raw: Raw, password: str = WORD) -> bytes | None:
    """Run SCRAM after a handshake of version 0; return the server's last token."""
    assert raw.handshake("SCRAM-SHA-256", 0) == 0
    first = (raw.bare(b"n,,n=alice,r=abc") or b"").decode()
    parts = dict(part.split("=", 1) for part in first.split(","))
    salted = scram.salted_password("sha256", password, scram.decoded(parts["s"]), int(parts["i"]))
    unsigned = scram.client_final("n,,", parts["r"])
    proof = scram.client_proof("sha256", salted, f"n=alice,r=abc,{first},{unsigned}")
    return raw.bare(f"{unsigned},p={b64encode(proof).decode()}".encode())


def test_tokens_without_a_header_log_in_after_a_handshake_of_version_0(
    broker: TemporaryBroker,
) -> None:
    plain = Raw(broker)
    assert plain.handshake("PLAIN", 0) == 0
    assert plain.bare(b"\0admin\0" + WORD.encode()) == b""
    assert plain.is_open()
    by_scram = Raw(broker)
    assert (bare_scram(by_scram) or b"").startswith(b"v=")
    assert by_scram.is_open()
    assert {"User:admin", "User:alice"} <= principals(broker)
    # The next login may have headers.
    assert plain.handshake("PLAIN") == 0
    assert plain.token(b"\0admin\0" + WORD.encode()) == (0, b"")
    for raw in (plain, by_scram):
        raw.close()


def test_a_handshake_of_version_0_lets_nothing_else_in(broker: TemporaryBroker) -> None:
    for token in (
        b"\0admin\0wrong",
        b"admin",
        b"\xff\0admin\0x",
        struct.pack(">hhih", 3, 4, 7, -1),
    ):
        raw = Raw(broker)
        assert raw.handshake("PLAIN", 0) == 0
        assert raw.bare(token) is None, token
        assert not raw.is_open()
        raw.close()
    wrong = Raw(broker)
    assert bare_scram(wrong, "other") is None
    unknown = Raw(broker)
    assert unknown.handshake("GSSAPI", 0) == 33
    assert not unknown.is_open()
    large = Raw(broker)
    assert large.handshake("PLAIN", 0) == 0
    assert large.bare(bytes(600_000)) is None
    for raw in (wrong, unknown, large):
        raw.close()
