"""Goal: no order, repetition or end of a login lets a client do more than its right login does.

Method: requests of every kind in one segment of TCP, before the broker can have answered any; credentials that are
deleted while a client is connected.
"""

import socket
import struct
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from tests.integration.test_sasl import TIMEOUT_S, WORD, Raw, exchange, librdkafka, settings

from stratalog.testing.broker import TemporaryBroker

RIGHT, WRONG = b"\0admin\0" + WORD.encode(), b"\0admin\0wrong"
SASL_HANDSHAKE, SASL_AUTHENTICATE, METADATA, DELETE_TOPICS = 17, 36, 3, 20


@pytest.fixture(scope="module")
def broker() -> Iterator[TemporaryBroker]:
    with TemporaryBroker(settings()) as started:
        yield started


def frame(key: int, version: int, body: bytes, number: int) -> bytes:
    whole = struct.pack(">hhih", key, version, number, -1) + body
    return struct.pack(">i", len(whole)) + whole


def handshake(version: int = 1) -> tuple[int, int, bytes]:
    return SASL_HANDSHAKE, version, struct.pack(">h", 5) + b"PLAIN"


def authenticate(token: bytes) -> tuple[int, int, bytes]:
    return SASL_AUTHENTICATE, 0, struct.pack(">i", len(token)) + token


ALL_TOPICS = METADATA, 4, struct.pack(">i?", -1, False)
DELETE = DELETE_TOPICS, 1, struct.pack(">ih1si", 1, 1, b"t", 1000)


def answered(broker: TemporaryBroker, *requests: tuple[int, int, bytes]) -> list[int]:
    """Send all requests in one segment; return the numbers of those that are answered before the connection ends."""
    host, _, port = broker.address.partition(":")
    data = b"".join(frame(*one, number) for number, one in enumerate(requests))
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as stream:
        stream.sendall(data)
        received = b""
        with suppress(ConnectionResetError):  # the broker ends it with requests unread
            while piece := stream.recv(1 << 16):
                received += piece
    numbers = []
    while received:
        size, number = struct.unpack_from(">ii", received)
        numbers.append(number)
        received = received[4 + size :]
    return numbers


@pytest.mark.parametrize(
    ("requests", "served"),
    [
        ([ALL_TOPICS, handshake(), authenticate(RIGHT)], 0),
        ([authenticate(RIGHT), ALL_TOPICS], 1),
        ([handshake(), ALL_TOPICS, authenticate(RIGHT), ALL_TOPICS], 1),
        ([handshake(), DELETE, authenticate(RIGHT), DELETE], 1),
        ([handshake(), authenticate(WRONG), ALL_TOPICS, DELETE], 2),
        ([handshake(), authenticate(WRONG), handshake(), authenticate(RIGHT), ALL_TOPICS], 2),
        ([handshake(), authenticate(WRONG), authenticate(RIGHT), ALL_TOPICS], 2),
        ([handshake(0), authenticate(RIGHT), ALL_TOPICS], 1),
    ],
)
def test_nothing_behind_a_failed_or_unfinished_login_is_answered(
    broker: TemporaryBroker, requests: list[tuple[int, int, bytes]], served: int
) -> None:
    assert answered(broker, *requests) == list(range(served))


def test_a_deleted_user_does_not_authenticate_again() -> None:
    """The session goes on to its end, as in Apache Kafka; a new exchange on it is refused, and ends it."""
    with TemporaryBroker(settings() | {"connections.max.reauth.ms": "60000"}) as broker:
        admin = AdminClient(librdkafka(broker, "PLAIN", "admin", WORD))
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        user = "al,i=ce"
        change = UserScramCredentialUpsertion(user, info, WORD.encode())
        admin.alter_user_scram_credentials([change])[user].result(TIMEOUT_S)
        with closing(Raw(broker)) as again, closing(Raw(broker)) as silent:
            for raw in (again, silent):
                _, answer = exchange(raw, "abc")
                assert answer is not None
                assert answer[0] == 0
                assert raw.is_open()
            delete = UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_256)
            admin.alter_user_scram_credentials([delete])[user].result(TIMEOUT_S)
            assert again.is_open()
            _, refused = exchange(again, "abc")
            assert refused == (58, b"")
            assert not again.is_open()
            broker.advance(60_001)
            assert not silent.is_open()
