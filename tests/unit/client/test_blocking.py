"""The blocking client over streams that the test scripts."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from stratalog.adapters.blocking_socket import BlockingStream
from stratalog.client import apis, calls
from stratalog.client.blocking import BlockingClient
from stratalog.errors import Unavailable
from stratalog.ports import Buffer, Tls
from stratalog.wire.budget import TRUSTED
from stratalog.wire.envelope import encode_response, parse_header
from stratalog.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from stratalog.wire.messages.init_producer_id import InitProducerIdResponse


@dataclass
class ScriptedStream:
    """Answer ApiVersions, then follow `answers`: raise an error, or close the stream for None."""

    answers: list[OSError | None] = field(default_factory=list)
    waiting: bytes = b""
    closed: bool = False

    def send(self, buffers: Sequence[Buffer]) -> None:
        header, _ = parse_header(memoryview(b"".join(map(bytes, buffers)))[4:], TRUSTED)
        body: ApiVersionsResponse | InitProducerIdResponse
        if header.api_key == apis.API_VERSIONS:
            body = ApiVersionsResponse(
                error_code=0,
                api_keys=[
                    ApiVersion(api_key=key, min_version=low, max_version=high)
                    for key, (low, high) in apis.SPOKEN.items()
                ],
            )
        else:
            if self.answers:
                error = self.answers.pop(0)
                if error is not None:
                    raise error
                self.waiting = b""
                return
            body = InitProducerIdResponse(error_code=0, producer_id=5, producer_epoch=0)
        pieces = encode_response(header.api_key, header.version, header.correlation_id, body)
        self.waiting += b"".join(map(bytes, pieces))

    def receive_into(self, buffer: memoryview) -> int:
        count = min(len(buffer), len(self.waiting), 7)
        buffer[:count] = self.waiting[:count]
        self.waiting = self.waiting[count:]
        return count

    def close(self) -> None:
        self.closed = True


@dataclass
class ScriptedNetwork:
    """Return the streams in order; raise an OSError that stands in place of a stream."""

    streams: list[ScriptedStream | OSError]
    paused: list[float] = field(default_factory=list)
    asked: list[tuple[str, int]] = field(default_factory=list)

    def connect(
        self, host: str, port: int, timeout_s: float, tls: Tls | None = None
    ) -> ScriptedStream:
        assert tls is None
        assert timeout_s == 30.0
        self.asked.append((host, port))
        found = self.streams.pop(0)
        if isinstance(found, OSError):
            raise found
        return found

    def now_s(self) -> float:
        return sum(self.paused)

    def pause(self, seconds: float) -> None:
        self.paused.append(seconds)


def test_a_call_goes_to_the_first_server_that_answers() -> None:
    network = ScriptedNetwork([ConnectionRefusedError(111, "Connection refused"), ScriptedStream()])
    with BlockingClient(network, "a:1,b:2") as client:
        assert client.call(calls.init_producer_id()) == (5, 0)
        assert network.asked == [("a", 1), ("b", 2)]


def test_a_connection_is_kept_and_closed() -> None:
    stream = ScriptedStream()
    with BlockingClient(ScriptedNetwork([stream]), "a:1") as client:
        assert client.call(calls.init_producer_id()) == (5, 0)
        assert client.call(calls.init_producer_id()) == (5, 0)
    assert stream.closed


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (TimeoutError(), "broker a:1 did not answer in time"),
        (ConnectionResetError(104, "Connection reset by peer"), "Connection reset by peer"),
        (None, "broker a:1 closed the connection"),
    ],
)
def test_a_failed_connection_is_closed_and_opened_again(error: OSError | None, says: str) -> None:
    broken, whole = ScriptedStream([error]), ScriptedStream()
    client = BlockingClient(ScriptedNetwork([broken, whole]), "a:1")
    with pytest.raises(Unavailable, match=says):
        client.call(calls.init_producer_id())
    assert broken.closed
    assert client.call(calls.init_producer_id()) == (5, 0)


def test_without_a_server_a_call_fails_after_growing_pauses() -> None:
    refused = ConnectionRefusedError(111, "Connection refused")
    network = ScriptedNetwork([refused] * 20)
    with pytest.raises(Unavailable, match="broker a:1 unreachable: Connection refused"):
        BlockingClient(network, "a:1").metadata([])
    assert network.paused == sorted(network.paused), "the pauses do not grow"
    assert len(network.paused) > 3


def test_a_patient_call_waits_for_its_whole_time_and_logs_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused = ConnectionRefusedError(111, "Connection refused")
    network = ScriptedNetwork([refused] * 99)
    with pytest.raises(Unavailable, match="broker a:1 unreachable: Connection refused"):
        BlockingClient(network, "a:1", patience_s=60).metadata([])
    assert 60 <= network.now_s() <= 62
    assert caplog.messages == [
        "broker a:1 unreachable: Connection refused: trying again for up to 60 s"
    ]


def test_an_evicted_clients_stream_is_closed_without_a_warning():
    """The fifth log that a process reads evicts the first one's client from the cache."""
    near, far = socket.socketpair()
    with far:
        stream = BlockingStream(near)
        del near, stream
        assert far.recv(1) == b""
