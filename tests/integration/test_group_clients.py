"""Goal: consumer groups of a real client survive rebalances, static members and a killed server.

Method: librdkafka's consumers against a server process; one story after another on one topic, each in its own group.
"""

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.integration.server_process import Server

PARTITIONS = 6
RECORDS = 300
TIMEOUT_S = 40
SETTINGS = [
    f"num.partitions={PARTITIONS}",
    "group.initial.rebalance.delay.ms=300",
    "offsets.topic.num.partitions=3",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("groups"), SETTINGS) as server:
        admin = AdminClient({"bootstrap.servers": server.address})
        admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result(TIMEOUT_S)
        produce(server, "first")
        yield server


def produce(server: Server, prefix: str) -> None:
    producer = Producer({"bootstrap.servers": server.address, "log_level": 0})
    for number in range(RECORDS):
        producer.produce("t", f"{prefix} {number}".encode(), partition=number % PARTITIONS)
    assert producer.flush(TIMEOUT_S) == 0


def consumer(server: Server, group: str, **options: object) -> Consumer:
    one = Consumer(
        {
            "bootstrap.servers": server.address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 300,
            "log_level": 0,
            **options,
        }
    )
    one.subscribe(["t"])
    return one


def poll_until(consumers: list[Consumer], done, values: list[bytes]) -> None:
    """Poll all consumers in turn until `done()`; append their records to `values`."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while not done():
        assert time.monotonic() < deadline_s, f"stuck: {shares(consumers)}, {len(values)} records"
        for one in consumers:
            message = one.poll(0.02)
            if message is not None and message.error() is None:
                values.append(message.value())


def shares(consumers: list[Consumer]) -> list[int]:
    return sorted(len(one.assignment()) for one in consumers)


def read_everything(consumers: list[Consumer]) -> bool:
    """Return whether they are behind every record: a rebalance takes uncommitted reads back."""
    places = [place for one in consumers for place in one.position(one.assignment())]
    return sum(max(place.offset, 0) for place in places) == RECORDS


def close(consumers: list[Consumer]) -> None:
    for one in consumers:
        one.close()


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_group_grows_and_shrinks_and_reads_everything(server: Server, strategy: str) -> None:
    options = {"partition.assignment.strategy": strategy}
    values: list[bytes] = []
    members = [consumer(server, strategy, **options) for _ in range(2)]
    poll_until(members, lambda: len(set(values)) >= RECORDS and shares(members) == [3, 3], values)
    for one in members:
        one.commit(asynchronous=False)
    members.append(consumer(server, strategy, **options))
    poll_until(members, lambda: shares(members) == [2, 2, 2], values)
    members.pop().close()
    poll_until(members, lambda: shares(members) == [3, 3], values)
    close(members)


def test_a_static_member_gets_its_partitions_back_and_fences_a_duplicate(server: Server) -> None:
    values: list[bytes] = []
    members = [consumer(server, "static", **{"group.instance.id": name}) for name in ("a", "b")]
    poll_until(members, lambda: shares(members) == [3, 3], values)
    before = [sorted(one.partition for one in member.assignment()) for member in members]
    members[0].close()
    members[0] = consumer(server, "static", **{"group.instance.id": "a"})
    poll_until(members, lambda: shares(members) == [3, 3], values)
    assert before == [sorted(one.partition for one in member.assignment()) for member in members]
    double = consumer(server, "static", **{"group.instance.id": "b"})
    errors: list[KafkaError] = []
    deadline_s = time.monotonic() + TIMEOUT_S
    while not any(error.code() == KafkaError._FATAL for error in errors):
        assert time.monotonic() < deadline_s, f"not fenced: {errors}"
        double.poll(0.02)
        message = members[1].poll(0.02)
        if message is not None and message.error() is not None:
            errors.append(message.error())
    close([*members, double])


def test_members_continue_after_the_server_was_killed(server: Server) -> None:
    values: list[bytes] = []
    members = [consumer(server, "killed") for _ in range(2)]
    poll_until(members, lambda: read_everything(members) and shares(members) == [3, 3], values)
    for one in members:
        one.commit(asynchronous=False)
    server.kill()
    server.start()
    produce(server, "second")
    later: list[bytes] = []
    poll_until(members, lambda: len(later) >= RECORDS, later)
    assert sorted(later) == sorted(f"second {number}".encode() for number in range(RECORDS))
    close(members)
