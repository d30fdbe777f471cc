"""Third-party clients against a real broker process: each one consumes the records of all of them."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic
from kafka import KafkaConsumer, KafkaProducer
from tests.broker_process import BrokerProcess, broker_process
from tests.compat.tools import java, kafka_lib

RECORDS = 2_000
TIMEOUT_S = 30


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("broker")) as running:
        yield running


def create(broker: BrokerProcess, name: str, partitions: int = 2, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    settings = {key.replace("__", "."): value for key, value in configs.items()}
    topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
    for future in admin.create_topics([topic]).values():
        future.result(TIMEOUT_S)


def produce(broker: BrokerProcess, topic: str, count: int = RECORDS, **options: object) -> None:
    failures: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": broker.address, **options})
    for number in range(count):
        producer.produce(
            topic,
            key=b"%d" % number,
            value=b"value %d" % number,
            headers={"h": b"%d" % number},
            on_delivery=lambda error, _message: failures.append(error) if error else None,
        )
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0
    assert failures == []


def expected(count: int = RECORDS) -> set[tuple[bytes, bytes]]:
    return {(b"%d" % number, b"value %d" % number) for number in range(count)}


def consume_group(
    broker: BrokerProcess, topic: str, group: str, count: int
) -> list[tuple[bytes, bytes]]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    found: list[tuple[bytes, bytes]] = []
    try:
        while len(found) < count:
            messages = consumer.consume(count, timeout=TIMEOUT_S)
            assert messages, f"only {len(found)} of {count}"
            for message in messages:
                assert message.error() is None
                found.append((message.key(), message.value()))
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_confluent_kafka_with_every_codec(broker: BrokerProcess, codec: str) -> None:
    topic = f"codec-{codec}"
    create(broker, topic)
    produce(broker, topic, **{"compression.type": codec, "enable.idempotence": True})
    found = consume_group(broker, topic, f"group-{codec}", RECORDS)
    assert sorted(found) == sorted(expected())


def test_a_group_continues_at_its_committed_offset(broker: BrokerProcess) -> None:
    create(broker, "resumed", partitions=1)
    produce(broker, "resumed", 100)
    assert len(consume_group(broker, "resumed", "resuming", 100)) == 100
    produce(broker, "resumed", 50)
    assert set(consume_group(broker, "resumed", "resuming", 50)) == expected(50)


def test_kafka_python_reads_what_confluent_kafka_wrote_and_back(broker: BrokerProcess) -> None:
    create(broker, "crossed")
    produce(broker, "crossed")
    consumer = KafkaConsumer(
        "crossed",
        bootstrap_servers=broker.address,
        group_id="python",
        auto_offset_reset="earliest",
        consumer_timeout_ms=TIMEOUT_S * 1000,
    )
    found = []
    for record in consumer:
        found.append((record.key, record.value))
        if len(found) == RECORDS:
            break
    consumer.close()
    assert set(found) == expected()

    producer = KafkaProducer(bootstrap_servers=broker.address, acks="all")
    futures = [producer.send("crossed", key=b"k", value=b"from python %d" % i) for i in range(100)]
    producer.flush(TIMEOUT_S)
    assert all(future.get(TIMEOUT_S).offset >= 0 for future in futures)
    producer.close()
    both = consume_group(broker, "crossed", "after", RECORDS + 100)
    assert {(b"k", b"from python %d" % i) for i in range(100)} <= set(both)


def test_offsets_by_time_and_at_both_ends(broker: BrokerProcess) -> None:
    create(broker, "timed", partitions=1, retention__ms="-1")
    producer = Producer({"bootstrap.servers": broker.address})
    for number in range(10):
        producer.produce("timed", value=b"x", timestamp=1_700_000_000_000 + number * 1000)
    assert producer.flush(TIMEOUT_S) == 0
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "timed"})
    assert consumer.get_watermark_offsets(TopicPartition("timed", 0), timeout=TIMEOUT_S) == (0, 10)
    wanted = TopicPartition("timed", 0, 1_700_000_000_000 + 4500)
    assert consumer.offsets_for_times([wanted], timeout=TIMEOUT_S)[0].offset == 5
    consumer.close()


def test_a_topic_is_created_deleted_and_created_in_a_loop(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    for round_number in range(10):
        create(broker, "again", partitions=1)
        produce(broker, "again", round_number + 1)
        consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "again"})
        seen = consumer.get_watermark_offsets(TopicPartition("again", 0), timeout=TIMEOUT_S)
        consumer.close()
        assert seen == (0, round_number + 1), "a topic created again starts empty"
        for future in admin.delete_topics(["again"]).values():
            future.result(TIMEOUT_S)


def test_describe_configs_answers_a_topics_settings(broker: BrokerProcess) -> None:
    create(broker, "limited", retention__ms="12345")
    admin = AdminClient({"bootstrap.servers": broker.address})
    resource = ConfigResource(ConfigResource.Type.TOPIC, "limited")
    found = admin.describe_configs([resource])[resource].result(TIMEOUT_S)
    assert found["retention.ms"].value == "12345"
    assert found["cleanup.policy"].value == "delete"


def test_existing_and_invalid_topics_are_refused_with_kafkas_codes(broker: BrokerProcess) -> None:
    create(broker, "taken")
    for name, code in (
        ("taken", KafkaError.TOPIC_ALREADY_EXISTS),
        ("no/slash", KafkaError.TOPIC_EXCEPTION),
    ):
        with pytest.raises(Exception) as failure:
            create(broker, name)
        assert failure.value.args[0].code() == code


def java_tool(broker: BrokerProcess, name: str, *args: str, stdin: str = "") -> str:
    done = subprocess.run(
        [java(), "-Xmx256m", "-cp", f"{kafka_lib()}/*", f"org.apache.kafka.tools.{name}", *args],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_javas_console_producer_and_consumer(broker: BrokerProcess) -> None:
    create(broker, "java", partitions=1)
    lines = [f"line {number}" for number in range(500)]
    bootstrap = ["--bootstrap-server", broker.address]
    java_tool(
        broker, "ConsoleProducer", *bootstrap, "--topic", "java", stdin="\n".join(lines) + "\n"
    )
    said = java_tool(
        broker,
        "consumer.ConsoleConsumer",
        *bootstrap,
        *("--topic", "java", "--from-beginning", "--max-messages", "500", "--timeout-ms", "30000"),
    )
    assert said.splitlines() == lines


def test_a_clean_stop_exits_with_0_and_loses_no_record(tmp_path: Path) -> None:
    with broker_process(tmp_path) as broker:
        create(broker, "kept")
        produce(broker, "kept", 100)
        consume_group(broker, "kept", "g", 100)
        assert broker.stop() == 0
        broker.start()
        produce(broker, "kept", 10)
        assert set(consume_group(broker, "kept", "g", 10)) == expected(10)
