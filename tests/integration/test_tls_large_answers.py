"""After a large answer over TLS the event loop stays awake for a client that asks again at once, and for no other.

Method: a broker on a thread of this process; a client fetches a batch of 1 MB again and again, at once or after a
pause. The test notes each step in which the loop stays awake.
"""

import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer
from tests.integration.test_tls import TIMEOUT_S, ask, exactly
from tests.integration.test_tls_large_requests import connected
from tests.integration.waiting import wait_for

from stratalog.adapters import tls_server
from stratalog.testing.broker import TemporaryBroker
from stratalog.wire.envelope import encode_request
from stratalog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

VERSION = 11
RECORD_BYTES = 900_000


@contextmanager
def filled(**settings: str) -> Iterator[TemporaryBroker]:
    """Yield a broker whose topic t has one large record."""
    with TemporaryBroker(settings, tls=True) as started:
        trust = {
            "security.protocol": "ssl",
            "ssl.ca.location": str(started.authority.certificate),
        }
        producer = Producer({"bootstrap.servers": started.address, **trust})
        producer.produce("t", b"x" * RECORD_BYTES, partition=0)
        assert producer.flush(TIMEOUT_S) == 0
        yield started


@pytest.fixture(scope="module")
def broker() -> Iterator[TemporaryBroker]:
    with filled() as started:
        yield started


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tls_server.TlsConnection]:
    """Each step in which a connection keeps the loop awake."""
    noted = []
    stay = tls_server.TlsConnection._stay_awake

    def step(self: tls_server.TlsConnection) -> None:
        noted.append(self)
        stay(self)

    monkeypatch.setattr(tls_server.TlsConnection, "_stay_awake", step)
    return noted


def request() -> bytes:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    body = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 20,
        session_epoch=-1,
        topics=[FetchTopic(topic="t", partitions=[partition])],
    )
    return b"".join(encode_request(VERSION, 1, "test", body))


def fetch(stream: ssl.SSLSocket) -> None:
    stream.sendall(request())
    answer = exactly(stream, int.from_bytes(exactly(stream, 4), "big"))
    assert len(answer) > RECORD_BYTES


ENDS: dict[str, tuple[int, Callable[[ssl.SSLSocket], None]]] = {
    "the next request": (10**12, ask),
    "the client's end": (10**12, lambda stream: stream.close()),
    "the limit": (10**9, lambda _: None),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_loop_stays_awake_for_a_client_that_asks_again_at_once_until(
    broker: TemporaryBroker,
    steps: list[tls_server.TlsConnection],
    monkeypatch: pytest.MonkeyPatch,
    end: str,
) -> None:
    limit_ns, ends = ENDS[end]
    monkeypatch.setattr(tls_server, "_AWAKE_NS", limit_ns)
    with connected(broker) as stream:
        fetch(stream)
        assert not steps, "the client's pause is not known yet"
        ask(stream)
        ask(stream)
        assert not steps, "small answers keep nothing awake"
        fetch(stream)
        wait_for(lambda: len(steps) > 3, "the loop is awake")
        ends(stream)
        wait_for(lambda: not steps[0]._is_awake, "the loop sleeps again")


def test_the_loop_sleeps_at_once_where_the_client_pauses(
    broker: TemporaryBroker, steps: list[tls_server.TlsConnection]
) -> None:
    with connected(broker) as stream:
        for _ in range(5):
            fetch(stream)
            time.sleep(0.02)
    assert not steps


def test_the_loop_sleeps_while_the_client_does_not_take_its_answer(
    steps: list[tls_server.TlsConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_server, "_AWAKE_NS", 10**12)
    with filled(**{"socket.send.buffer.bytes": "4096"}) as broker, connected(broker) as stream:
        for _ in range(3):
            fetch(stream)
        assert not steps, "no answer leaves whole at once"
