"""A compacted topic of few keys on real brokers: an acknowledged writer of values and tombstones, and its readers.

In: addresses, what ends the writing (a `kill -9`). Out: the last value of each key as readers find it, compared with
the possible ones. It starts and ends no broker.
"""

import time
from collections.abc import Callable, Iterator
from random import Random

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)
from pyspark.sql.types import StructType

from stratalog import read as read_table
from stratalog.adapters.object_store import open_store
from stratalog.spark.source import StratalogReader, StratalogSource
from stratalog.tier.checking.verify import sweep, verify
from stratalog.tier.formats.manifest import Manifest
from stratalog.tier.reading.reader import open_bucket

TOPIC = "prices"
KEYS = 30
TIMEOUT_S = 60
UNANSWERED_MAX = 40
CONFIG = {
    "cleanup.policy": "compact",
    "remote.storage.enable": "true",
    "segment.bytes": str(1 << 20),
    "local.retention.bytes": str(2 << 20),
    "delete.retention.ms": "500",
    "file.delete.delay.ms": "100",
}
SETTINGS = {
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.retention.check.interval.ms": "300",
    "remote.log.manager.task.interval.ms": "300",
    "remote.delete.grace.ms": "2000",
}


def create(address: str, replicas: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.create_topics([NewTopic(TOPIC, 1, replicas, config=CONFIG)]).values():
        future.result(TIMEOUT_S)


def set_policy(address: str, policy: str) -> None:
    """Change the topic's `cleanup.policy`; its other settings stay."""
    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, TOPIC, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(TIMEOUT_S)


class Writer:
    """Writes records one after another. `last` has the possible last values of each key, by the records' numbers: the
    last acknowledged one, and those that were sent after it.
    """

    def __init__(self) -> None:
        self.last: dict[bytes, dict[int, bytes | None]] = {}
        self._chance = Random(37)
        self._number = 0

    def write(
        self,
        address: str,
        seconds: float,
        end: Callable[[], None],
        is_moment: Callable[[], bool] = lambda: False,
    ) -> None:
        """Write for so long, or until `is_moment`, then call `end` with requests unanswered."""
        producer = Producer(
            {
                "bootstrap.servers": address,
                "linger.ms": 1,
                "acks": "all",
                "enable.idempotence": True,
                "message.timeout.ms": 20_000,
            }
        )
        until = time.monotonic() + seconds
        while time.monotonic() < until and not is_moment():
            self._send(producer)
            producer.poll(0.002)
            if len(producer) > UNANSWERED_MAX:
                producer.flush(TIMEOUT_S)
        self._send(producer)
        end()
        producer.purge()
        producer.flush(1)

    def _send(self, producer: Producer) -> None:
        self._number += 1
        number = self._number
        key = b"key-%d" % self._chance.randrange(KEYS)
        text = b"%d-" % number
        value = None if self._chance.random() < 0.2 else text + self._chance.randbytes(20_000)
        self.last.setdefault(key, {0: None})[number] = value

        def answered(error: KafkaError | None, _message: Message) -> None:
            if error is None:
                sent = self.last[key]
                self.last[key] = {other: sent[other] for other in sent if other >= number}

        producer.produce(TOPIC, value, key, partition=0, on_delivery=answered)

    def check(self, found: dict[bytes, bytes | None]) -> None:
        """Compare with what a reader found, which counts from now on."""
        for key, values in self.last.items():
            value = found.get(key)
            wanted = [_short(one) for one in values.values()]
            assert value in values.values(), f"{key!r}: {_short(value)} was found, none of {wanted}"
            self.last[key] = {number: one for number, one in values.items() if one == value}


def _short(value: bytes | None) -> str:
    """Return the number of a value, or that it is a tombstone."""
    return "a tombstone" if value is None else value.partition(b"-")[0].decode()


def consumed(address: str) -> dict[bytes, bytes | None]:
    """Read the topic from its start to its end, as any consumer does; no offset comes twice or goes back."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "g", "check.crcs": True})
    place = TopicPartition(TOPIC, 0, 0)
    low, high = consumer.get_watermark_offsets(place, timeout=TIMEOUT_S)
    assert low == 0
    consumer.assign([place])
    found: dict[bytes, bytes | None] = {}
    last, deadline = -1, time.monotonic() + TIMEOUT_S
    while consumer.position([place])[0].offset < high:
        assert time.monotonic() < deadline, f"the consumer stays at {last} of {high}"
        for message in consumer.consume(500, 0.2):
            assert message.error() is None, message.error()
            key, offset = message.key(), message.offset()
            assert isinstance(key, bytes)
            assert offset is not None
            assert offset > last, "an offset comes again"
            found[key], last = message.value(), offset
    consumer.close()
    return found


def table_of(**where: str) -> dict[bytes, bytes]:
    """Return the last value of each key as `stratalog.read` finds it, without deleted keys."""
    rows = read_table(TOPIC, **where).read_all().to_pylist()
    last = {row["key"]: row["value"] for row in rows}
    return {key: value for key, value in last.items() if value is not None}


def spark_table_of(**options: str) -> dict[bytes, bytes]:
    """Return the topic's current table as Spark's source reads it with `latest_by_key`."""
    named = {name.replace("_", "."): value for name, value in options.items()}
    given = {**named, "subscribe": TOPIC, "latest_by_key": "true"}
    reader = StratalogSource(given).reader(StructType([]))
    assert isinstance(reader, StratalogReader)
    (task,) = reader.partitions()
    rows = [row for batch in reader.read(task) for row in batch.to_pylist()]
    found = {row["key"]: row["value"] for row in rows}
    assert len(found) == len(rows), "one row for each key"
    return found


def manifest_of(url: str) -> Manifest:
    bucket = open_bucket(open_store(url))
    topic = bucket.topic(TOPIC)
    assert topic is not None
    manifest = bucket.manifest(topic, 0)
    assert manifest is not None
    return manifest


def until_cleaned(url: str, logs: Callable[[], str]) -> None:
    """Wait until a cleaning of the disk, and one of the bucket, were committed."""
    deadline = time.monotonic() + TIMEOUT_S
    while not (manifest_of(url).clean_end > 0 and "log cleaned" in logs()):
        assert time.monotonic() < deadline, logs()[-3000:]
        time.sleep(0.2)


def check_bucket(url: str) -> None:
    """No object is damaged; those that killed cleaners left are orphans, and a sweep removes them all."""
    store = open_store(url)
    problems = verify(store, now_ms=1 << 50, grace_ms=0)
    assert all(one.orphan for one in problems), problems
    sweep(store, now_ms=1 << 50, grace_ms=0)
    assert not verify(store, now_ms=1 << 50, grace_ms=0)


def policies(chance: Random) -> Iterator[str]:
    """Yield a policy for each part of a run: mostly compact."""
    while True:
        yield "compact" if chance.random() < 0.7 else "delete"
