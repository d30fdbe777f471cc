"""kill -9 of a real broker while it cleans a compacted topic on its disk and in its bucket.

Method: an acknowledged writer of few keys, with values and tombstones, rolls small segments, which go to a bucket; the
cleaners of both places run all the time. The broker is killed at random moments and starts again. Each time a consumer
reads from offset 0 across the seam, and finds the last acknowledged value of each key. At the end `stratalog.read` over
bucket and broker finds the same. `KILLS=50` sets how often (fewer here than by command).
"""

import os
import time
from pathlib import Path
from random import Random

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.broker_process import BrokerProcess, broker_process

from stratalog import read as read_table
from stratalog.adapters.object_store import open_store
from stratalog.tier.checking.verify import verify
from stratalog.tier.reading.reader import open_bucket

KILLS = int(os.environ.get("KILLS", "2"))
TOPIC = "prices"
KEYS = 30
TIMEOUT_S = 60
CONFIG = {
    "cleanup.policy": "compact",
    "remote.storage.enable": "true",
    "segment.bytes": str(1 << 20),
    "local.retention.bytes": str(2 << 20),
    "delete.retention.ms": "500",
    "file.delete.delay.ms": "100",
}
SETTINGS = {
    "log__cleaner__backoff__ms": "100",
    "log__cleaner__min__cleanable__ratio": "0.01",
    "log__retention__check__interval__ms": "300",
    "remote__log__manager__task__interval__ms": "300",
    "remote__delete__grace__ms": "2000",
}


class Writer:
    """Writes records one after another. `last` has the possible last values of each key, the acknowledged one alone
    once an answer came."""

    def __init__(self) -> None:
        self.last: dict[bytes, set[bytes | None]] = {}
        self._chance = Random(37)
        self._number = 0

    def write(self, broker: BrokerProcess, seconds: float) -> None:
        """Write for a while, then kill the broker with requests unanswered."""
        producer = Producer(
            {"bootstrap.servers": broker.address, "linger.ms": 1, "message.timeout.ms": 4000}
        )
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for _ in range(20):
                self._send(producer)
            producer.flush(TIMEOUT_S)
        for _ in range(20):
            self._send(producer)
        producer.poll(0)
        broker.kill()
        producer.purge()
        producer.flush(1)

    def _send(self, producer: Producer) -> None:
        self._number += 1
        key = b"key-%d" % self._chance.randrange(KEYS)
        text = b"%d-" % self._number
        value = None if self._chance.random() < 0.2 else text + self._chance.randbytes(20_000)
        self.last.setdefault(key, {None}).add(value)

        def answered(error: KafkaError | None, _message: Message) -> None:
            if error is None:
                self.last[key] = {value}

        producer.produce(TOPIC, value, key, partition=0, on_delivery=answered)

    def check(self, found: dict[bytes, bytes | None]) -> None:
        """Compare with what a reader found, which counts from now on."""
        for key, values in self.last.items():
            assert found.get(key) in values, f"{key!r} has an older value, or one that was deleted"
            values.intersection_update({found.get(key)})


def consumed(broker: BrokerProcess) -> dict[bytes, bytes | None]:
    """Read the topic from its start to its end, as any consumer does."""
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "g"})
    place = TopicPartition(TOPIC, 0, 0)
    low, high = consumer.get_watermark_offsets(place, timeout=TIMEOUT_S)
    assert low == 0
    consumer.assign([place])
    found: dict[bytes, bytes | None] = {}
    deadline = time.monotonic() + TIMEOUT_S
    while consumer.position([place])[0].offset < high:
        assert time.monotonic() < deadline, broker.log_text[-2000:]
        for message in consumer.consume(500, 0.2):
            assert message.error() is None, message.error()
            key = message.key()
            assert isinstance(key, bytes)
            found[key] = message.value()
    consumer.close()
    return found


def table_of(**where: str) -> dict[bytes, bytes]:
    rows = read_table(TOPIC, **where).read_all().to_pylist()
    last = {row["key"]: row["value"] for row in rows}
    return {key: value for key, value in last.items() if value is not None}


def cleanings(text: str) -> tuple[int, int]:
    return text.count("log cleaned"), text.count("bucket cleaned")


def test_the_last_values_survive_kills_during_cleanings(tmp_path: Path) -> None:
    writer, chance = Writer(), Random(5)
    with broker_process(tmp_path, **SETTINGS) as broker:
        url = broker.bucket_url
        admin = AdminClient({"bootstrap.servers": broker.address})
        for future in admin.create_topics([NewTopic(TOPIC, 1, 1, config=CONFIG)]).values():
            future.result(TIMEOUT_S)
        for _ in range(KILLS):
            writer.write(broker, chance.uniform(1, 3))
            broker.start()
            writer.check(consumed(broker))
        deadline = time.monotonic() + TIMEOUT_S
        while min(cleanings(broker.log_text)) == 0:
            assert time.monotonic() < deadline, broker.log_text[-3000:]
            time.sleep(0.2)
        found = consumed(broker)
        writer.check(found)
        kept = {key: value for key, value in found.items() if value is not None}
        assert table_of(bootstrap_servers=broker.address, tier_url=url) == kept
        bucket = open_bucket(open_store(url))
        topic = bucket.topic(TOPIC)
        assert topic is not None
        manifest = bucket.manifest(topic, 0)
        assert manifest is not None
        assert manifest.clean_end > 0, "a cleaning of the bucket was committed"
    assert all(one.orphan for one in verify(open_store(url), now_ms=1 << 50, grace_ms=0))
