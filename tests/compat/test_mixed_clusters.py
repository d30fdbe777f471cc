"""Goal: brokers of Apache Kafka and of ours form one cluster, under Kafka's controllers and under ours.

Method: real processes under a producer that never pauses; each broker is killed in turn. Every acknowledged record must
be at its offset on both replicas, and both logs equal byte for byte.
"""

import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from tests.compat.mixed_cluster import MixedCluster, Product
from tests.compat.tools import java_tool, kafka_lib
from tests.integration.waiting import wait_for

from stratalog.wire.batch import scan
from stratalog.wire.records import read_records

CONTROLLER, KAFKAS, OURS = 100, 1, 2
PARTITIONS = 2
SERVED_BY_BOTH = {"group.version": 0, "share.version": 0, "streams.version": 0}
"""Levels at which a cluster has no feature that our brokers lack."""
MOVED = {"t", "paid", "__consumer_offsets", "__transaction_state"}
TOOLS = "org.apache.kafka.tools"
pytestmark = [pytest.mark.big, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def _java() -> None:
    kafka_lib()


class Load:
    """A producer that goes on until `finish`; `acknowledged` has each record's place and value."""

    def __init__(self, addresses: str, topic: str, size: int = 1) -> None:
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.failures: list[str] = []
        self._topic = topic
        self._size = size
        self._producer = Producer(
            {
                "bootstrap.servers": addresses,
                "enable.idempotence": True,
                "linger.ms": 5,
                "log_level": 2,
                "socket.connection.setup.timeout.ms": 5000,
            }
        )
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def finish(self) -> None:
        self._is_over.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the producer waits for ever"
        left = self._producer.flush(60)
        assert left == 0, f"{left} records without an answer"
        assert self.failures == [], f"records that failed: {self.failures[:5]}"

    def go_on(self) -> None:
        """Wait until the cluster has acknowledged more records, in each partition."""
        before = {index: self._count(index) for index in range(PARTITIONS)}
        for index in range(PARTITIONS):
            wait_for(lambda index=index: self._count(index) > before[index] + 20, "records")

    def _count(self, partition: int) -> int:
        return sum(one == partition for one, _ in list(self.acknowledged))

    def _run(self) -> None:
        number = 0
        while not self._is_over.is_set():
            value = (b"%d" % number).ljust(self._size, b".")
            self._producer.produce(
                self._topic, value, partition=number % PARTITIONS, on_delivery=self._delivered
            )
            self._producer.poll(0.005)
            number += 1

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(str(error))
        else:
            place = (message.partition() or 0, message.offset() or 0)
            self.acknowledged[place] = message.value() or b""


@contextmanager
def load(nodes: MixedCluster, topic: str, size: int = 1) -> Iterator[Load]:
    running = Load(nodes.brokers, topic, size)
    try:
        yield running
    finally:
        running.finish()


def admin_of(nodes: MixedCluster, *brokers: int) -> AdminClient:
    addresses = ",".join(map(nodes.address, brokers))
    return AdminClient({"bootstrap.servers": addresses, "log_level": 2})


def partitions(admin: AdminClient, topic: str) -> list[tuple[int, list[int], list[int]]]:
    """Return (leader, replicas, ISR) of each partition."""
    found = admin.list_topics(topic, timeout=30).topics[topic].partitions
    return [(one.leader, list(one.replicas), sorted(one.isrs)) for _, one in sorted(found.items())]


def wait_for_isr(admin: AdminClient, topic: str, isr: list[int]) -> None:
    wait_for(
        lambda: [one[2] for one in partitions(admin, topic)] == [isr] * PARTITIONS, f"ISR {isr}"
    )


def log_bytes(nodes: MixedCluster, node: int, topic: str, partition: int) -> bytes:
    directory = nodes.nodes[node].data / f"{topic}-{partition}"
    return b"".join(file.read_bytes() for file in sorted(directory.glob("*.log")))


def records_in(data: bytes) -> dict[int, bytes]:
    """Return the value of each record of a log by its offset."""
    view = memoryview(data)
    return {
        record.offset: bytes(record.value or b"")
        for position, header in scan(view)
        for record in read_records(view[position : position + header.size])
    }


def check_records(
    nodes: MixedCluster, node: int, topic: str, acknowledged: dict[tuple[int, int], bytes]
) -> None:
    """Hold every acknowledged record against a node's log."""
    assert len(acknowledged) > 500, "too little to prove anything"
    for index in range(PARTITIONS):
        stored = records_in(log_bytes(nodes, node, topic, index))
        expected = {at: value for (one, at), value in acknowledged.items() if one == index}
        wrong = {at: stored.get(at) for at in expected if stored.get(at) != expected[at]}
        assert not wrong, f"node {node}, {topic}-{index}: {wrong} where {expected} was acknowledged"


def check_no_repeats(nodes: MixedCluster, node: int, topic: str) -> None:
    """No record is stored twice in one producer epoch.

    librdkafka may raise its epoch and send a stored record again (decision 0028): no broker can recognise that.
    """
    for index in range(PARTITIONS):
        view = memoryview(log_bytes(nodes, node, topic, index))
        stored = Counter(
            (header.producer_id, header.producer_epoch, bytes(record.value or b""))
            for position, header in scan(view)
            for record in read_records(view[position : position + header.size])
        )
        twice = {one: count for one, count in stored.items() if count > 1}
        assert not twice, f"node {node}, {topic}-{index}: stored more than once: {twice}"


def consume(addresses: str, topic: str, group: str, count: int) -> None:
    """Read `count` records in a group from its committed offsets, and commit."""
    consumer = Consumer(
        {
            "bootstrap.servers": addresses,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 2,
        }
    )
    seen = 0
    try:
        consumer.subscribe([topic])

        def more() -> bool:
            nonlocal seen
            found = consumer.consume(count - seen, timeout=1)
            seen += sum(one.error() is None for one in found)
            return seen >= count

        wait_for(more, f"{count} records of {topic}")
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()


@pytest.mark.parametrize("controllers", ["kafka", "strata"])
def test_both_brokers_lead_and_follow_under_kills(tmp_path: Path, controllers: Product) -> None:
    products: dict[int, Product] = {KAFKAS: "kafka", OURS: "strata"}
    with MixedCluster(
        tmp_path, {CONTROLLER: controllers}, products, features=SERVED_BY_BOTH
    ) as nodes:
        for node in (CONTROLLER, KAFKAS, OURS):
            nodes.start(node)
        ours, theirs = admin_of(nodes, OURS), admin_of(nodes, KAFKAS)
        for admin in (ours, theirs):
            wait_for(
                lambda admin=admin: set(admin.list_topics(timeout=30).brokers) == {KAFKAS, OURS},
                "both brokers",
            )
        placed = [[KAFKAS, OURS], [OURS, KAFKAS]]
        ours.create_topics([NewTopic("t", PARTITIONS, replica_assignment=placed)])["t"].result(30)
        setting = ConfigEntry("retention.ms", "-1", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, "t", incremental_configs=[setting])
        ours.incremental_alter_configs([resource])[resource].result(30)
        for admin in (ours, theirs):
            wait_for(
                lambda admin=admin: (
                    admin.describe_configs([resource])[resource].result(30)["retention.ms"].value
                    == "-1"
                ),
                "the changed setting",
            )
        wait_for_isr(theirs, "t", [KAFKAS, OURS])
        wait_for(
            lambda: [one[0] for one in partitions(theirs, "t")] == [KAFKAS, OURS],
            "a leader of each product",
        )
        with load(nodes, "t") as running:
            running.go_on()
            for victim, survivor in ((KAFKAS, OURS), (OURS, KAFKAS)):
                nodes.kill(victim)
                seen = admin_of(nodes, survivor)
                wait_for(
                    lambda seen=seen, survivor=survivor: (
                        [one[0] for one in partitions(seen, "t")] == [survivor] * PARTITIONS
                    ),
                    f"leader {survivor}",
                )
                running.go_on()
                nodes.start(victim)
                wait_for_isr(seen, "t", [KAFKAS, OURS])
                running.go_on()
        count = len(running.acknowledged)
        consume(nodes.address(OURS), "t", "g", count // 2)
        consume(nodes.address(KAFKAS), "t", "g", count - count // 2)
        wait_for(
            lambda: all(
                log_bytes(nodes, KAFKAS, "t", index) == log_bytes(nodes, OURS, "t", index)
                for index in range(PARTITIONS)
            ),
            "equal logs",
        )
        check_records(nodes, OURS, "t", running.acknowledged)
        check_no_repeats(nodes, OURS, "t")


def segments(bucket: Path) -> Counter[int]:
    """Return how many segments of each partition are in a bucket with one topic."""
    return Counter(int(one.parent.name) for one in bucket.rglob("*.seg"))


def read_all(addresses: str, topic: str, count: int) -> dict[tuple[int, int], bytes]:
    """Return the records of a topic from its beginning, at least `count`, by partition and offset."""
    consumer = Consumer({"bootstrap.servers": addresses, "group.id": "reads", "log_level": 2})
    found: dict[tuple[int, int], bytes] = {}
    try:
        consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])

        def more() -> bool:
            for one in consumer.consume(1000, timeout=1):
                assert one.error() is None, one.error()
                found[one.partition() or 0, one.offset() or 0] = one.value() or b""
            return len(found) >= count

        wait_for(more, f"{count} records of {topic}")
    finally:
        consumer.close()
    return found


def test_our_brokers_archive_under_kafkas_controllers(tmp_path: Path) -> None:
    """A tiered topic has its replicas on our brokers. Each leads and archives, and is killed, under load."""
    bucket = tmp_path / "bucket"
    ours = {"tier.url": bucket.as_uri(), "remote.log.manager.task.interval.ms": "200"}
    ours |= {"log.retention.check.interval.ms": "500"}
    theirs = {"remote.log.storage.system.enable": "true"}
    products: dict[int, Product] = {KAFKAS: "kafka", 2: "strata", 3: "strata"}
    with MixedCluster(
        tmp_path,
        {CONTROLLER: "kafka"},
        products,
        features=SERVED_BY_BOTH,
        settings={CONTROLLER: theirs, 2: ours, 3: ours},
    ) as nodes:
        for node in (CONTROLLER, KAFKAS, 2, 3):
            nodes.start(node)
        admin = admin_of(nodes, KAFKAS, 2, 3)
        wait_for(lambda: set(admin.list_topics(timeout=30).brokers) == {KAFKAS, 2, 3}, "brokers")
        settings = {"remote.storage.enable": "true", "segment.bytes": str(1 << 20)}
        settings |= {"local.retention.bytes": "1", "retention.ms": "-1"}
        topic = NewTopic("t", PARTITIONS, replica_assignment=[[2, 3], [3, 2]], config=settings)
        admin.create_topics([topic])["t"].result(30)
        with load(nodes, "t", 5000) as running:

            def grow() -> None:
                """Wait until each partition has more segments in the bucket."""
                before = segments(bucket)
                wait_for(
                    lambda: all(segments(bucket)[one] > before[one] for one in range(PARTITIONS)),
                    "more segments",
                )

            grow()
            for victim, survivor in ((2, 3), (3, 2)):
                nodes.kill(victim)
                seen = admin_of(nodes, survivor)
                wait_for(
                    lambda seen=seen, survivor=survivor: (
                        [one[0] for one in partitions(seen, "t")] == [survivor] * PARTITIONS
                    ),
                    f"leader {survivor}",
                )
                grow()
                nodes.start(victim)
                wait_for_isr(seen, "t", [2, 3])
                running.go_on()
        for node in (2, 3):
            first = nodes.nodes[node].data / "t-0" / f"{0:020}.log"
            wait_for(lambda first=first: not first.exists(), f"broker {node} drops its history")
        read = read_all(",".join(map(nodes.address, (2, 3))), "t", len(running.acknowledged))
        wrong = {at for at, value in running.acknowledged.items() if read.get(at) != value}
        assert not wrong, f"acknowledged and not there: {sorted(wrong)[:5]}"


def test_a_broker_of_ours_names_the_features_that_it_does_not_serve(tmp_path: Path) -> None:
    with MixedCluster(tmp_path, {CONTROLLER: "kafka"}, {OURS: "strata"}) as nodes:
        nodes.start(CONTROLLER)
        refused = nodes.begin(OURS)
        assert refused.process is not None
        code = refused.process.wait(60)
        assert code == 2, f"exit {code}: {refused.said[-3000:]}"
        last = refused.said.splitlines()[-1]
        assert "group.version=1" in last, last
        assert re.search(r"accepted: .*group\.version=0", last), last
        levels = re.search(r"accepted: ([^;]*), which", last)
        assert levels is not None, last
        words = [word for level in levels[1].split(", ") for word in ("--feature", level)]
        bootstrap = ("--bootstrap-controller", nodes.address(CONTROLLER))
        run_tool("FeatureCommand", *bootstrap, "downgrade", *words)
        nodes.start(OURS)
        wait_for(lambda: OURS in admin_of(nodes, OURS).list_topics(timeout=30).brokers, "it")


def reassign(nodes: MixedCluster, admin: AdminClient, place: Path, target: int) -> None:
    """Move every replica of every topic to one broker with Kafka's tool, and wait for the end of the moves."""
    wait_for(lambda: set(admin.list_topics(timeout=30).topics) >= MOVED, "all topics")
    topics = {
        name: len(topic.partitions) for name, topic in admin.list_topics(timeout=30).topics.items()
    }
    moves = [
        {"topic": name, "partition": index, "replicas": [target]}
        for name, count in topics.items()
        for index in range(count)
    ]
    plan = place / f"to-{target}.json"
    plan.write_text(json.dumps({"version": 1, "partitions": moves}))
    words = ("--execute", "--reassignment-json-file", str(plan))
    run_tool(
        "reassign.ReassignPartitionsCommand", "--bootstrap-server", nodes.address(target), *words
    )
    for name, count in topics.items():
        wait_for(
            lambda name=name, count=count: (
                partitions(admin, name) == [(target, [target], [target])] * count
            ),
            f"{name} on broker {target}",
        )


def run_tool(name: str, *words: str) -> str:
    done = java_tool(f"{TOOLS}.{name}", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def transact(nodes: MixedCluster, broker: int, aborted: list[bytes], values: list[bytes]) -> None:
    """Write records in a transaction and abort it; then commit others in a second transaction."""
    producer = Producer(
        {"bootstrap.servers": nodes.address(broker), "transactional.id": "mover", "log_level": 2}
    )
    producer.init_transactions(30)
    for written, end in (
        (aborted, producer.abort_transaction),
        (values, producer.commit_transaction),
    ):
        producer.begin_transaction()
        for one in written:
            producer.produce("paid", one, partition=0)
        # Without the flush an abort drops records that the client has not sent.
        left = producer.flush(30)
        assert left == 0, f"{left} records of a transaction without an answer"
        end(30)


def paid_records(nodes: MixedCluster, broker: int, isolation: str, count: int) -> list[bytes]:
    """Return the values of the first records of `paid`, at least `count`, as a consumer of this isolation sees them."""
    consumer = Consumer(
        {
            "bootstrap.servers": nodes.address(broker),
            "group.id": "reads",
            "isolation.level": isolation,
            "log_level": 2,
        }
    )
    values: list[bytes] = []
    try:
        consumer.assign([TopicPartition("paid", 0, 0)])

        def all_read() -> bool:
            found = consumer.consume(count, timeout=1)
            values.extend(one.value() or b"" for one in found if one.error() is None)
            return len(values) >= count

        wait_for(all_read, f"{count} records, {isolation}")
    finally:
        consumer.close()
    return values


def test_a_cluster_is_moved_broker_by_broker_and_back(tmp_path: Path) -> None:
    products: dict[int, Product] = {1: "kafka", 2: "strata", 3: "kafka"}
    with MixedCluster(tmp_path, {CONTROLLER: "kafka"}, products, features=SERVED_BY_BOTH) as nodes:
        nodes.start(CONTROLLER)
        nodes.start(1)
        admin = admin_of(nodes, 1, 2, 3)
        created = admin.create_topics([NewTopic("t", PARTITIONS, 1), NewTopic("paid", 1, 1)])
        for future in created.values():
            future.result(30)
        written: list[bytes] = []
        paid: list[bytes] = []
        with load(nodes, "t") as running:
            for before, now in ((0, 1), (1, 2), (2, 3)):
                if before:
                    nodes.start(now)
                    reassign(nodes, admin, tmp_path, now)
                    nodes.stop(before)
                    words = ("--bootstrap-server", nodes.address(now), "--id", str(before))
                    run_tool("ClusterTool", "unregister", *words)
                running.go_on()
                consume(nodes.address(now), "t", "g", 50)
                dropped = [b"%d-aborted-%d" % (now, one) for one in range(3)]
                paid += [b"%d-%d" % (now, one) for one in range(3)]
                written += dropped + paid[-3:]
                transact(nodes, now, dropped, paid[-3:])
                seen = paid_records(nodes, now, "read_uncommitted", len(written))
                assert seen == written, f"broker {now} stores {seen}"
                seen = paid_records(nodes, now, "read_committed", len(paid))
                assert seen == paid, f"broker {now}: a read-committed consumer sees {seen}"
            wait_for(lambda: set(admin.list_topics(timeout=30).brokers) == {3}, "broker 3 alone")
        done = [TopicPartition("t", index) for index in range(PARTITIONS)]
        group = Consumer({"bootstrap.servers": nodes.address(3), "group.id": "g", "log_level": 2})
        try:
            offsets = [one.offset for one in group.committed(done, timeout=30)]
        finally:
            group.close()
        assert sum(max(one, 0) for one in offsets) == 150, f"committed offsets: {offsets}"
        check_records(nodes, 3, "t", running.acknowledged)
        check_no_repeats(nodes, 3, "t")
