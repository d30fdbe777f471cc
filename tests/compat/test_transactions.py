"""Goal: we read the same records of Apache Kafka's transactions as Kafka's own consumer; ours are read alike.

Method: two transactional producers write to a real Apache Kafka beside each other, commit some transactions and abort
others; `stratalog.read`, `strata consume` and a consumer of each isolation level must see the same offsets, and the
tail must end where the transaction that is still open begins. The same story then runs against our broker, which is
killed while a transaction is open, and against three nodes of which one is killed.
"""

from pathlib import Path
from time import monotonic

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from tests.broker_process import broker_process
from tests.compat.apache_kafka import apache_kafka
from tests.compat.nodes import DEFAULT_FACTOR, EACH_NUMBER, kill_and_start, serving
from tests.integration.server_process import strata

from stratalog import read

ISOLATIONS = ("read_committed", "read_uncommitted")


def transactional(address: str, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": address, "transactional.id": name, "linger.ms": 0})
    producer.init_transactions(60)
    return producer


def write(producer: Producer, first: int, count: int) -> None:
    for number in range(first, first + count):
        producer.produce("t", key=b"k", value=b"%d" % number, partition=0)
    assert producer.flush(60) == 0


def written(address: str) -> Producer:
    """Transactions that end in every manner; the producer of the one that is left open."""
    admin = AdminClient({"bootstrap.servers": address})
    (created,) = admin.create_topics([NewTopic("t", 1, DEFAULT_FACTOR)]).values()
    created.result(60)
    one, other = transactional(address, "one"), transactional(address, "other")
    for turn in range(8):
        one.begin_transaction()
        other.begin_transaction()
        write(one, turn * 100, 5)
        write(other, turn * 100 + 20, 3)
        write(one, turn * 100 + 40, 2)
        one.abort_transaction(60) if turn % 3 == 0 else one.commit_transaction(60)
        other.commit_transaction(60) if turn % 2 else other.abort_transaction(60)
    plain = Producer({"bootstrap.servers": address})
    write(plain, 5000, 4)
    one.begin_transaction()
    write(one, 6000, 3)
    write(plain, 7000, 3)
    return one


def consumed(address: str, isolation: str) -> list[tuple[int, bytes]]:
    """What librdkafka's consumer reads up to the end of the partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "compares",
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition("t", 0, 0)])
    found = []
    while True:
        message = consumer.poll(60)
        assert message is not None, "the consumer returned neither a record nor the end"
        error = message.error()
        if error is not None:
            assert error.name() == "_PARTITION_EOF", error
            break
        found.append((message.offset(), message.value()))
    consumer.close()
    return found


def seen(address: str, isolation: str) -> list[tuple[int, bytes]]:
    table = read("t", bootstrap_servers=address, isolation=isolation).read_all()
    return list(zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True))


def printed(address: str, isolation: str) -> list[tuple[int, bytes]]:
    words = ("consume", "t", "--from", "beginning", "--until-end", "--format", r"%o %s\n")
    done = strata(*words, "--isolation-level", isolation, "-b", address)
    assert done.returncode == 0, done.stderr
    lines = (line.split() for line in done.stdout.splitlines())
    return [(int(offset), value.encode()) for offset, value in lines]


def test_we_read_the_same_transactions_as_kafkas_consumer(tmp_path: Path) -> None:
    with apache_kafka(tmp_path) as address:
        open_one = written(address)
        for isolation in ISOLATIONS:
            assert seen(address, isolation) == consumed(address, isolation), isolation
            assert printed(address, isolation) == consumed(address, isolation), isolation
        committed = seen(address, "read_committed")
        assert committed[-1][1] == b"5003", "the tail must end where the open transaction begins"
        assert len(committed) == 5 * 7 + 4 * 3 + 4
        open_one.abort_transaction(60)
        deadline = monotonic() + 60
        while consumed(address, "read_committed")[-1][1] != b"7002":
            assert monotonic() < deadline, "Kafka writes the markers after it has answered"
        assert seen(address, "read_committed") == consumed(address, "read_committed")
        assert printed(address, "read_committed") == consumed(address, "read_committed")


@EACH_NUMBER
def test_librdkafka_s_transactions_end_as_in_kafka_and_outlive_a_kill(
    tmp_path: Path, nodes: int
) -> None:
    with serving(tmp_path, nodes, transaction__state__log__num__partitions="3") as broker:
        open_one = written(broker.address)
        kill_and_start(broker)
        for isolation in ISOLATIONS:
            everything = consumed(broker.address, isolation)
            assert seen(broker.address, isolation) == everything, isolation
            assert printed(broker.address, isolation) == everything, isolation
        committed = seen(broker.address, "read_committed")
        assert committed[-1][1] == b"5003", "the open transaction holds back what is behind it"
        assert len(committed) == 5 * 7 + 4 * 3 + 4
        open_one.commit_transaction(60)
        plain = Producer({"bootstrap.servers": broker.address})
        write(plain, 8000, 1)
        deadline = monotonic() + 60
        while (found := consumed(broker.address, "read_committed"))[-1][1] != b"8000":
            assert monotonic() < deadline
        assert [value for _, value in found[len(committed) :]] == [
            b"%d" % number for number in (6000, 6001, 6002, 7000, 7001, 7002, 8000)
        ]
        assert seen(broker.address, "read_committed") == found


def committed_offsets(consumer: Consumer) -> list[TopicPartition]:
    return consumer.committed(consumer.assignment(), 60)


def copy_in_transactions(address: str, count: int) -> None:
    """Copy `count` records of `i` to `o`, with the offsets in the same transactions; every third one is aborted."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "copies",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["i"])
    producer = transactional(address, "copies")
    copied = turn = 0
    deadline = monotonic() + 120
    while copied < count:
        assert monotonic() < deadline
        messages = consumer.consume(10, 1)
        if not messages:
            continue
        producer.begin_transaction()
        for message in messages:
            producer.produce("o", message.value())
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 60
        )
        turn += 1
        if turn % 3:
            producer.commit_transaction(60)
            copied += len(messages)
            continue
        producer.abort_transaction(60)
        for one in committed_offsets(consumer):
            consumer.seek(TopicPartition(one.topic, one.partition, max(one.offset, 0)))
    assert sum(one.offset for one in committed_offsets(consumer)) == count
    consumer.close()


def test_records_are_copied_once_with_their_offsets(tmp_path: Path) -> None:
    with broker_process(tmp_path, transaction__state__log__num__partitions="3") as broker:
        admin = AdminClient({"bootstrap.servers": broker.address})
        topics = [NewTopic("i", 2, 1), NewTopic("o", 1, 1)]
        for created in admin.create_topics(topics).values():
            created.result(60)
        plain = Producer({"bootstrap.servers": broker.address})
        # The partitions are named, since librdkafka may choose one partition for all of these records.
        for number in range(100):
            plain.produce("i", b"%d" % number, partition=number % 2)
        assert plain.flush(60) == 0
        copy_in_transactions(broker.address, 100)
        deadline = monotonic() + 60
        while len(values := values_of(broker.address)) < 100:
            assert monotonic() < deadline, "the last markers follow the answer"
        assert sorted(values) == list(range(100))


def values_of(address: str) -> list[int]:
    table = read("o", bootstrap_servers=address, isolation="read_committed").read_all()
    return [int(value) for value in table["value"].to_pylist()]
