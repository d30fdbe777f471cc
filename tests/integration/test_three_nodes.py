"""Three nodes in this process: records that outlive their leader, and replicas that move."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.integration.server_process import strata
from tests.integration.waiting import wait_for

from stratalog.testing import TemporaryCluster, cluster

RECORDS = 50

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def three() -> Iterator[TemporaryCluster]:
    with cluster(3) as started:
        yield started


def create(three: TemporaryCluster, name: str, factor: int = 3, partitions: int = 1) -> None:
    config = {"min.insync.replicas": "2"} if factor > 1 else {}
    admin = AdminClient({"bootstrap.servers": three.address})
    wanted = NewTopic(name, partitions, factor, config=config)
    for future in admin.create_topics([wanted]).values():
        future.result(30)


def produce(three: TemporaryCluster, topic: str, values: range) -> None:
    producer = Producer(
        {"bootstrap.servers": three.address, "enable.idempotence": True, "acks": "all"}
    )
    errors: list[object] = []
    for value in values:
        producer.produce(
            topic, str(value), partition=0, on_delivery=lambda error, _: errors.append(error)
        )
    assert producer.flush(60) == 0
    assert errors == [None] * len(values)


def consumed(three: TemporaryCluster, topic: str, count: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": three.address, "group.id": "g"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[int] = []
    try:
        while len(values) < count:
            message = consumer.poll(30)
            assert message is not None, values
            assert message.error() is None, message.error()
            values.append(int(message.value()))
    finally:
        consumer.close()
    return values


def json_of(three: TemporaryCluster, *words: str) -> Any:
    done = strata(*words, "-b", three.address, "--json")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()  # the nodes' log lines are among them
    return json.loads(next(line for line in lines if line.startswith(("{", "[{", "[]"))))


def partition_of(three: TemporaryCluster, topic: str) -> dict[str, Any]:
    return json_of(three, "partition", "list", topic)[0]


def test_acknowledged_records_survive_the_leader(three: TemporaryCluster) -> None:
    create(three, "orders")
    produce(three, "orders", range(RECORDS))
    leader = partition_of(three, "orders")["leader"]
    three.kill(leader)
    produce(three, "orders", range(RECORDS, 2 * RECORDS))
    assert consumed(three, "orders", 2 * RECORDS) == list(range(2 * RECORDS))
    row = partition_of(three, "orders")
    assert row["leader"] != leader
    assert row["state"] == "under-replicated"
    three.restart(leader)
    wait_for(lambda: partition_of(three, "orders")["state"] == "in sync", "the third replica")
    assert consumed(three, "orders", 2 * RECORDS) == list(range(2 * RECORDS))


def test_the_quorum_has_three_voters_that_keep_up(three: TemporaryCluster) -> None:
    create(three, "orders")
    found = json_of(three, "quorum", "describe")
    assert sorted(one["id"] for one in found["nodes"]) == [1, 2, 3]
    assert [one["role"] for one in found["nodes"]].count("leader") == 1
    rows = json_of(three, "broker", "list")
    assert [row["state"] for row in rows] == ["serving"] * 3
    assert [row["replicas"] for row in rows] == [1, 1, 1]


def test_a_factor_grows_and_a_broker_is_drained(three: TemporaryCluster) -> None:
    create(three, "orders", factor=1)
    produce(three, "orders", range(RECORDS))
    plan = json_of(
        three, "partition", "reassign", "orders", "--replication-factor", "2", "--dry-run"
    )
    assert plan["bytes"] > 0
    assert len(partition_of(three, "orders")["replicas"]) == 1
    throttled = ("--replication-factor", "2", "--throttle", "100MB/s")
    json_of(three, "partition", "reassign", "orders", *throttled)
    for where in (("--topic", "orders"), *(("--broker", str(node)) for node in (1, 2, 3))):
        described = ("config", "describe", *where, "-b", three.address)
        wait_for(lambda: "throttled" not in strata(*described).stdout, "limits that went")  # noqa: B023
    row = partition_of(three, "orders")
    assert len(row["replicas"]) == len(row["isr"]) == 2
    leader = row["leader"]
    json_of(three, "broker", "drain", str(leader))
    row = partition_of(three, "orders")
    assert leader not in row["replicas"]
    assert row["state"] == "in sync"
    assert consumed(three, "orders", RECORDS) == list(range(RECORDS))
