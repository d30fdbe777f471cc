"""The server's side of TLS in memory: what one side sends the other gets, in any pieces, and every end has its reason.

Method: the other side is Python's `ssl`, whose OpenSSL is another copy. Pieces and sizes come from a seed.
"""

import ssl
from contextlib import suppress
from random import Random

import pytest
from cryptography import x509
from cryptography.hazmat.bindings.openssl.binding import Binding
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from OpenSSL import SSL

from stratalog.adapters.tls_listener import listener_context
from stratalog.adapters.tls_session import TlsEnded, TlsFailed, TlsSession
from stratalog.ports import Store, Tls
from stratalog.testing.certificates import Authority, Identity

RECORD = 16 << 10
STEPS = 6


class Pair:
    """A client and a session after their handshake."""

    def __init__(
        self, authority: Authority, demand: str = "none", identity: Identity | None = None
    ) -> None:
        own = Store("ssl.keystore", str(authority.issue("server").pem))
        trusted = Store("ssl.truststore", str(authority.certificate))
        self.session = TlsSession(listener_context(Tls(own, trusted, client_certificate=demand)))
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.create_default_context(cafile=str(authority.certificate))
        if identity is not None:
            context.load_cert_chain(identity.pem)
        self.client = context.wrap_bio(self.incoming, self.outgoing, server_hostname="127.0.0.1")
        for _ in range(STEPS):
            with suppress(ssl.SSLWantReadError):
                self.client.do_handshake()
            self.session.receive(self.outgoing.read())
            is_complete = self.session.go_on()
            self.incoming.write(self.session.taken() or b"")
            if is_complete:
                return
        raise AssertionError(f"no handshake in {STEPS} steps")

    def to_session(self, data: bytes) -> bytes:
        """Return the encrypted bytes of the client."""
        self.client.write(data)
        return self.outgoing.read()

    def read(self, records: int = 256, size: int = 1 << 20) -> tuple[bytes, int, bool]:
        buffer = bytearray(size)
        filled, left, is_over = self.session.decrypt(memoryview(buffer), records)
        return bytes(buffer[:filled]), left, is_over


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.mark.parametrize("seed", range(10))
def test_what_one_side_sends_the_other_gets(authority: Authority, seed: int) -> None:
    chance, pair = Random(seed), Pair(authority)
    sent, got = b"", b""
    for _ in range(20):
        data = chance.randbytes(chance.choice([1, 100, RECORD - 1, RECORD, RECORD + 1, 70_000]))
        wire = pair.to_session(data)
        while wire:
            cut = chance.randrange(1, len(wire) + 1)
            pair.session.receive(wire[:cut])
            wire = wire[cut:]
            is_over = False
            while not is_over:  # into buffers of all sizes, too
                found, _, is_over = pair.read(256, chance.choice([1, 1000, 1 << 20]))
                got += found
        sent += data
        pair.session.encrypt(data)
        pair.incoming.write(pair.session.taken() or b"")
        back = b""
        while len(back) < len(data):
            back += pair.client.read(1 << 20)
        assert back == data
    assert got == sent


def test_no_more_records_are_read_than_may_be(authority: Authority) -> None:
    pair = Pair(authority)
    for number in range(5):
        pair.session.receive(pair.to_session(bytes([number])))
    assert pair.read(3) == (bytes([0, 1, 2]), 0, False)
    assert pair.read(3) == (bytes([3, 4]), 1, True)
    assert pair.read(3) == (b"", 3, True)


def test_a_client_cannot_ask_for_another_handshake(authority: Authority) -> None:
    """Each would cost the broker a hundred times what it costs the client."""
    session = TlsSession(listener_context(Tls(Store("x", str(authority.issue("server").pem)))))
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    context.set_max_proto_version(SSL.TLS1_2_VERSION)  # TLSv1.3 has none
    client = SSL.Connection(context, None)
    client.set_connect_state()
    is_complete = False
    while not is_complete:
        with suppress(SSL.WantReadError):
            client.do_handshake()
        session.receive(client.bio_read(1 << 16))
        is_complete = session.go_on()
        client.bio_write(session.taken() or b"")
    client.do_handshake()
    assert client.renegotiate()
    with suppress(SSL.WantReadError):
        client.do_handshake()
    session.receive(client.bio_read(1 << 16))
    assert session.decrypt(memoryview(bytearray(100)), 9) == (0, 9, True)
    client.bio_write(session.taken() or b"")
    with pytest.raises(SSL.Error, match="no renegotiation"):
        client.do_handshake()


def test_an_answer_holds_no_more_memory_than_its_bytes(authority: Authority) -> None:
    pair = Pair(authority)
    assert pair.session.taken() is None
    pair.session.encrypt(b"small")
    assert pair.session.taken(100) is None
    data = pair.session.taken()
    assert data is not None
    assert 5 < data.nbytes < 100
    assert memoryview(data.obj).nbytes == data.nbytes
    assert pair.session.taken() is None


def test_bytes_before_the_clients_end_are_passed_on(authority: Authority) -> None:
    pair = Pair(authority)
    wire = pair.to_session(b"last")
    with suppress(ssl.SSLWantReadError):
        pair.client.unwrap()
    pair.session.receive(wire + pair.outgoing.read())
    assert pair.read() == (b"last", 255, False)
    with pytest.raises(TlsEnded):
        pair.read()
    pair.session.end()
    pair.incoming.write(pair.session.taken() or b"")
    pair.client.unwrap()  # it has the session's own end


def test_a_damaged_record_is_a_failure_that_later_calls_do_not_see(authority: Authority) -> None:
    damaged, other = Pair(authority), Pair(authority)
    wire = bytearray(damaged.to_session(b"x" * 100))
    wire[50] ^= 1
    damaged.session.receive(wire)
    with pytest.raises(TlsFailed, match=r"^TLS failed: decryption failed or bad record mac$"):
        damaged.read()
    assert other.read() == (b"", 256, True)


def test_an_error_that_other_code_left_behind_fails_no_session(authority: Authority) -> None:
    pair, lib = Pair(authority), Binding.lib
    for call in (pair.read, lambda: pair.session.encrypt(b"x"), pair.session.go_on):
        lib.ERR_put_error(lib.ERR_LIB_EVP, 0, 100, Binding.ffi.NULL, 0)
        assert lib.ERR_peek_error()
        call()
    lib.ERR_clear_error()


def test_the_reason_of_a_refused_certificate_is_openssls(authority: Authority) -> None:
    with pytest.raises(TlsFailed, match=r"certificate is refused: certificate has expired"):
        Pair(authority, "required", authority.issue("late", days=-1))
    with pytest.raises(TlsFailed, match=r"^TLS failed: peer did not return a certificate$"):
        Pair(authority, "required")


def test_a_subject_is_read_or_refused(authority: Authority) -> None:
    assert Pair(authority, "requested").session.subject() == ""
    assert Pair(authority, "required", authority.issue("alice")).session.subject() == "CN=alice"


ODD = {
    "letters of no alphabet": (b"\x0c\x07mallory", b"\x16\x07mall\xffry", "CN=mall\ufffdry"),
    "letters that a printable string may not have": (
        b"\x0c\x07mallory",
        b"\x13\x07*.a@b.c",
        "CN=*.a@b.c",
    ),
    "a string of bits": (b"\x0c\x07mallory", b"\x03\x07\0allory", "CN=#0307" + b"\0allory".hex()),
    "version 2": (b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x01", "CN=mallory"),
}


@pytest.mark.parametrize("case", ODD)
def test_an_odd_certificate_that_openssl_takes_has_javas_name(
    authority: Authority, case: str
) -> None:
    """A client without a name would be anonymous."""
    name, other, expected = ODD[case]
    odd = signed_again(authority, authority.issue("mallory"), name, other)
    assert Pair(authority, "required", odd).session.subject() == expected


def signed_again(authority: Authority, identity: Identity, name: bytes, other: bytes) -> Identity:
    """Sign the identity's certificate again, with other bytes in it."""
    certificate = x509.load_pem_x509_certificate(identity.certificate.read_bytes())
    body = certificate.tbs_certificate_bytes.replace(name, other)
    signature = authority._key.sign(body, ec.ECDSA(hashes.SHA256()))
    algorithm = bytes.fromhex("300a06082a8648ce3d040302")  # ECDSA with SHA-256
    bits = bytes([0x03, len(signature) + 1, 0]) + signature
    content = body + algorithm + bits
    der = b"\x30\x82" + len(content).to_bytes(2) + content
    identity.pem.write_bytes(identity.key.read_bytes() + ssl.DER_cert_to_PEM_cert(der).encode())
    return identity
