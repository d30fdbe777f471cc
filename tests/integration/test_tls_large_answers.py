"""After a large answer over TLS the event loop stays awake for a client that asks again at once, and for no other.

Method: a broker on a thread of this process; a client fetches a batch of 1 MB again and again, at once or after a
pause. The test notes each step in which the loop stays awake.
"""

import ssl
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from tests.integration.test_tls import TIMEOUT_S, exactly
from tests.integration.test_tls_large_requests import connected
from tests.integration.waiting import wait_for

from stratalog.adapters import tls_server
from stratalog.testing.broker import TemporaryBroker
from stratalog.wire.envelope import encode_request
from stratalog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

VERSION = 11
RECORD_BYTES = 900_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporaryBroker]:
    with TemporaryBroker(tls=True, directory=tmp_path_factory.mktemp("data") / "at") as started:
        trust = {
            "security.protocol": "ssl",
            "ssl.ca.location": str(started.authority.certificate),
        }
        producer = Producer({"bootstrap.servers": started.address, **trust})
        producer.produce("t", b"x" * RECORD_BYTES, partition=0)
        assert producer.flush(TIMEOUT_S) == 0
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


def fetch(stream: ssl.SSLSocket, max_bytes: int = 1 << 20) -> None:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=max_bytes)
    body = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=max_bytes,
        session_epoch=-1,
        topics=[FetchTopic(topic="t", partitions=[partition])],
    )
    stream.sendall(b"".join(encode_request(VERSION, 1, "test", body)))
    answer = exactly(stream, int.from_bytes(exactly(stream, 4), "big"))
    assert len(answer) > RECORD_BYTES


def test_the_loop_stays_awake_for_a_client_that_asks_again_at_once(
    broker: TemporaryBroker,
    steps: list[tls_server.TlsConnection],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tls_server, "_AWAKE_NS", 10**9)
    with connected(broker) as stream:
        fetch(stream)
        assert not steps, "the client's pause is not known yet"
        fetch(stream)
        wait_for(lambda: len(steps) > 3, "the loop is awake")
        fetch(stream)
        (connection,) = set(steps)
        wait_for(lambda: not connection._is_awake, "the loop sleeps again")


def test_the_loop_sleeps_at_once_where_the_client_pauses(
    broker: TemporaryBroker, steps: list[tls_server.TlsConnection]
) -> None:
    with connected(broker) as stream:
        for _ in range(5):
            fetch(stream)
            time.sleep(0.02)
    assert not steps


def test_the_loop_sleeps_once_the_client_is_gone(
    broker: TemporaryBroker,
    steps: list[tls_server.TlsConnection],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tls_server, "_AWAKE_NS", 10**12)
    with connected(broker) as stream:
        fetch(stream)
        fetch(stream)
        wait_for(lambda: len(steps) > 3, "the loop is awake")
    wait_for(lambda: not steps[0]._is_awake, "the loop sleeps again")
