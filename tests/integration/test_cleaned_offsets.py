"""A real broker compacts its own `__consumer_offsets`, and a restart finds the offsets of groups.

Method: two groups commit again and again into small segments, until cleaners have rewritten the log of commits. The
broker is stopped or killed, and started again.
"""

import math
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.broker_process import BrokerProcess, broker_process

from stratalog.wire.batch import scan

COMMITS = 400
NOTE = "x" * 4000
"""The metadata of each commit, which soon fills segments."""
GROUPS = ("first", "second")
TIMEOUT_S = 30
TOPIC = "read"


def group_of(broker: BrokerProcess, name: str) -> Consumer:
    return Consumer({"bootstrap.servers": broker.address, "group.id": name, "log_level": 0})


def commits_in(broker: BrokerProcess) -> float:
    """Return the number of batches in the log of commits; infinite while a cleaner replaces a file of it."""
    logs = (broker.data / "__consumer_offsets-0").glob("*.log")
    try:
        return sum(len(list(scan(memoryview(one.read_bytes())))) for one in logs)
    except FileNotFoundError:
        return math.inf


def wait_until_cleaned(broker: BrokerProcess) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while commits_in(broker) >= COMMITS:
        assert time.monotonic() < deadline, broker.log_text[-2000:]
        time.sleep(0.1)


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_offsets_outlive_the_cleaning_of_their_log_and_a_restart(
    tmp_path: Path, ending: str
) -> None:
    with broker_process(
        tmp_path,
        offsets__topic__num__partitions="1",
        offsets__topic__segment__bytes=str(1 << 20),
        log__cleaner__backoff__ms="100",
        log__cleaner__min__cleanable__ratio="0.01",
    ) as broker:
        producer = Producer({"bootstrap.servers": broker.address, "log_level": 0})
        for _ in range(COMMITS):
            producer.produce(TOPIC, b"value")
        assert producer.flush(TIMEOUT_S) == 0
        for number, name in enumerate(GROUPS):
            consumer = group_of(broker, name)
            # The client finds the coordinator.
            consumer.committed([TopicPartition(TOPIC, 0)], TIMEOUT_S)
            for offset in range(1, COMMITS - number):
                at = TopicPartition(TOPIC, 0, offset, NOTE)
                consumer.commit(offsets=[at], asynchronous=False)
            consumer.close()
        wait_until_cleaned(broker)
        if ending == "stop":
            assert broker.stop() == 0
        else:
            broker.kill()
        broker.start()
        for number, name in enumerate(GROUPS):
            consumer = group_of(broker, name)
            (found,) = consumer.committed([TopicPartition(TOPIC, 0)], TIMEOUT_S)
            consumer.close()
            assert found.offset == COMMITS - number - 1
        assert "uncleanable" not in broker.log_text
