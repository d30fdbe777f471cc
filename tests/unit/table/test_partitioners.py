"""A read by murmur2 that finds no row says which partitioner placed the keys."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from stratalog import read
from stratalog.table.partitioners import verdict
from stratalog.testing import TemporaryBroker
from stratalog.wire.murmur2 import partition_of_key

PARTITIONS = 5
KEYS = [b"key-%d" % number for number in range(300)]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with TemporaryBroker() as broker:
        yield broker.address


def placed(address: str, topic: str, partitioner: str) -> dict[bytes, int]:
    """Produce every key by a partitioner of librdkafka's; return the keys' partitions."""
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(20)
    found: dict[bytes, int] = {}

    def delivered(error: Any, message: Any) -> None:
        assert error is None
        found[message.key()] = message.partition()

    producer = Producer({"bootstrap.servers": address, "partitioner": partitioner})
    for key in KEYS:
        producer.produce(topic, b"", key, on_delivery=delivered)
    assert producer.flush(30) == 0
    return found


def misfit(sample: dict[bytes, int]) -> bytes:
    """Return a key that murmur2 looks for in a partition without it."""
    return next(key for key in KEYS if partition_of_key(key, PARTITIONS) != sample[key])


@pytest.mark.parametrize(
    ("partitioner", "names"),
    [("consistent_random", "CRC32 (librdkafka's default)"), ("fnv1a", "FNV-1a (sarama's default)")],
)
def test_a_read_without_a_row_names_the_partitioner_that_fits(
    address: str, caplog: pytest.LogCaptureFixture, partitioner: str, names: str
) -> None:
    sample = placed(address, partitioner, partitioner)
    key = misfit(sample)
    asked: dict[str, Any] = {"bootstrap_servers": address, "key": key}
    assert read(partitioner, **asked, partitioner="murmur2").read_all().num_rows == 0
    (line,) = caplog.messages
    assert line.startswith(f"no row: topic {partitioner}: murmur2 placed ")
    assert line.endswith(
        f" of 200 sampled keys, and {names} placed 200: read without a partitioner"
    )
    assert read(partitioner, **asked).read_all().num_rows == 1


def test_a_read_of_an_absent_key_warns_of_nothing_where_murmur2_placed_the_keys(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    placed(address, "by-murmur2", "murmur2_random")
    found = read(
        "by-murmur2", bootstrap_servers=address, key="absent", partitioner="murmur2"
    ).read_all()
    assert found.num_rows == 0
    assert caplog.messages == []


def test_keys_that_no_known_partitioner_placed_have_another_reason() -> None:
    in_first = dict.fromkeys(KEYS, 0)
    assert verdict("t", 1, in_first) is None
    assert verdict("t", PARTITIONS, {}) is None
    line = verdict("t", PARTITIONS, in_first)
    assert line is not None
    assert line.endswith("or the topic got more partitions later: read without a partitioner")
