"""Goal: librdkafka, kafka-python and Kafka's own tools can list, describe, change and delete groups.

Method: one broker process; each test has its own groups.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient
from tests.broker_process import BrokerProcess, broker_process
from tests.compat.tools import java_tool

PARTITIONS = 2
RECORDS = 20
TIMEOUT_S = 30


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="module")
def admin(broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.address, "log_level": 0})


def topic(broker: BrokerProcess, admin: AdminClient, name: str) -> None:
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": broker.address, "log_level": 0})
    for number in range(RECORDS):
        producer.produce(name, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(TIMEOUT_S) == 0


@contextmanager
def member(broker: BrokerProcess, group: str, *topics: str) -> Iterator[Consumer]:
    """Run a member that has read and committed all records of some topics, and stays in its group."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": group,
            "client.id": f"member of {group}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.subscribe(list(topics))
    missing = RECORDS * len(topics)
    deadline_s = time.monotonic() + TIMEOUT_S
    while missing:
        assert time.monotonic() < deadline_s, f"{missing} records are missing"
        message = consumer.poll(0.2)
        missing -= message is not None and message.error() is None
    consumer.commit(asynchronous=False)
    try:
        yield consumer
    finally:
        consumer.close()


def left_behind(broker: BrokerProcess, group: str, *topics: str) -> None:
    with member(broker, group, *topics):
        pass


def committed(admin: AdminClient, group: str) -> dict[tuple[str, int], int]:
    wanted = [ConsumerGroupTopicPartitions(group)]
    found = admin.list_consumer_group_offsets(wanted)[group].result(TIMEOUT_S)
    return {(one.topic, one.partition): one.offset for one in found.topic_partitions}


def listed(admin: AdminClient, **options: object) -> dict[str, ConsumerGroupState]:
    found = admin.list_consumer_groups(**options).result(TIMEOUT_S)
    assert not found.errors
    return {one.group_id: one.state for one in found.valid}


def code(raised: pytest.ExceptionInfo[KafkaException]) -> int:
    return raised.value.args[0].code()


def test_groups_are_listed_described_and_deleted(broker: BrokerProcess, admin: AdminClient) -> None:
    topic(broker, admin, "t")
    with member(broker, "g", "t"):
        assert listed(admin)["g"] is ConsumerGroupState.STABLE
        assert "g" not in listed(admin, states={ConsumerGroupState.EMPTY})
        [asked] = admin.describe_consumer_groups(["g"]).values()
        found = asked.result(TIMEOUT_S)
        assert (found.state, found.partition_assignor) == (ConsumerGroupState.STABLE, "range")
        [one] = found.members
        assert one.client_id == "member of g"
        assert [part.partition for part in one.assignment.topic_partitions] == [0, 1]
        with pytest.raises(KafkaException) as refused:
            admin.delete_consumer_groups(["g"])["g"].result(TIMEOUT_S)
        assert code(refused) == KafkaError.NON_EMPTY_GROUP
    assert listed(admin, states={ConsumerGroupState.EMPTY})["g"] is ConsumerGroupState.EMPTY
    deleted = admin.delete_consumer_groups(["g", "missing"])
    deleted["g"].result(TIMEOUT_S)
    with pytest.raises(KafkaException) as refused:
        deleted["missing"].result(TIMEOUT_S)
    assert code(refused) == KafkaError.GROUP_ID_NOT_FOUND
    assert "g" not in listed(admin)
    assert committed(admin, "g") == {}


def test_admin_clients_change_the_offsets_of_a_group_without_members(
    broker: BrokerProcess, admin: AdminClient
) -> None:
    topic(broker, admin, "moved")
    wanted = [ConsumerGroupTopicPartitions("m", [TopicPartition("moved", 1, 3)])]
    with member(broker, "m", "moved"):
        refused = admin.alter_consumer_group_offsets(wanted)["m"].result(TIMEOUT_S)
        [one] = refused.topic_partitions
        assert one.error is not None
        assert one.error.code() == KafkaError.UNKNOWN_MEMBER_ID
    admin.alter_consumer_group_offsets(wanted)["m"].result(TIMEOUT_S)
    assert committed(admin, "m") == {("moved", 0): 10, ("moved", 1): 3}


def test_offsets_are_deleted_with_their_topic_and_a_new_one_starts_without(
    broker: BrokerProcess, admin: AdminClient
) -> None:
    topic(broker, admin, "gone")
    topic(broker, admin, "stays")
    left_behind(broker, "f", "gone", "stays")
    admin.delete_topics(["gone"])["gone"].result(TIMEOUT_S)
    topic(broker, admin, "gone")
    assert committed(admin, "f") == {("stays", 0): 10, ("stays", 1): 10}


def test_an_empty_group_without_offsets_is_deleted(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The expiry of offsets takes a minute at least; tests/golden/groups covers it."""
    place = tmp_path_factory.mktemp("expiry")
    with broker_process(place, offsets__retention__check__interval__ms="200") as broker:
        admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
        topic(broker, admin, "t")
        with member(broker, "kept", "t"):
            empty = Consumer({"bootstrap.servers": broker.address, "group.id": "empty"})
            empty.subscribe(["t"])
            deadline_s = time.monotonic() + TIMEOUT_S
            while not empty.assignment():
                assert time.monotonic() < deadline_s
                empty.poll(0.1)
            empty.close()
            while "empty" in listed(admin):
                assert time.monotonic() < deadline_s, "the empty group was not deleted"
                time.sleep(0.05)
            assert listed(admin) == {"kept": ConsumerGroupState.STABLE}


def test_kafka_python_describes_and_deletes(broker: BrokerProcess, admin: AdminClient) -> None:
    topic(broker, admin, "p")
    left_behind(broker, "python", "p")
    python = KafkaAdminClient(bootstrap_servers=broker.address)
    try:
        assert "python" in str(python.list_groups())
        assert "Empty" in str(python.describe_groups(["python"]))
        offsets = python.list_group_offsets("python")
        assert "offset=10" in str(offsets)
        python.delete_groups(["python"])
    finally:
        python.close()
    assert "python" not in listed(admin)


def tool(broker: BrokerProcess, *arguments: str) -> str:
    done = java_tool(
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        *("--bootstrap-server", broker.address),
        *arguments,
    )
    return done.stdout + done.stderr


def lines(said: str) -> list[list[str]]:
    return [line.split() for line in said.splitlines() if line.strip()]


def test_kafkas_own_tool(broker: BrokerProcess, admin: AdminClient) -> None:
    topic(broker, admin, "java")
    topic(broker, admin, "other")
    with member(broker, "tool", "java"):
        described = lines(tool(broker, "--describe", "--group", "tool"))
        rows = [row[:6] for row in described if row[0] == "tool"]
        assert rows == [["tool", "java", str(index), "10", "10", "0"] for index in (0, 1)]
        refused = tool(broker, "--delete", "--group", "tool")
        assert "GroupNotEmptyException" in refused
    reset = ("--reset-offsets", "--group", "tool", "--all-topics", "--to-earliest", "--execute")
    assert sorted(row[:4] for row in lines(tool(broker, *reset)) if row[0] == "tool") == [
        ["tool", "java", str(index), "0"] for index in (0, 1)
    ]
    assert committed(admin, "tool") == {("java", 0): 0, ("java", 1): 0}
    gone = tool(broker, "--delete-offsets", "--group", "tool", "--topic", "java:1")
    assert "Successful" in gone, gone
    assert committed(admin, "tool") == {("java", 0): 0}
    assert ["tool", "Empty"] in [
        [row[0], row[-1]] for row in lines(tool(broker, "--list", "--state")) if row[0] == "tool"
    ]
    assert "successful" in tool(broker, "--delete", "--group", "tool")
    assert "tool" not in listed(admin)
