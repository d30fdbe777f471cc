"""A connection's protocol state, without a network: the test feeds it a broker's bytes."""

import pickle

import pytest

from stratalog.client import apis, calls
from stratalog.client.calls import asking
from stratalog.client.core import ClientConnection, DamagedAnswer
from stratalog.errors import Corrupt, ErrorCode, Rejected, Unavailable
from stratalog.ports import Buffer
from stratalog.wire.budget import TRUSTED
from stratalog.wire.envelope import encode_response, parse_header
from stratalog.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from stratalog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from stratalog.wire.messages.sasl_handshake import SaslHandshakeRequest

EVERYTHING = dict.fromkeys(apis.SPOKEN, (0, 99))


def connection() -> ClientConnection:
    made = ClientConnection("host:9", "tester")
    made.versions = EVERYTHING
    return made


def feed(made: ClientConnection, data: bytes, *, step: int = 1 << 20) -> list[tuple[int, object]]:
    """Deliver bytes in steps, as a socket would."""
    answers: list[tuple[int, object]] = []
    for start in range(0, len(data), step):
        rest = memoryview(data)[start : start + step]
        while rest:
            target = made.get_buffer()
            count = min(len(target), len(rest))
            target[:count] = rest[:count]
            answers += made.received(count)
            rest = rest[count:]
    return answers


def joined(pieces: list[Buffer]) -> bytes:
    return b"".join(bytes(piece) for piece in pieces)


def producer_id(correlation_id: int, *, error: ErrorCode = ErrorCode.none) -> bytes:
    body = InitProducerIdResponse(
        error_code=error, producer_id=7 + correlation_id, producer_epoch=1
    )
    return joined(encode_response(22, 4, correlation_id, body))


def test_a_request_carries_the_highest_version_that_both_know() -> None:
    made = connection()
    made.versions = {apis.METADATA: (0, 10)}
    _, pieces = made.send(calls.metadata(["t"]))
    header, _ = parse_header(memoryview(joined(pieces))[4:], TRUSTED)
    assert (header.api_key, header.version, header.client_id) == (apis.METADATA, 10, "tester")
    made.versions = EVERYTHING
    _, pieces = made.send(calls.metadata(["t"]))
    header, _ = parse_header(memoryview(joined(pieces))[4:], TRUSTED)
    assert header.version == apis.SPOKEN[apis.METADATA][1]


@pytest.mark.parametrize("served", [{}, {apis.METADATA: (0, 8)}, {apis.METADATA: (14, 20)}])
def test_a_broker_without_a_common_version_is_refused(served: dict[int, tuple[int, int]]) -> None:
    made = connection()
    made.versions = served
    with pytest.raises(Rejected, match="host:9 does not serve API 3") as refused:
        made.send(calls.metadata([]))
    assert refused.value.code is ErrorCode.unsupported_version
    assert not made.waiting


@pytest.mark.parametrize(
    ("sent", "known"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ": it answers as an HTTP server"),
        (
            b"\x15\x03\x03\x00\x02\x02\x46",
            ": it answers with TLS; set security.protocol=SSL, or SASL_SSL with a login",
        ),
        (b"SSH-2.0-OpenSSH_9.2\r\n", ": it answers as an SSH server"),
        (b"220 mail ESMTP\r\n", ""),
        (b"\x4a\x00\x00\x00\x0a8.0.36\x00", ""),  # MySQL's greeting
    ],
)
def test_an_answer_in_another_protocol_is_named(sent: bytes, known: str) -> None:
    made = ClientConnection("host:9", "tester")
    made.send(calls.api_versions())
    with pytest.raises(Unavailable) as refused:
        feed(made, sent)
    assert str(refused.value) == f"host:9 does not speak Kafka's protocol{known}"
    assert str(made.unreachable(refused.value)) == f"broker host:9 unreachable: {refused.value}"


def test_a_closed_connection_asks_the_user_to_check_the_port() -> None:
    made = ClientConnection("host:9", "tester")
    made.send(calls.api_versions())
    failed = made.unreachable(Unavailable("broker host:9 closed the connection"))
    assert str(failed).endswith(
        "closed the connection; is this the port of a Kafka listener? "
        "Where it has TLS, set security.protocol=SSL, or SASL_SSL with a login"
    )


@pytest.mark.parametrize("is_secured", [False, True])
def test_a_connection_that_ends_at_its_first_request_may_need_a_login(is_secured: bool) -> None:
    made = ClientConnection("host:9", "tester", is_secured=is_secured)
    plain = "broker host:9 closed the connection"
    protocol = "SASL_SSL" if is_secured else "SASL_PLAINTEXT"
    made.send(calls.api_versions())
    assert str(made.closed()) == plain, "unreachable() has its own hints"
    made.versions = EVERYTHING
    made._open.clear()
    made.send(calls.init_producer_id())
    hint = f"; where its listener asks for a login, set security.protocol={protocol}"
    assert str(made.closed("reset")) == f"{plain}: reset{hint}"
    feed(made, producer_id(1))
    assert str(made.closed()) == plain, "it has answered"
    made.send(calls.init_producer_id())
    assert str(made.closed()) == plain, "it has answered one before"
    at_login = ClientConnection("host:9", "tester", is_secured=is_secured)
    at_login.send(calls.api_versions())
    at_login._open.clear()
    at_login.versions = EVERYTHING
    at_login.send(asking(SaslHandshakeRequest(mechanism="PLAIN"), bool))
    assert str(at_login.closed()) == plain, "it logs in"


def test_answers_keep_their_order_in_pieces_of_any_size() -> None:
    made = connection()
    ids = [made.send(calls.init_producer_id())[0] for _ in range(3)]
    data = b"".join(producer_id(number) for number in ids)
    assert feed(made, data, step=3) == [(number, (7 + number, 1)) for number in ids]
    assert not made.waiting


def test_an_error_answer_fails_only_its_own_call() -> None:
    made = connection()
    first, second = (made.send(calls.init_producer_id())[0] for _ in range(2))
    error = ErrorCode.coordinator_load_in_progress
    answers = feed(made, producer_id(first, error=error) + producer_id(second))
    assert isinstance(answers[0][1], Rejected)
    assert answers[0][1].code is error
    assert answers[1] == (second, (7 + second, 1))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (producer_id(5), "answered 5, not 0"),
        (b"\0\0\0\5\0\0\0\0\0", "cannot be read"),
        (producer_id(0) + b"\xff\xff\xff\xff", "a frame of -1 bytes"),
        (producer_id(0) + producer_id(1), "an answer to nothing"),
    ],
)
def test_a_malformed_stream_loses_the_connection(data: bytes, says: str) -> None:
    made = connection()
    made.send(calls.init_producer_id())
    with pytest.raises(DamagedAnswer, match=f"broker host:9.*{says}") as damaged:
        feed(made, data)
    assert isinstance(damaged.value, Unavailable)
    assert pickle.loads(pickle.dumps(damaged.value)).api_key == damaged.value.api_key


def test_an_answer_that_its_reader_finds_senseless_loses_the_connection() -> None:
    def read(_body: InitProducerIdResponse) -> int:
        raise Corrupt("a producer id of -1")

    made = connection()
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
    made.send(asking(request, read, highest=4))
    with pytest.raises(DamagedAnswer, match="cannot be read: a producer id of -1") as damaged:
        feed(made, producer_id(0))
    assert damaged.value.api_key == 22


@pytest.mark.parametrize("versions", [(5, 4), (-1, 4), (-3, -2)])
def test_versions_that_no_server_has_lose_the_connection(versions: tuple[int, int]) -> None:
    made = ClientConnection("host:9", "tester")
    made.send(calls.api_versions())
    served = ApiVersion(api_key=1, min_version=versions[0], max_version=versions[1])
    body = ApiVersionsResponse(error_code=0, api_keys=[served])
    version = apis.SPOKEN[18][1]
    with pytest.raises(DamagedAnswer, match="of API 1"):
        feed(made, joined(encode_response(18, version, 0, body)))


def test_a_produce_without_acknowledgement_is_not_waited_for() -> None:
    made = connection()
    made.send(calls.produce("t", 0, b"batch", acks=0, timeout_ms=1))
    without = made.waiting
    made.send(calls.produce("t", 0, b"batch", acks=1, timeout_ms=1))
    assert (without, made.waiting) == (0, 1)
