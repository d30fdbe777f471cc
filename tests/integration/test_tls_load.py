"""Clients with TLS that send much at once, to one broker and to two in one process, and one that meets a bug."""

import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from tests.integration.test_tls import API_VERSIONS, exactly, plain, secured

from stratalog.adapters import tls_server
from stratalog.testing.broker import TemporaryBroker

FLOOD = """
import socket, ssl, struct, sys
host, port, trusted, size = *sys.argv[1].split(":"), sys.argv[2], int(sys.argv[3])
raw = socket.create_connection((host, int(port)), timeout=60)
stream = ssl.create_default_context(cafile=trusted).wrap_socket(raw, server_hostname=host)
request = struct.pack(">ihhih", 10 + 32_000, 18, 0, 7, 32_000) + b"x" * 32_000
for _ in range(100):
    stream.sendall(request * 40)
    left = size * 40
    while left:
        data = stream.recv(left)
        assert data, left
        left -= len(data)
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[TemporaryBroker]:
    with TemporaryBroker(tls=True) as started:
        yield started


def size_of_an_answer(broker: TemporaryBroker) -> int:
    context = ssl.create_default_context(cafile=str(broker.authority.certificate))
    with secured(broker, context) as stream:
        stream.sendall(API_VERSIONS)
        return 4 + int(struct.unpack(">i", exactly(stream, 4))[0])


def test_brokers_on_two_threads_of_a_process_share_no_buffer(broker: TemporaryBroker) -> None:
    """Each event loop fills its buffers while the other one runs."""
    with TemporaryBroker(tls=True) as other:
        floods = []
        for one in (broker, other):
            arguments = str(one.authority.certificate), str(size_of_an_answer(one))
            command = [sys.executable, "-c", FLOOD, one.address, *arguments]
            floods += [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(2)]
        ends = [flood.communicate(timeout=120)[1].decode() for flood in floods]
        assert ends == [""] * len(floods)


def test_a_client_may_send_much_right_behind_its_handshake(broker: TemporaryBroker) -> None:
    """A megabyte arrives while the broker takes the last step of the handshake."""
    context = ssl.create_default_context(cafile=str(broker.authority.certificate))
    size = size_of_an_answer(broker)
    named = struct.pack(">ihhih", 10 + 32_000, 18, 0, 7, 32_000) + b"x" * 32_000
    for _ in range(10):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        with plain(broker) as raw:
            with pytest.raises(ssl.SSLWantReadError):
                client.do_handshake()
            raw.sendall(outgoing.read())
            is_complete = False
            while not is_complete:
                incoming.write(raw.recv(1 << 16))
                with suppress(ssl.SSLWantReadError):
                    client.do_handshake()
                    is_complete = True
            client.write(named * 40)
            raw.sendall(outgoing.read())
            got = 0
            while got < size * 40:
                received = raw.recv(1 << 16)
                assert received, "closed"
                incoming.write(received)
                with suppress(ssl.SSLWantReadError):
                    while True:
                        got += len(client.read(1 << 16))


def test_no_client_is_served_where_its_name_cannot_be_found(
    broker: TemporaryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be anonymous."""

    def bug(_session: tls_server.TlsSession) -> str:
        raise RuntimeError("planted")

    monkeypatch.setattr(tls_server.TlsSession, "subject", bug)
    monkeypatch.setattr(tls_server, "HANDSHAKE_S", 1.0)
    context = ssl.create_default_context(cafile=str(broker.authority.certificate))
    answer = b""
    with suppress(ssl.SSLError, ConnectionError), secured(broker, context) as stream:
        for _ in range(5):  # the first may be received with the end of the handshake
            stream.sendall(API_VERSIONS)
            time.sleep(0.05)
        answer = stream.recv(1)
    assert answer == b""
