"""Goal: fetch sessions over the wire: an answer holds only changed partitions, and Java's consumer uses a session.

Method: hand-made requests to a broker process with room for one session, which shows whether the room is taken.
"""

import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Producer, TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic
from tests.broker_process import BrokerProcess, broker_process
from tests.compat.tools import java_command, java_environment

from stratalog.errors import ErrorCode
from stratalog.wire.envelope import decode_response, encode_request
from stratalog.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)

FETCH = 1
PARTITIONS = 3
TIMEOUT_S = 60
SLOTS = "max__incremental__fetch__session__cache__slots"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path, **{SLOTS: "1"}) as running:
        admin = AdminClient({"bootstrap.servers": running.address, "log_level": 0})
        admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result(TIMEOUT_S)
        yield running


def produce(broker: BrokerProcess, index: int, values: Sequence[str]) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "log_level": 0})
    for value in values:
        producer.produce("t", value, partition=index)
    assert producer.flush(TIMEOUT_S) == 0


class Reader:
    """One connection that sends hand-made Fetch requests."""

    def __init__(self, broker: BrokerProcess, version: int, topic: Any) -> None:
        self.socket = socket.create_connection(("127.0.0.1", broker.port), TIMEOUT_S)
        self.stream = self.socket.makefile("rb")
        self.version = version
        self.named = {"topic_id": topic} if version >= 13 else {"topic": topic}

    def close(self) -> None:
        self.stream.close()
        self.socket.close()

    def fetch(
        self,
        session_id: int,
        epoch: int,
        offsets: dict[int, int],
        forgotten: Sequence[int] = (),
        **more: Any,
    ) -> FetchResponse:
        partitions = [
            FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
            for index, offset in offsets.items()
        ]
        gone = ForgottenTopic(**self.named, partitions=forgotten)
        body = FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=1 << 20,
            session_id=session_id,
            session_epoch=epoch,
            topics=[FetchTopic(**self.named, partitions=partitions)] if offsets else [],
            forgotten_topics_data=[gone] if forgotten else [],
            **more,
        )
        for piece in encode_request(self.version, 1, "test", body):
            self.socket.sendall(piece)
        size = int.from_bytes(self.stream.read(4))
        _, answer = decode_response(FETCH, self.version, memoryview(self.stream.read(size)))
        return answer


def sizes(answer: FetchResponse) -> dict[int, int]:
    """Return partition -> bytes of records."""
    return {
        one.partition_index: len(one.records)
        for topic in answer.responses
        for one in topic.partitions
    }


def topic_id(broker: BrokerProcess) -> Any:
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    found = admin.describe_topics(TopicCollection(["t"]))["t"].result(TIMEOUT_S).topic_id
    high, low = found.get_most_significant_bits(), found.get_least_significant_bits()
    return UUID(int=(high % (1 << 64)) << 64 | low % (1 << 64))


@contextmanager
def reading(broker: BrokerProcess, version: int) -> Iterator[Reader]:
    reader = Reader(broker, version, topic_id(broker) if version >= 13 else "t")
    try:
        yield reader
    finally:
        reader.close()


@pytest.mark.parametrize("version", [7, 12, 13, 17])
def test_a_fetch_answers_only_changed_partitions(broker: BrokerProcess, version: int) -> None:
    with reading(broker, version) as reader:
        first = reader.fetch(0, 0, {0: 0, 1: 0, 2: 0})
        assert first.session_id > 0
        assert sizes(first) == {0: 0, 1: 0, 2: 0}
        session_id = first.session_id
        assert sizes(reader.fetch(session_id, 1, {})) == {}
        produce(broker, 1, ["x"])
        news = reader.fetch(session_id, 2, {})
        assert news.session_id == session_id
        [size] = sizes(news).values()
        assert sizes(news) == {1: size}
        assert size > 0
        assert sizes(reader.fetch(session_id, 3, {1: 1})) == {}
        produce(broker, 1, ["y"])
        produce(broker, 2, ["z"])
        assert sizes(reader.fetch(session_id, 4, {}, forgotten=[1])).keys() == {2}
        assert reader.fetch(session_id, 4, {}).error_code == ErrorCode.invalid_fetch_session_epoch
        other = reader.fetch(session_id + 1, 4, {}).error_code
        assert other == ErrorCode.fetch_session_id_not_found
        assert reader.fetch(0, 0, {0: 0}).session_id == 0, "there is no room for a second session"
        assert reader.fetch(session_id, -1, {0: 0}).session_id == 0
        assert reader.fetch(0, 0, {0: 0}).session_id > 0, "the first session has ended"


def test_names_and_ids_do_not_mix_in_one_session(broker: BrokerProcess) -> None:
    with reading(broker, 12) as named, reading(broker, 13) as by_id:
        session_id = named.fetch(0, 0, {0: 0}).session_id
        mixed = by_id.fetch(session_id, 1, {}).error_code
        assert mixed == ErrorCode.fetch_session_topic_id_error
        assert named.fetch(session_id, 1, {}).error_code == ErrorCode.none


def test_javas_consumer_reads_in_a_session(broker: BrokerProcess) -> None:
    """Java's consumer reads in several fetches. Meanwhile it holds the only session; afterwards the room is free."""
    goes = [[f"{go} {number}" for number in range(50)] for go in range(4)]
    command = java_command(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", broker.address, "--topic", "t", "--from-beginning"),
        *("--max-messages", "200", "--timeout-ms", "30000"),
    )
    with (
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=java_environment(),
        ) as consumer,
        reading(broker, 12) as reader,
    ):
        deadline_s = time.monotonic() + TIMEOUT_S
        while (session_id := reader.fetch(0, 0, {0: 0}).session_id) != 0:
            # The room was still free: close this session again.
            reader.fetch(session_id, -1, {})
            assert time.monotonic() < deadline_s, "the consumer opened no session"
            time.sleep(0.05)
        for go, values in enumerate(goes):
            # Not behind the last records: with them the consumer may have ended already.
            assert reader.fetch(0, 0, {0: 0}).session_id == 0, "the consumer has lost its session"
            produce(broker, go % PARTITIONS, values)
            time.sleep(0.2)
        out, err = consumer.communicate(timeout=TIMEOUT_S)
        assert reader.fetch(0, 0, {0: 0}).session_id > 0, "the consumer has closed its session"
    assert sorted(out.split("\n")[:-1]) == sorted(value for values in goes for value in values), err
