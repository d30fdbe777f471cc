"""Goal: a hostile producer cannot stop a consumer.

Method: one topic gets valid batches, and between them every kind of poison, in every codec. librdkafka, kafka-python,
and Java's console consumer must read every acknowledged record, odd ones too, and no other. (Spark does in
`tests/integration/test_spark_broker.py`.)
"""

import subprocess
from collections.abc import Iterator
from random import Random

import pytest
from confluent_kafka import Consumer, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as Partition
from tests.broker_process import BrokerProcess, broker_process
from tests.compat.tools import java_command, java_environment
from tests.fuzz.poison import poisonings, sound
from tests.wire_client import Wire

from stratalog.wire.batch import CODEC_MASK, parse_header
from stratalog.wire.compression import CODEC_NAMES

TOPIC = "poisoned"
CODEC_AT = 22
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(
        tmp_path_factory.mktemp("broker"),
        log__retention__hours="-1",
        auto__create__topics__enable="true",
    ) as running:
        yield running


def poisoned(broker: BrokerProcess, topic: str, codecs: tuple[int, ...]) -> int:
    """Produce every kind in these codecs; return the topic's end."""
    offset = refused = 0
    with Wire(broker.address) as wire:
        wire.topic_id(topic)
        for number, poison in enumerate(poisonings(Random(3))):
            for batch in (poison, sound(CODEC_NAMES[codecs[number % len(codecs)]])):
                if batch[CODEC_AT] & CODEC_MASK not in codecs:
                    continue
                answer = wire.produce(topic, batch)
                if answer.error_code:
                    refused += 1
                    continue
                assert answer.base_offset == offset
                offset += parse_header(batch).record_count
    assert refused > 30 * len(codecs), "too few malformed batches were acknowledged"
    return offset


@pytest.fixture(scope="module")
def end(broker: BrokerProcess) -> int:
    return poisoned(broker, TOPIC, (0, 1, 2, 3, 4))


def test_librdkafka_reads_every_acknowledged_record(broker: BrokerProcess, end: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "reader"})
    found: list[int | None] = []
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        while len(found) < end:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, f"nothing behind {found[-3:]}"
            assert message.error() is None
            message.headers()
            found.append(message.offset())
    finally:
        consumer.close()
    assert found == list(range(end))


def test_kafka_python_reads_every_acknowledged_record(broker: BrokerProcess) -> None:
    end = poisoned(
        broker, "gzip", (0, 1)
    )  # kafka-python needs further libraries for the other codecs
    consumer = KafkaConsumer(
        bootstrap_servers=broker.address, consumer_timeout_ms=TIMEOUT_S * 1000, check_crcs=True
    )
    found: list[int] = []
    try:
        consumer.assign([Partition("gzip", 0)])
        consumer.seek_to_beginning()
        for message in consumer:
            found.append(message.offset)
            if len(found) == end:
                break
    finally:
        consumer.close()
    assert found == list(range(end))


def test_javas_console_consumer_reads_every_acknowledged_record(
    broker: BrokerProcess, end: int
) -> None:
    said = subprocess.run(
        [
            *java_command("org.apache.kafka.tools.consumer.ConsoleConsumer"),
            *("--bootstrap-server", broker.address, "--topic", TOPIC, "--from-beginning"),
            *("--max-messages", str(end), "--timeout-ms", str(TIMEOUT_S * 1000)),
            *("--formatter-property", "print.offset=true"),
            *("--formatter-property", "print.value=false"),
            *("--formatter-property", "print.headers=true"),
        ],
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT_S,
        check=True,
        env=java_environment(),
    )
    found = [line.split("\t")[0] for line in said.stdout.splitlines()]
    assert found == [f"Offset:{offset}" for offset in range(end)]
