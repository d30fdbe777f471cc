"""TLS and mutual TLS of a real broker: right, wrong, expired, malformed and slow clients, and new certificates.

Method: a broker on a thread of this process, its clients on plain sockets with Python's `ssl`, which shares no code
with the broker's side: it has another copy of OpenSSL.
"""

import _ssl
import ctypes
import resource
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random

import pytest

from stratalog.adapters import tls_server
from stratalog.testing.broker import TemporaryBroker
from stratalog.testing.certificates import Authority, Identity

TIMEOUT_S = 20
STUCK = 1000
STUCK_BYTES_MAX = 256 << 10
"""Most memory of one unfinished handshake, of both sides."""
API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 7, -1)
"""A request of version 0 with correlation id 7 and no client id."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ca")


@pytest.fixture(scope="module")
def broker(
    authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TemporaryBroker]:
    with TemporaryBroker(
        settings(authority, authority.issue("server")),
        directory=tmp_path_factory.mktemp("broker") / "data",
    ) as started:
        yield started


def settings(authority: Authority, server: Identity, **more: str) -> dict[str, str]:
    return {
        "listeners": "SSL://127.0.0.1:0",
        "ssl.keystore.location": str(server.pem),
        "ssl.truststore.location": str(authority.certificate),
        "ssl.client.auth": "required",
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def trusting(authority: Authority, identity: Identity | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.certificate))
    if identity is not None:
        context.load_cert_chain(identity.pem)
    return context


def plain(broker: TemporaryBroker) -> socket.socket:
    host, _, port = broker.address.partition(":")
    return socket.create_connection((host, int(port)), timeout=TIMEOUT_S)


def secured(
    broker: TemporaryBroker, context: ssl.SSLContext, host: str = "127.0.0.1"
) -> ssl.SSLSocket:
    return context.wrap_socket(plain(broker), server_hostname=host)


def ask(stream: socket.socket) -> None:
    """Send a request, and check that its answer comes whole."""
    stream.sendall(API_VERSIONS)
    size, correlation_id, error = struct.unpack(">iih", exactly(stream, 10))
    assert (correlation_id, error) == (7, 0)
    exactly(stream, size - 6)


def exactly(stream: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        received = stream.recv(size - len(data))
        assert received, f"closed after {len(data)} bytes of {size}"
        data += received
    return data


def is_closed(stream: socket.socket) -> bool:
    """Return whether the broker closes the connection, with an alert or without."""
    try:
        while stream.recv(1 << 16):
            pass
    except (ssl.SSLError, ConnectionError):
        return True
    return True


def principals(broker: TemporaryBroker) -> list[str]:
    assert broker._node is not None
    return [str(one.session.principal) for one in broker._node._connections]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


def test_a_client_is_known_by_its_certificate(
    broker: TemporaryBroker, authority: Authority
) -> None:
    with secured(broker, trusting(authority, authority.issue("alice", unit="ops"))) as stream:
        ask(stream)
        assert stream.version() == "TLSv1.3"
        assert "User:CN=alice,OU=ops" in principals(broker)


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_no_session_is_resumed(broker: TemporaryBroker, authority: Authority, version: str) -> None:
    """So every connection shows its certificate, also after authorities have changed."""
    context = trusting(authority, authority.issue("alice"))
    context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    with secured(broker, context) as stream:
        ask(stream)  # behind it a client of TLSv1.3 has the broker's tickets, if there are any
        known = stream.session
    with context.wrap_socket(plain(broker), server_hostname="127.0.0.1", session=known) as stream:
        ask(stream)
        assert not stream.session_reused
        assert "User:CN=alice" in principals(broker)


def test_one_record_may_bring_half_a_request_or_many(
    broker: TemporaryBroker, authority: Authority
) -> None:
    with secured(broker, trusting(authority, authority.issue("alice"))) as stream:
        for one in API_VERSIONS:
            stream.sendall(bytes([one]))
        size, _, _ = struct.unpack(">iih", exactly(stream, 10))
        exactly(stream, size - 6)
        stream.sendall(API_VERSIONS * 5000)  # more than a record, a turn and the receive buffer
        exactly(stream, 5000 * (size + 4))


REFUSED = {
    "no certificate": lambda ca, _at: trusting(ca),
    "expired certificate": lambda ca, _at: trusting(ca, ca.issue("late", days=-1)),
    "another authority's certificate": lambda ca, at: trusting(ca, Authority(at).issue("alice")),
    "a certificate that signs itself": lambda ca, at: trusting(ca, self_signed(at)),
}


def self_signed(place: Path) -> Identity:
    authority = Authority(place, "self")
    identity = authority.issue("self")
    key = authority._key.private_bytes(*pem_without_password())
    identity.pem.write_bytes(key + authority.certificate.read_bytes())
    return identity


def pem_without_password() -> tuple[object, object, object]:
    from cryptography.hazmat.primitives import serialization

    return (
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


@pytest.mark.parametrize("case", REFUSED)
def test_a_client_that_cannot_show_a_valid_certificate_gets_no_answer(
    broker: TemporaryBroker, authority: Authority, tmp_path: Path, case: str
) -> None:
    context = REFUSED[case](authority, tmp_path / "other")
    try:
        stream = secured(broker, context)
    except ssl.SSLError:
        return
    with (
        stream
    ):  # with TLSv1.3 the client's handshake ends before the broker has seen the certificate
        try:
            stream.sendall(API_VERSIONS)
            assert stream.recv(1) == b""
        except (ssl.SSLError, ConnectionError):
            pass


def test_a_client_refuses_the_broker_of_another_name_or_authority(
    broker: TemporaryBroker, authority: Authority, tmp_path: Path
) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        secured(broker, trusting(authority, authority.issue("alice")), host="elsewhere")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"self-signed|unable to get"):
        secured(broker, trusting(Authority(tmp_path / "other")))


def test_plain_text_and_damaged_handshakes_end_their_own_connection(
    broker: TemporaryBroker, authority: Authority
) -> None:
    random = Random(18)
    with secured(broker, trusting(authority, authority.issue("alice"))) as good:
        hello = client_hello(trusting(authority))
        for number in range(200):
            damaged = bytearray(hello)
            for _ in range(1 + number % 4):
                damaged[random.randrange(len(damaged))] = random.randrange(256)
            with plain(broker) as stream:
                stream.sendall(bytes(damaged[: random.randrange(1, len(damaged) + 1)]))
                stream.shutdown(socket.SHUT_WR)
                assert is_closed(stream)
        for start in (API_VERSIONS, b"GET / HTTP/1.1\r\n\r\n", bytes(400), b"\x16\x03\x01\xff\xff"):
            with plain(broker) as stream:
                stream.sendall(start)
                stream.shutdown(socket.SHUT_WR)
                assert is_closed(stream)
        ask(good)
    until(lambda: principals(broker) == [])


def client_hello(context: ssl.SSLContext) -> bytes:
    out = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()


def handshake(
    raw: socket.socket, client: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO
) -> None:
    while True:
        try:
            client.do_handshake()
        except ssl.SSLWantReadError:
            raw.sendall(outgoing.read())
            incoming.write(raw.recv(1 << 16))
        else:
            raw.sendall(outgoing.read())
            return


def answer_size(broker: TemporaryBroker, authority: Authority) -> int:
    with secured(broker, trusting(authority, authority.issue("alice"))) as stream:
        stream.sendall(API_VERSIONS)
        return 4 + struct.unpack(">i", exactly(stream, 4))[0]


def test_damaged_records_after_the_handshake_end_the_connection(
    broker: TemporaryBroker, authority: Authority
) -> None:
    context = trusting(authority, authority.issue("alice"))
    for position in (0, 5, 20):
        raw = plain(broker)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        with raw:
            handshake(raw, client, incoming, outgoing)
            client.write(API_VERSIONS)
            record = bytearray(outgoing.read())
            record[position] ^= 1  # of the kind, of the encrypted bytes
            raw.sendall(record)
            assert is_closed(raw)


def test_a_client_that_ends_tls_gets_the_brokers_end(
    broker: TemporaryBroker, authority: Authority
) -> None:
    """Clients on asyncio, such as aiokafka, wait 30 s for it otherwise."""
    stream = secured(broker, trusting(authority, authority.issue("alice")))
    ask(stream)
    ended = stream.unwrap()  # sends close_notify, and waits for the broker's
    assert ended.recv(1) == b""
    ended.close()


def test_tiny_records_are_read_in_turns(broker: TemporaryBroker, authority: Authority) -> None:
    context = trusting(authority, authority.issue("alice"))
    raw = plain(broker)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with raw:
        handshake(raw, client, incoming, outgoing)
        for byte in API_VERSIONS * 700:  # more records than a turn takes
            client.write(bytes([byte]))
        raw.sendall(outgoing.read())
        wanted, got = 700 * answer_size(broker, authority), 0
        while got < wanted:
            incoming.write(raw.recv(1 << 16))
            while incoming.pending:
                try:
                    got += len(client.read(1 << 16))
                except ssl.SSLWantReadError:
                    break
        assert got == wanted


def test_a_client_that_asks_for_new_keys_without_end_fills_no_memory(
    authority: Authority, tmp_path: Path
) -> None:
    """Goal: where the client takes no answers of TLS itself, the broker stops reading; later it goes on."""
    few = {"socket.send.buffer.bytes": "4096", "socket.receive.buffer.bytes": "4096"}
    server = settings(authority, authority.issue("server")) | few
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = trusting(authority, authority.issue("alice"))
    client = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with TemporaryBroker(server, directory=tmp_path / "data") as broker, plain(broker) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        handshake(raw, client, incoming, outgoing)
        raw.settimeout(1)
        rest, sent = b"", 0
        with suppress(TimeoutError):
            while sent < 1 << 20:  # as much would come back, where 64 KiB may wait
                rest = rest or asking_for_new_keys(client, outgoing, 500)
                size = raw.send(rest)
                rest, sent = rest[size:], sent + size
        assert sent < 1 << 20, "the broker reads on while its answers wait"
        raw.setblocking(False)
        client.write(API_VERSIONS)
        rest += outgoing.read()
        answer = b""
        deadline = time.monotonic() + TIMEOUT_S
        while not answer:
            assert time.monotonic() < deadline, "the broker does not read on"
            with suppress(BlockingIOError):
                rest = rest[raw.send(rest) :]
            with suppress(BlockingIOError, ssl.SSLWantReadError):
                incoming.write(raw.recv(1 << 16))
                answer = client.read(1 << 16)
        assert answer[4:8] == (7).to_bytes(4)


def asking_for_new_keys(client: ssl.SSLObject, outgoing: ssl.MemoryBIO, times: int) -> bytes:
    """Return records that each ask the broker for new keys. Python's `ssl` cannot, so OpenSSL itself does it."""
    openssl = ctypes.CDLL(_ssl.__file__)
    beginning = object.__basicsize__ + ctypes.sizeof(ctypes.c_void_p)  # behind it: SSL *ssl
    connection = ctypes.c_void_p.from_address(id(client._sslobj) + beginning)  # type: ignore[attr-defined]
    for _ in range(times):
        assert openssl.SSL_key_update(connection, 1) == 1
        assert openssl.SSL_do_handshake(connection) == 1
    return outgoing.read()


def test_stuck_handshakes_hold_up_no_other_client(
    broker: TemporaryBroker, authority: Authority
) -> None:
    hello = client_hello(trusting(authority))
    with ExitStack() as stuck:
        for number in range(STUCK):
            stream = stuck.enter_context(plain(broker))
            stream.sendall(hello[: (0, 5, len(hello))[number % 3]])
        with secured(broker, trusting(authority, authority.issue("alice"))) as good:
            for _ in range(100):
                ask(good)
        until(lambda: len(principals(broker)) == STUCK)


def test_a_step_of_a_handshake_holds_up_handshakes_alone(
    broker: TemporaryBroker, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def take_for_long(connection: tls_server.TlsConnection) -> bool:
        begun.set()
        return not may_end.wait(TIMEOUT_S)

    with (
        secured(broker, trusting(authority, authority.issue("alice"))) as good,
        plain(broker) as stuck,
    ):
        ask(good)
        monkeypatch.setattr(tls_server.TlsConnection, "_take_step", take_for_long)
        stuck.sendall(client_hello(trusting(authority)))
        assert begun.wait(TIMEOUT_S)
        ask(good)  # while the step does not end
        may_end.set()


def test_a_thousand_stuck_handshakes_are_closed_in_time_and_cost_little_memory(
    broker: TemporaryBroker, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_server, "HANDSHAKE_S", 3.0)
    hello = client_hello(trusting(authority))
    # The first ones import and allocate what all others share.
    for size in (10, STUCK):
        before = own_bytes()
        with ExitStack() as stuck:
            streams = [stuck.enter_context(plain(broker)) for _ in range(size)]
            for stream in streams:
                stream.sendall(hello)
            for stream in streams:
                stream.recv(1, socket.MSG_PEEK)  # the broker has taken a step
            grown = own_bytes() - before
            assert all(is_closed(stream) for stream in streams)
        until(lambda: not principals(broker))
    assert grown < STUCK * STUCK_BYTES_MAX, grown
    with secured(broker, trusting(authority, authority.issue("alice"))) as good:
        ask(good)


def own_bytes() -> int:
    """The memory of this process, which the broker shares."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def test_a_client_that_is_too_slow_is_closed(
    broker: TemporaryBroker, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_server, "HANDSHAKE_S", 0.2)
    with plain(broker) as silent, plain(broker) as halfway:
        halfway.sendall(client_hello(trusting(authority)))
        assert is_closed(silent)
        assert is_closed(halfway)


def test_a_handshake_without_end_is_closed(broker: TemporaryBroker) -> None:
    # A ClientHello that claims the longest length OpenSSL takes, in records of no use.
    record = b"\x16\x03\x01\x40\x00" + b"\x01\x01\xff\xff" + bytes((1 << 14) - 4)
    with plain(broker) as stream:
        try:
            for _ in range(64):
                stream.sendall(record)
        except ConnectionError:
            return
        assert is_closed(stream)


def test_new_files_and_new_settings_count_for_the_next_connection(
    authority: Authority, tmp_path: Path
) -> None:
    first, other = Authority(tmp_path / "first"), Authority(tmp_path / "other")
    server = first.issue("server")
    with TemporaryBroker(settings(first, server)) as broker:
        alice = first.issue("alice")
        with secured(broker, trusting(first, alice)) as stream:
            server.pem.write_bytes(other.issue("server").pem.read_bytes())
            look_at_certificates(broker)
            ask(stream)  # an open connection stays
        with secured(broker, trusting(other, alice)) as stream:
            ask(stream)
        server.pem.write_bytes(b"half a file")
        look_at_certificates(broker)
        with secured(broker, trusting(other, alice)) as stream:
            ask(stream)  # the last good ones stay


def look_at_certificates(broker: TemporaryBroker) -> None:
    assert broker._node is not None
    broker._run(broker._node._look_at_keys())


def test_rules_name_the_principal_and_a_name_without_a_rule_is_refused(
    authority: Authority,
) -> None:
    rules = {"ssl.principal.mapping.rules": "RULE:^CN=([a-z]+)$/$1/U"}
    with TemporaryBroker(settings(authority, authority.issue("server")) | rules) as broker:
        with secured(broker, trusting(authority, authority.issue("alice"))) as stream:
            ask(stream)
            assert principals(broker) == ["User:ALICE"]
        with secured(broker, trusting(authority, authority.issue("bob1"))) as stream:
            assert is_closed(stream)


def test_a_client_without_certificate_is_anonymous_where_none_is_required(
    authority: Authority,
) -> None:
    for demand in ("none", "requested"):
        wanted = settings(authority, authority.issue("server")) | {"ssl.client.auth": demand}
        with TemporaryBroker(wanted) as broker, secured(broker, trusting(authority)) as stream:
            ask(stream)
            assert principals(broker) == ["User:ANONYMOUS"]


def test_only_the_versions_of_the_settings_are_spoken(authority: Authority) -> None:
    wanted = settings(authority, authority.issue("server")) | {"ssl.enabled.protocols": "TLSv1.3"}
    with TemporaryBroker(wanted) as broker:
        context = trusting(authority, authority.issue("alice"))
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(ssl.SSLError):
            secured(broker, context)
