"""The limits of a move: each broker's rate, and the replicas that Kafka's own tool would name."""

from stratalog.cli.cluster.moving import limits_of
from stratalog.wire.ids import TopicPartition

TOPIC, BROKER = 2, 4


def test_sources_and_targets_are_limited() -> None:
    first, second = TopicPartition("t", 0), TopicPartition("t", 1)
    limits = limits_of({first: (1, 3), second: (2,)}, {first: (1, 2), second: (3, 2)}, 1000)
    rates = {"leader.replication.throttled.rate": "1000"}
    rates |= {"follower.replication.throttled.rate": "1000"}
    assert {node: limits[BROKER, node] for node in "123"} == dict.fromkeys("123", rates)
    assert limits[TOPIC, "t"] == {
        "leader.replication.throttled.replicas": "0:1,0:2,1:3,1:2",
        "follower.replication.throttled.replicas": "0:3",
    }
    assert len(limits) == 4
