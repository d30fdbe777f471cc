"""Large requests over TLS arrive whole in any pieces, and the broker does not wake up for each record.

Method: a broker on a thread of this process. The client encrypts a produce of one large batch in records of its choice;
the broker checks the batch's CRC, so an answer without an error means that each byte has arrived.
"""

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from random import Random

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.integration.test_tls import TIMEOUT_S, exactly, handshake, plain

from stratalog.adapters import tls_server
from stratalog.testing.broker import TemporaryBroker
from stratalog.wire.envelope import decode_response, encode_request
from stratalog.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from stratalog.wire.records import Record, build_batch

PRODUCE, VERSION = 0, 7


@pytest.fixture(scope="module")
def broker() -> Iterator[TemporaryBroker]:
    with TemporaryBroker(tls=True) as started:
        create_topic(started)
        yield started


def create_topic(broker: TemporaryBroker) -> None:
    trust = {"security.protocol": "ssl", "ssl.ca.location": str(broker.authority.certificate)}
    admin = AdminClient({"bootstrap.servers": broker.address, **trust})
    admin.create_topics([NewTopic("t", 1)])["t"].result(TIMEOUT_S)


def trusting(broker: TemporaryBroker) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(broker.authority.certificate))


def connected(broker: TemporaryBroker) -> ssl.SSLSocket:
    raw = plain(broker)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return trusting(broker).wrap_socket(raw, server_hostname="127.0.0.1")


def produce_of(size: int) -> bytes:
    """Return a produce request of one batch with a value of `size` bytes."""
    records = memoryview(bytes(build_batch([Record(0, 1, None, Random(size).randbytes(size))])))
    body = ProduceRequest(
        acks=1,
        timeout_ms=TIMEOUT_S * 1000,
        topic_data=[
            TopicProduceData(
                name="t", partition_data=[PartitionProduceData(index=0, records=records)]
            )
        ],
    )
    return b"".join(encode_request(VERSION, 1, "test", body))


def accepted(answer: bytes) -> bool:
    """Return whether the broker took the batch."""
    _, body = decode_response(PRODUCE, VERSION, memoryview(answer))
    return body.responses[0].partition_responses[0].error_code == 0


def answer_of(stream: ssl.SSLSocket) -> bytes:
    return exactly(stream, int.from_bytes(exactly(stream, 4), "big"))


@pytest.mark.parametrize("seed", range(6))
def test_large_requests_arrive_whole_in_any_pieces(broker: TemporaryBroker, seed: int) -> None:
    random = Random(seed)
    longest = random.choice([40, 700, 1800, 16_384, 60_000])
    sizes = [random.randrange(1, 1000), random.randrange(60_000, 110_000), 300_000]
    random.shuffle(sizes)
    with connected(broker) as stream:
        for size in sizes:
            request = produce_of(size if longest > 40 else size // 10)
            start = 0
            while start < len(request):
                end = start + random.randrange(1, longest + 1)
                stream.sendall(request[start:end])
                start = end
                if random.random() < 0.01:
                    time.sleep(0.002)  # the broker comes to the end of what has arrived
            assert accepted(answer_of(stream))


def test_a_large_request_fits_through_the_smallest_receive_buffer() -> None:
    """Linux lowers a low-water mark that the buffer cannot hold; otherwise neither side could go on."""
    with TemporaryBroker({"socket.receive.buffer.bytes": "4096"}, tls=True) as broker:
        create_topic(broker)
        with connected(broker) as stream:
            stream.sendall(produce_of(400_000))
            assert accepted(answer_of(stream))


@pytest.mark.parametrize("last", [1, 9, 5_000, 16_000])
def test_the_end_of_the_last_record_is_waited_for(broker: TemporaryBroker, last: int) -> None:
    """What OpenSSL has of a record that has not ended does not come again."""
    raw, incoming, outgoing = plain(broker), ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting(broker).wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with raw:
        handshake(raw, client, incoming, outgoing)
        request = produce_of(100_000)
        for part in (request[:-16_384], request[-16_384:]):
            client.write(part)
        encrypted = outgoing.read()
        raw.sendall(encrypted[:-last])
        time.sleep(0.05)
        raw.sendall(encrypted[-last:])
        answer = b""
        while not answer:
            incoming.write(raw.recv(1 << 16))
            with suppress(ssl.SSLWantReadError):
                answer = client.read(1 << 16)
        assert accepted(answer[4:])


def test_the_broker_does_not_wake_up_for_each_record(
    broker: TemporaryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []
    updated = tls_server.TlsConnection.buffer_updated

    def noted(self: tls_server.TlsConnection, nbytes: int) -> None:
        reads.append(nbytes)
        updated(self, nbytes)

    monkeypatch.setattr(tls_server.TlsConnection, "buffer_updated", noted)
    request = produce_of(400_000)
    with connected(broker) as stream:
        stream.sendall(request[:20_000])  # so that the broker knows the request's size
        time.sleep(0.05)
        before = len(reads)
        for start in range(20_000, 320_000, 1000):
            stream.sendall(request[start : start + 1000])
            time.sleep(0.0005)
        # A few for each 64 KiB; otherwise there is one for nearly each record of 1,000 bytes.
        assert len(reads) - before <= 30
        stream.sendall(request[320_000:])
        assert accepted(answer_of(stream))


def test_a_client_that_disconnects_within_a_large_request_is_forgotten(
    broker: TemporaryBroker,
) -> None:
    request = produce_of(400_000)
    with connected(broker) as stream:
        stream.sendall(request[:20_000])
        time.sleep(0.05)
        stream.sendall(request[20_000:25_000])  # too little to wake the broker
        raw = socket.socket(fileno=stream.detach())
    with raw:
        raw.settimeout(TIMEOUT_S)
        raw.shutdown(socket.SHUT_WR)
        while raw.recv(1 << 16):
            pass
