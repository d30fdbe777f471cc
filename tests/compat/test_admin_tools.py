"""Kafka's own administration tools against a real broker process."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from tests.broker_process import BrokerProcess, broker_process
from tests.compat.tools import java_tool, kafka_lib

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
GET_OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    kafka_lib()
    with broker_process(tmp_path_factory.mktemp("broker")) as running:
        yield running


def tool(broker: BrokerProcess, main_class: str, *args: str, fails: bool = False) -> str:
    """What the tool prints; both outputs where it fails."""
    done = java_tool(main_class, "--bootstrap-server", broker.address, *args)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout + done.stderr if fails else done.stdout


def produce(broker: BrokerProcess, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "enable.idempotence": True})
    for _ in range(count):
        producer.produce(topic, b"x", partition=0)
    assert producer.flush(30) == 0


def test_topics_are_altered_and_described(broker: BrokerProcess) -> None:
    tool(broker, TOPICS, "--create", "--topic", "grown", "--partitions", "1")
    tool(broker, TOPICS, "--alter", "--topic", "grown", "--partitions", "3")
    described = tool(broker, TOPICS, "--describe", "--topic", "grown")
    assert "PartitionCount: 3" in described
    assert "Partition: 2\tLeader: 1\tReplicas: 1\tIsr: 1\tElr: \tLastKnownElr: " in described
    fewer = tool(broker, TOPICS, "--alter", "--topic", "grown", "--partitions", "2", fails=True)
    assert "InvalidPartitionsException" in fewer


def test_settings_are_altered_and_described(broker: BrokerProcess) -> None:
    tool(broker, TOPICS, "--create", "--topic", "tuned")
    of_topic = ("--entity-type", "topics", "--entity-name", "tuned")
    added = "retention.ms=1234567,cleanup.policy=[delete,compact]"
    tool(broker, CONFIGS, "--alter", *of_topic, "--add-config", added)
    described = tool(broker, CONFIGS, "--describe", *of_topic)
    assert "retention.ms=1234567" in described
    assert "cleanup.policy=delete,compact" in described
    tool(broker, CONFIGS, "--alter", *of_topic, "--delete-config", "retention.ms")
    assert "retention.ms" not in tool(broker, CONFIGS, "--describe", *of_topic)
    wrong = tool(
        broker, CONFIGS, "--alter", *of_topic, "--add-config", "retention.ms=soon", fails=True
    )
    assert "InvalidConfigurationException" in wrong
    assert "accepted: a whole number" in wrong


def test_settings_of_brokers_are_altered_and_described(broker: BrokerProcess) -> None:
    every = ("--entity-type", "brokers", "--entity-default")
    tool(broker, CONFIGS, "--alter", *every, "--add-config", "log.retention.ms=7777777")
    assert "log.retention.ms=7777777" in tool(broker, CONFIGS, "--describe", *every)
    one = ("--entity-type", "brokers", "--entity-name", "1")
    tool(broker, CONFIGS, "--alter", *one, "--add-config", "log.retention.ms=8888888")
    described = tool(broker, CONFIGS, "--describe", *one)
    assert "log.retention.ms=8888888" in described
    assert "DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=7777777" in described
    fixed = tool(broker, CONFIGS, "--alter", *one, "--add-config", "log.dirs=/x", fails=True)
    assert "InvalidRequestException" in fixed
    for entity in (every, one):
        tool(broker, CONFIGS, "--alter", *entity, "--delete-config", "log.retention.ms")


def test_records_are_deleted_and_offsets_told(broker: BrokerProcess, tmp_path: Path) -> None:
    tool(broker, TOPICS, "--create", "--topic", "cut")
    produce(broker, "cut", 10)
    offsets = tmp_path / "offsets.json"
    offsets.write_text(
        '{"partitions": [{"topic": "cut", "partition": 0, "offset": 4}], "version": 1}'
    )
    told = tool(broker, DELETE_RECORDS, "--offset-json-file", str(offsets))
    assert "partition: cut-0\tlow_watermark: 4" in told
    for time, offset in (("-2", 4), ("-1", 10)):
        found = tool(broker, GET_OFFSETS, "--topic", "cut", "--time", time)
        assert found.strip() == f"cut:0:{offset}"


def test_log_directories_are_described(broker: BrokerProcess) -> None:
    tool(broker, TOPICS, "--create", "--topic", "sized")
    produce(broker, "sized", 3)
    size = (broker.data / "sized-0" / f"{0:020}.log").stat().st_size
    told = tool(broker, LOG_DIRS, "--describe", "--topic-list", "sized")
    assert f'"logDir":"{broker.data}"' in told
    assert f'"partition":"sized-0","size":{size},"offsetLag":0,"isFuture":false' in told


def test_the_quorum_and_features_are_described(broker: BrokerProcess) -> None:
    status = tool(broker, QUORUM, "describe", "--status")
    assert "LeaderId:               1\n" in status
    assert "MaxFollowerLag:         0\n" in status
    assert f"PLAINTEXT://{broker.address}" in status
    replication = tool(broker, QUORUM, "describe", "--replication").splitlines()
    assert len(replication) == 2
    assert replication[1].split("\t")[0].strip() == "1"
    assert "Leader" in replication[1]
    features = tool(broker, FEATURES, "describe")
    assert "Feature: metadata.version" in features
    assert "FinalizedVersionLevel: 4.3-IV0" in features
    tool(broker, FEATURES, "upgrade", "--feature", "metadata.version=30")
    refused = tool(broker, FEATURES, "upgrade", "--feature", "metadata.version=31", fails=True)
    assert "31" in refused


def test_producers_are_described(broker: BrokerProcess) -> None:
    tool(broker, TOPICS, "--create", "--topic", "produced")
    produce(broker, "produced", 5)
    told = tool(
        broker, TRANSACTIONS, "describe-producers", "--topic", "produced", "--partition", "0"
    )
    header, row = (line.split() for line in told.strip().splitlines())
    assert header[:3] == ["ProducerId", "ProducerEpoch", "LatestCoordinatorEpoch"]
    assert header[3:5] == ["LastSequence", "LastTimestamp"]
    assert row[3] == "4"
    assert row[-1] == "None"
