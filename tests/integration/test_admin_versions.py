"""Every advertised version of the administrative APIs is answered, and says the same."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.broker_process import BrokerProcess, broker_process

from stratalog.broker.apis import APIS
from stratalog.wire.messages import decode_response, encode_request, request

TOPIC = "versions"
ADMINISTRATIVE = (21, 23, 33, 35, 37, 44, 55, 57, 61, 74, 75)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("broker")) as running:
        admin = AdminClient({"bootstrap.servers": running.address})
        admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(30)
        produce(running, 10)
        yield running


def produce(broker: BrokerProcess, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "enable.idempotence": True})
    for _ in range(count):
        producer.produce(TOPIC, b"x")
    assert producer.flush(30) == 0


def ask(broker: BrokerProcess, key: int, version: int, body: Any) -> Any:
    """One request over a connection of its own."""
    with socket.create_connection(("127.0.0.1", broker.port), timeout=30) as connection:
        connection.sendall(b"".join(bytes(p) for p in encode_request(key, version, 1, "me", body)))
        with connection.makefile("rb") as stream:
            size = int.from_bytes(stream.read(4), "big")
            frame = stream.read(size)
    assert len(frame) == size, "the broker closed the connection"
    return decode_response(key, version, memoryview(frame))[1]


def requested(key: int, version: int) -> Any:
    """A request that succeeds however often it is asked."""
    r = request(key, version)
    made: dict[int, Callable[[], Any]] = {
        21: lambda: r.DeleteRecordsRequest(
            topics=[
                r.DeleteRecordsTopic(
                    name=TOPIC, partitions=[r.DeleteRecordsPartition(partition_index=0, offset=3)]
                )
            ],
            timeout=1000,
        ),
        23: lambda: epoch_request(version, 0, 0),
        33: lambda: r.AlterConfigsRequest(
            resources=[
                r.AlterConfigsResource(
                    resource_type=2,
                    resource_name=TOPIC,
                    configs=[r.AlterableConfig(name="retention.ms", value="-1")],
                )
            ],
            validate_only=False,
        ),
        35: lambda: r.DescribeLogDirsRequest(
            topics=[r.DescribableLogDirTopic(topic=TOPIC, partitions=[0])]
        ),
        37: lambda: r.CreatePartitionsRequest(
            topics=[r.CreatePartitionsTopic(name=TOPIC, count=2, assignments=None)],
            timeout=1000,
            validate_only=True,
        ),
        44: lambda: r.IncrementalAlterConfigsRequest(
            resources=[
                r.AlterConfigsResource(
                    resource_type=2,
                    resource_name=TOPIC,
                    configs=[
                        r.AlterableConfig(name="retention.ms", config_operation=0, value="-1")
                    ],
                )
            ],
            validate_only=False,
        ),
        55: lambda: r.DescribeQuorumRequest(
            topics=[
                r.TopicData(
                    topic_name="__cluster_metadata", partitions=[r.PartitionData(partition_index=0)]
                )
            ]
        ),
        57: lambda: r.UpdateFeaturesRequest(
            timeout=1000,
            feature_updates=[
                r.FeatureUpdateKey(
                    feature="metadata.version", max_version_level=30, allow_downgrade=False
                )
            ],
            validate_only=False,
        ),
        61: lambda: r.DescribeProducersRequest(
            topics=[r.TopicRequest(name=TOPIC, partition_indexes=[0])]
        ),
        74: lambda: r.ListConfigResourcesRequest(resource_types=[]),
        75: lambda: r.DescribeTopicPartitionsRequest(topics=[r.TopicRequest(name=TOPIC)]),
    }
    return made[key]()


def epoch_request(version: int, current: int, epoch: int) -> Any:
    r = request(23, version)
    partition = r.OffsetForLeaderPartition(
        partition=0, current_leader_epoch=current, leader_epoch=epoch
    )
    return r.OffsetForLeaderEpochRequest(
        topics=[r.OffsetForLeaderTopic(topic=TOPIC, partitions=[partition])]
    )


def codes(body: Any) -> list[str]:
    """Every error code in an answer."""
    if isinstance(body, tuple):
        return [code for one in body for code in codes(one)]
    fields = getattr(body, "__dataclass_fields__", {})
    found = []
    for name in fields:
        value = getattr(body, name)
        found += [value.name] if name == "error_code" else codes(value)
    return found


@pytest.mark.parametrize(
    ("key", "version"),
    [
        pytest.param(key, version, id=f"{APIS[key].name}-{version}")
        for key in ADMINISTRATIVE
        for version in range(APIS[key].served[0], APIS[key].served[1] + 1)
    ],
)
def test_every_version_is_answered(broker: BrokerProcess, key: int, version: int) -> None:
    answer = ask(broker, key, version, requested(key, version))
    assert set(codes(answer)) <= {"none"}, answer


@pytest.mark.parametrize("version", [2, 3, 4])
def test_where_each_epoch_ended(tmp_path: Path, version: int) -> None:
    with broker_process(tmp_path) as broker:
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(30)
        produce(broker, 5)
        broker.stop()
        broker.start()
        produce(broker, 3)

        def epoch(current: int, wanted: int) -> tuple[str, int, int]:
            answer = ask(broker, 23, version, epoch_request(version, current, wanted))
            (found,) = answer.topics[0].partitions
            return found.error_code.name, found.leader_epoch, found.end_offset

        latest = next(now for now in range(10) if epoch(now, 0)[0] == "none")
        assert latest > 0, "a restart begins an epoch"
        assert epoch(latest, 0) == ("none", 0, 5)
        assert epoch(-1, latest) == ("none", latest, 8)
        assert epoch(latest, latest + 1) == ("none", -1, -1)
        assert epoch(latest - 1, 0)[0] == "fenced_leader_epoch"
        assert epoch(latest + 1, 0)[0] == "unknown_leader_epoch"
