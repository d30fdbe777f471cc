"""The floor of `bench.broker` serves what the bench's clients ask: otherwise its lines would measure something else."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench import load
from bench.broker import create, drop
from bench.floor import floor, is_possible
from bench.peers import Server
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

pytestmark = pytest.mark.skipif(
    shutil.which(os.environ.get("CC", "cc")) is None, reason="needs a C compiler"
)
VALUES = [bytes([number % 251]) * (number * 37 % 5000) for number in range(2000)] + [
    b"x" * 900_000,
    b"the last",
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with floor(tmp_path / "floor") as server:
        create(server, "first", 1)
        yield server


def produce(server: Server, topic: str, values: list[bytes]) -> list[int]:
    offsets = []
    producer = Producer({"bootstrap.servers": server.address, "acks": 1, "linger.ms": 1})
    for value in values:
        producer.produce(
            topic, value, on_delivery=lambda error, message: offsets.append(message.offset())
        )
        producer.poll(0)
    assert producer.flush(60) == 0
    return offsets


def consume(server: Server, topic: str, count: int) -> list[bytes]:
    settings = {"bootstrap.servers": server.address, "group.id": "x", "enable.auto.commit": False}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    values = [message.value() for message in consumer.consume(count, 60)]
    consumer.close()
    return values


def test_records_come_back_in_order_and_once(server: Server) -> None:
    assert produce(server, "first", VALUES) == list(range(len(VALUES)))
    assert consume(server, "first", len(VALUES)) == VALUES


def test_a_dropped_topic_leaves_nothing_to_the_next(server: Server, tmp_path: Path) -> None:
    produce(server, "first", VALUES)
    drop(server, "first")
    assert (tmp_path / "floor" / "records").stat().st_size == 0
    create(server, "second", 1)
    assert produce(server, "second", [b"a", b"b"]) == [0, 1]
    assert consume(server, "second", 2) == [b"a", b"b"]


def test_many_connections_and_large_batches_are_answered(server: Server, tmp_path: Path) -> None:
    rate, cpu = load.many_producers(server, "first", 200, 0.2)
    assert rate > 0
    assert cpu > 0
    stored = (tmp_path / "floor" / "records").stat().st_size
    assert load.made_batches(server, "first", 100, 0.2).records > 0
    assert (tmp_path / "floor" / "records").stat().st_size > stored
    assert consume(server, "first", 1) == [bytes(100)]


def test_a_missing_compiler_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert not is_possible()
    assert capsys.readouterr().out == (
        "the floor in C is left out: there is no C compiler `no-such-compiler`; install one, or name it in CC\n"
    )
