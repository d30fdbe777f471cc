"""Write a release's fixture: the files that a node of this release leaves on disk and in its bucket.

usage: python -m tests.golden.releases.make VERSION

In: the code of the release that is checked out. Out: `VERSION.tar.xz` beside this file, once. The archive holds two
places, `stopped` (after SIGTERM) and `killed` (after SIGKILL), each with `data`, `bucket` and `expected.json`. Later
code must open both; `test_releases.py` holds it to that. A fixture is never made again for an old release.
"""

import json
import lzma
import sys
import tarfile
import tempfile
import time
from hashlib import sha256
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from tests.broker_process import BrokerProcess, broker_process

HERE = Path(__file__).parent
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
RECORDS = 60
PARTITIONS = 2
GROUP = "readers"
TOPICS = {
    "history": {
        "remote.storage.enable": "true",
        "local.retention.ms": "1000",
        "retention.ms": "-1",
        "segment.ms": "500",
    },
    "plain": {"retention.ms": "-1", "segment.ms": "900"},
    "trimmed": {"retention.ms": "-1"},
}
SETTINGS = {
    "log__retention__check__interval__ms": "300",
    "log__segment__delete__delay__ms": "0",
    "tier__max__lag__ms": "500",
    "tier__state__interval__ms": "300",
}
TIMEOUT_S = 30
FIRST_MS = 1_700_000_000_000


def read_everything(address: str, topics: dict[str, int]) -> dict[str, list[list[object]]]:
    """Return the records of each partition, `topic-partition` to rows, as librdkafka reads them."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reading",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    found: dict[str, list[list[object]]] = {}
    wanted = [TopicPartition(name, at, -2) for name, count in topics.items() for at in range(count)]
    consumer.assign(wanted)
    ended: set[tuple[str, int]] = set()
    deadline = time.monotonic() + TIMEOUT_S
    while len(ended) < len(wanted):
        assert time.monotonic() < deadline, f"read to the end of {sorted(ended)} only"
        for message in consumer.consume(500, 0.2):
            if message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                ended.add((message.topic(), message.partition()))
                continue
            found.setdefault(f"{message.topic()}-{message.partition()}", []).append(row(message))
    consumer.close()
    return found


def row(message: object) -> list[object]:
    """Return a record's offset, timestamp type and value, key, headers, and a digest of its value."""
    value = message.value()
    return [
        message.offset(),
        list(message.timestamp()),
        None if message.key() is None else message.key().decode(),
        [[name, data.decode()] for name, data in message.headers() or []],
        None if value is None else sha256(value).hexdigest()[:16],
    ]


def committed(address: str) -> dict[str, int]:
    """Return the group's committed offsets."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": GROUP})
    asked = [TopicPartition(name, at) for name in TOPICS for at in range(PARTITIONS)]
    got = {
        f"{one.topic}-{one.partition}": one.offset for one in consumer.committed(asked, TIMEOUT_S)
    }
    consumer.close()
    return got


def fill(broker: BrokerProcess) -> None:
    """Let the node write each kind of file and object that this release can write."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    made = admin.create_topics(
        [NewTopic(name, PARTITIONS, 1, config=c) for name, c in TOPICS.items()]
    )
    made |= admin.create_topics([NewTopic("deleted", 1, 1)])
    for one in made.values():
        one.result(TIMEOUT_S)
    for number, codec in enumerate(CODECS):
        produce(broker.address, codec, number)
    offsets = [TopicPartition("trimmed", 0, 50)]
    for one in admin.delete_records(offsets).values():
        one.result(TIMEOUT_S)
    for one in admin.delete_topics(["deleted"]).values():
        one.result(TIMEOUT_S)
    entry = ConfigEntry("max.message.bytes", "900000", incremental_operation=AlterConfigOpType.SET)
    changed = ConfigResource(ResourceType.TOPIC, "plain", incremental_configs=[entry])
    for one in admin.incremental_alter_configs([changed]).values():
        one.result(TIMEOUT_S)
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": GROUP})
    consumer.commit(
        offsets=[TopicPartition("history", 0, 17), TopicPartition("plain", 1, 23)],
        asynchronous=False,
    )
    consumer.close()


def produce(address: str, codec: str, round_number: int) -> None:
    """Append batches of one codec to every partition: keys, headers, a null value and a null key among them."""
    producer = Producer(
        {
            "bootstrap.servers": address,
            "compression.type": codec,
            "enable.idempotence": codec != "none",
            "linger.ms": 50,
        }
    )
    for number in range(RECORDS):
        for name in TOPICS:
            producer.produce(
                name,
                None if number == 7 else (f"{codec} {number} ".encode() * 12),
                None if number == 9 else f"k{number % 11}",
                partition=number % PARTITIONS,
                timestamp=FIRST_MS + round_number * 1000 + number,
                headers=[("codec", codec), ("n", str(number))] if number % 3 == 0 else None,
            )
    assert producer.flush(TIMEOUT_S) == 0


def wait_until_tiered(broker: BrokerProcess) -> None:
    """Wait until closed segments of `history` lie in the bucket alone."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        local = [list((broker.data / f"history-{at}").glob("*.log")) for at in range(PARTITIONS)]
        if all(len(logs) == 1 for logs in local) and list(
            (broker.directory / "bucket").rglob("*.seg")
        ):
            return
        assert time.monotonic() < deadline, f"still on the local disk: {local}"
        time.sleep(0.1)


def make(place: Path, *, killed: bool) -> None:
    with broker_process(place, **SETTINGS) as broker:
        fill(broker)
        wait_until_tiered(broker)
        expected = {
            "records": read_everything(broker.address, dict.fromkeys(TOPICS, PARTITIONS)),
            "committed": committed(broker.address),
        }
        (place / "expected.json").write_text(json.dumps(expected, indent=0))
        if killed:
            broker.kill()
        else:
            assert broker.stop() == 0
    (place / "ready.json").unlink()
    (place / "broker.log").unlink()


def main() -> None:
    (version,) = sys.argv[1:]
    target = HERE / f"{version}.tar.xz"
    assert not target.exists(), f"{target.name} is there: a release's fixture is made once"
    with tempfile.TemporaryDirectory() as temporary:
        for name in ("stopped", "killed"):
            make(Path(temporary) / name, killed=name == "killed")
        with (
            lzma.open(target, "wb", preset=9) as packed,
            tarfile.open(fileobj=packed, mode="w") as tar,
        ):
            for name in ("stopped", "killed"):
                tar.add(Path(temporary) / name, name)
    print(f"{target.name}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
