"""Goal: librdkafka's consumer with `client.rack` reads from the node in its rack.

Method: as librdkafka's own 0101_fetch_from_follower: three real nodes in racks, a partition with three replicas, and
the bytes that the consumer received from each node, which its statistics count.
"""

import json
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.cluster_processes import ClusterProcesses

RECORDS, SIZE = 1000, 100
SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"

pytestmark = pytest.mark.timeout(180)


def test_a_consumer_reads_from_the_node_in_its_rack(tmp_path: Path) -> None:
    nodes = ClusterProcesses(tmp_path / "nodes", settings={"replica.selector.class": SELECTOR})
    for node in nodes.ids:
        with (nodes.directory(node) / "server.properties").open("a") as properties:
            properties.write(f"broker.rack=RACK{node}\n")
    with nodes:
        admin = AdminClient({"bootstrap.servers": nodes.address})
        admin.create_topics([NewTopic("t", 1, 3)])["t"].result(30)
        producer = Producer({"bootstrap.servers": nodes.address, "acks": "all"})
        for number in range(RECORDS):
            producer.produce("t", b"%d" % number + b"." * SIZE, partition=0)
        assert producer.flush(60) == 0
        leader = admin.list_topics("t", timeout=30).topics["t"].partitions[0].leader
        near = next(node for node in nodes.ids if node != leader)
        received: dict[int, int] = {}

        def count(text: str) -> None:
            for name, broker in json.loads(text)["brokers"].items():
                node = name.rpartition("/")[2]
                if node.isdecimal():
                    received[int(node)] = broker["rxbytes"]

        consumer = Consumer(
            {
                "bootstrap.servers": nodes.address,
                "group.id": "g",
                "client.rack": f"RACK{near}",
                "statistics.interval.ms": 200,
                "stats_cb": count,
            }
        )
        consumer.assign([TopicPartition("t", 0, 0)])
        for number in range(RECORDS):
            message = consumer.poll(30)
            assert message is not None
            assert message.error() is None, message.error()
            assert message.value() == b"%d" % number + b"." * SIZE
        while received.get(near, 0) <= RECORDS * SIZE:
            assert consumer.poll(1) is None, "one record too many"
        consumer.close()
    others = [size for node, size in received.items() if node != near]
    assert max(others) < RECORDS * SIZE, "no other node sent the records"
