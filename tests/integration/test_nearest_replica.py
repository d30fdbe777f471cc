"""Goal: librdkafka's consumer with `client.rack` reads from the node in its rack, committed and tiered records too.

Method: as librdkafka's own 0101_fetch_from_follower: three real nodes in racks, a partition with three replicas, and
the bytes that the consumer received from each node, which its statistics count.
"""

import json
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.cluster_processes import ClusterProcesses
from tests.integration.waiting import wait_for

RECORDS, SIZE = 1000, 100
SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"

pytestmark = [pytest.mark.timeout(180), pytest.mark.xdist_group("racks")]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    place = tmp_path_factory.mktemp("racks") / "nodes"
    settings = {
        "replica.selector.class": SELECTOR,
        "transaction.state.log.num.partitions": "3",
        "tier.url": (place.parent / "bucket").as_uri(),
        "remote.log.manager.task.interval.ms": "200",
        "log.retention.check.interval.ms": "500",
    }
    made = ClusterProcesses(place, settings=settings)
    for node in made.ids:
        with (made.directory(node) / "server.properties").open("a") as properties:
            properties.write(f"broker.rack=RACK{node}\n")
    with made:
        yield made


class NearConsumer:
    """A consumer of a topic's partition 0, in the rack of a follower. `received`: bytes by node."""

    def __init__(self, nodes: ClusterProcesses, topic: str, **settings: str) -> None:
        admin = AdminClient({"bootstrap.servers": nodes.address})
        leader = admin.list_topics(topic, timeout=30).topics[topic].partitions[0].leader
        self.near = next(node for node in nodes.ids if node != leader)
        self.received: dict[int, int] = {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": nodes.address,
                "group.id": topic,
                "client.rack": f"RACK{self.near}",
                "statistics.interval.ms": 200,
                "stats_cb": self._count,
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])

    def _count(self, text: str) -> None:
        for name, broker in json.loads(text)["brokers"].items():
            node = name.rpartition("/")[2]
            if node.isdecimal():
                self.received[int(node)] = broker["rxbytes"]

    def take(self, count: int) -> list[bytes]:
        found = []
        for _ in range(count):
            message = self._consumer.poll(30)
            assert message is not None, f"{len(found)} of {count} records"
            assert message.error() is None, message.error()
            found.append(message.value() or b"")
        return found

    def end(self) -> None:
        """Check that no record is left, and that the records came from the near node alone."""
        while self.received.get(self.near, 0) <= RECORDS * SIZE:
            assert self._consumer.poll(1) is None, "one record too many"
        self._consumer.close()
        others = [size for node, size in self.received.items() if node != self.near]
        assert max(others) < RECORDS * SIZE, "no other node sent the records"

    def has_no_more(self) -> bool:
        return self._consumer.poll(2) is None


def create(nodes: ClusterProcesses, topic: str, **settings: str) -> None:
    admin = AdminClient({"bootstrap.servers": nodes.address})
    named = {name.replace("_", "."): value for name, value in settings.items()}
    admin.create_topics([NewTopic(topic, 1, 3, config=named)])[topic].result(30)


def test_a_consumer_reads_from_the_node_in_its_rack(nodes: ClusterProcesses) -> None:
    create(nodes, "t")
    producer = Producer({"bootstrap.servers": nodes.address, "acks": "all"})
    for number in range(RECORDS):
        producer.produce("t", b"%d" % number + b"." * SIZE, partition=0)
    assert producer.flush(60) == 0
    consumer = NearConsumer(nodes, "t")
    wanted = [b"%d" % number + b"." * SIZE for number in range(RECORDS)]
    assert consumer.take(RECORDS) == wanted
    consumer.end()


def test_a_follower_serves_committed_records_alone(nodes: ClusterProcesses) -> None:
    create(nodes, "c")
    producer = Producer({"bootstrap.servers": nodes.address, "transactional.id": "c"})
    producer.init_transactions(30)
    for turn in range(11):
        producer.begin_transaction()
        for number in range(RECORDS // 5):
            producer.produce("c", b"%d/%d" % (turn, number) + b"." * SIZE, partition=0)
        assert producer.flush(60) == 0
        if turn < 10:  # five are committed, five aborted, and the last one stays open
            (producer.abort_transaction if turn % 2 else producer.commit_transaction)(30)
    consumer = NearConsumer(nodes, "c", isolation_level="read_committed")

    def wanted(*turns: int) -> list[bytes]:
        each = range(RECORDS // 5)
        return [b"%d/%d" % (turn, number) + b"." * SIZE for turn in turns for number in each]

    assert consumer.take(RECORDS) == wanted(0, 2, 4, 6, 8)
    assert consumer.has_no_more(), "a record of an aborted or open transaction"
    producer.commit_transaction(30)
    assert consumer.take(RECORDS // 5) == wanted(10)
    consumer.end()


def test_a_consumer_reads_tiered_records_from_the_node_in_its_rack(nodes: ClusterProcesses) -> None:
    """No replica has the first segments on its disk any more."""
    settings = {"segment_bytes": str(1 << 20), "local_retention_bytes": "1"}
    create(nodes, "tiered", remote_storage_enable="true", **settings)
    producer = Producer({"bootstrap.servers": nodes.address, "acks": "all", "batch.size": 1 << 16})
    wanted = [b"%d" % number + b"." * 20 * SIZE for number in range(2 * RECORDS)]
    for value in wanted:
        producer.produce("tiered", value, partition=0)
    assert producer.flush(60) == 0
    first = [nodes.data(node) / "tiered-0" / f"{0:020}.log" for node in nodes.ids]
    wait_for(lambda: not any(file.exists() for file in first), "the end of the first segments")
    consumer = NearConsumer(nodes, "tiered")
    assert consumer.take(len(wanted)) == wanted
    consumer.end()
