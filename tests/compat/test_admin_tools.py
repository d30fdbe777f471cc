"""Kafka's own administration tools against a real broker process."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from tests.broker_process import BrokerProcess, broker_process
from tests.compat.clients import CLIENTS
from tests.compat.tools import java_tool, kafka_lib
from tests.integration.waiting import wait_for

from stratalog.broker.apis import APIS
from stratalog.wire.apis import ListenerKind

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
GROUP_LIST = "org.apache.kafka.tools.GroupsCommand"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
GET_OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
ELECTION = "org.apache.kafka.tools.LeaderElectionCommand"
VERSIONS = "org.apache.kafka.tools.BrokerApiVersionsCommand"
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    kafka_lib()
    # Without a receiver of clients' metrics their two APIs are not served.
    place = tmp_path_factory.mktemp("broker")
    with broker_process(place, telemetry__series__enable="true") as running:
        yield running


def tool(broker: BrokerProcess, main_class: str, *args: str, fails: bool = False) -> str:
    """Run a tool; return its output, or both outputs if it fails."""
    done = java_tool(main_class, "--bootstrap-server", broker.address, *args)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout + done.stderr if fails else done.stdout


def cluster(broker: BrokerProcess, what: str) -> str:
    """Run `kafka-cluster.sh`, which takes the command before the address."""
    done = java_tool(CLUSTER, what, "--bootstrap-server", broker.address)
    assert done.returncode == 0, done.stderr
    return done.stdout


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


def test_records_are_deleted_and_offsets_listed(broker: BrokerProcess, tmp_path: Path) -> None:
    tool(broker, TOPICS, "--create", "--topic", "cut")
    produce(broker, "cut", 10)
    offsets = tmp_path / "offsets.json"
    offsets.write_text(
        '{"partitions": [{"topic": "cut", "partition": 0, "offset": 4}], "version": 1}'
    )
    deleted = tool(broker, DELETE_RECORDS, "--offset-json-file", str(offsets))
    assert "partition: cut-0\tlow_watermark: 4" in deleted
    for time, offset in (("-2", 4), ("-1", 10)):
        found = tool(broker, GET_OFFSETS, "--topic", "cut", "--time", time)
        assert found.strip() == f"cut:0:{offset}"


def test_log_directories_are_described(broker: BrokerProcess) -> None:
    tool(broker, TOPICS, "--create", "--topic", "sized")
    produce(broker, "sized", 3)
    size = (broker.data / "sized-0" / f"{0:020}.log").stat().st_size
    listed = tool(broker, LOG_DIRS, "--describe", "--topic-list", "sized")
    assert f'"logDir":"{broker.data}"' in listed
    assert f'"partition":"sized-0","size":{size},"offsetLag":0,"isFuture":false' in listed


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
    described = tool(
        broker, TRANSACTIONS, "describe-producers", "--topic", "produced", "--partition", "0"
    )
    header, row = (line.split() for line in described.strip().splitlines())
    assert header[:3] == ["ProducerId", "ProducerEpoch", "LatestCoordinatorEpoch"]
    assert header[3:5] == ["LastSequence", "LastTimestamp"]
    assert row[3] == "4"
    assert row[-1] == "None"


@pytest.mark.big
@pytest.mark.timeout(600)
def test_topics_are_listed_and_deleted(broker: BrokerProcess) -> None:
    named = ("--topic", "listed")
    tool(broker, TOPICS, "--create", *named, "--partitions", "2", "--config", "flush.ms=1000")
    again = tool(broker, TOPICS, "--create", *named, fails=True)
    assert "TopicExistsException" in again
    tool(broker, TOPICS, "--create", *named, "--if-not-exists")
    several = ("--create", "--topic", "wide", "--replication-factor", "3")
    assert "InvalidReplicationFactorException" in tool(broker, TOPICS, *several, fails=True)
    placed = ("--create", "--topic", "placed", "--replica-assignment", "1,1,1")
    tool(broker, TOPICS, *placed)
    assert "PartitionCount: 3" in tool(broker, TOPICS, "--describe", "--topic", "placed")
    assert {"listed", "placed"} <= set(tool(broker, TOPICS, "--list").split())
    own = tool(broker, TOPICS, "--describe", "--topics-with-overrides", "--exclude-internal")
    assert "Topic: listed\t" in own
    assert "flush.ms=1000" in own
    # Eligible leader replicas bring a setting for the whole cluster, which the tool counts as each topic's.
    assert "min.insync.replicas=1" in own
    for wrong in ("--under-replicated-partitions", "--unavailable-partitions"):
        assert tool(broker, TOPICS, "--describe", wrong).strip() == ""
    tool(broker, TOPICS, "--delete", *named)
    assert "listed" not in tool(broker, TOPICS, "--list").split()
    assert "does not exist" in tool(broker, TOPICS, "--describe", *named, fails=True)


@pytest.mark.big
@pytest.mark.timeout(600)
def test_all_settings_are_described(broker: BrokerProcess) -> None:
    tool(broker, TOPICS, "--create", "--topic", "whole", "--config", "retention.ms=5000")
    of_topic = ("--entity-type", "topics", "--entity-name", "whole", "--all")
    rows = tool(broker, CONFIGS, "--describe", *of_topic).splitlines()[1:]
    values = {name.strip(): rest for name, _, rest in (row.partition("=") for row in rows)}
    own = "5000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=5000}"
    assert values["retention.ms"] == own
    default = "1073741824 sensitive=false synonyms={DEFAULT_CONFIG:log.segment.bytes=1073741824}"
    assert values["segment.bytes"] == default
    of_broker = ("--entity-type", "brokers", "--entity-name", "1", "--all")
    rows = tool(broker, CONFIGS, "--describe", *of_broker).splitlines()[1:]
    assert f"  log.dirs={broker.data} " in "".join(row for row in rows if "log.dirs=" in row)


@pytest.mark.big
@pytest.mark.timeout(600)
def test_offsets_by_partition_and_time(broker: BrokerProcess) -> None:
    tool(broker, TOPICS, "--create", "--topic", "offsets", "--partitions", "2")
    produce(broker, "offsets", 6)
    assert tool(broker, GET_OFFSETS, "--topic", "offsets").split() == ["offsets:0:6", "offsets:1:0"]
    first = ("--topic-partitions", "offsets:0", "--time")
    for time, offset in (("-2", 0), ("-4", 0), ("0", 0)):
        assert tool(broker, GET_OFFSETS, *first, time).strip() == f"offsets:0:{offset}"
    # Six records of one millisecond or of six: the greatest timestamp is one of theirs.
    name, _, newest = tool(broker, GET_OFFSETS, *first, "-3").strip().rpartition(":")
    assert name == "offsets:0"
    assert 0 <= int(newest) < 6
    lines = tool(broker, GET_OFFSETS, "--exclude-internal-topics").split()
    assert {"offsets:0:6", "offsets:1:0"} <= set(lines)
    assert not [line for line in lines if line.startswith("__")]


def test_versions_and_the_cluster_are_described(broker: BrokerProcess) -> None:
    """The tool can use every API of a broker's listener, in the newest version that both sides know."""
    listed = tool(broker, VERSIONS)
    assert f"{broker.address} (id: 1 rack: null isFenced: false)" in listed
    served = dict(re.findall(r"(\w+)\(\d+\): (?:\d+ to )?(\d+) \[usable: \2\]", listed))
    newest = {
        api.name: api.advertised[1] for api in APIS.values() if ListenerKind.BROKER in api.listeners
    }
    assert {name: int(version) for name, version in served.items()} == newest
    rows = [line.split() for line in cluster(broker, "list-endpoints").splitlines()]
    port = broker.address.rpartition(":")[2]
    assert rows[1] == ["1", "127.0.0.1", port, "null", "unfenced", "broker"]


@pytest.mark.big
@pytest.mark.timeout(600)
def test_one_node_elects_no_leader_and_reassigns_nothing(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    cluster_id = cluster(broker, "cluster-id").removeprefix("Cluster ID: ").strip()
    admin = AdminClient({"bootstrap.servers": broker.address})
    assert admin.describe_cluster().result(30).cluster_id == cluster_id
    create_and_fill(broker, "led")
    tool(broker, ELECTION, "--election-type", "preferred", "--all-topic-partitions")
    one = ("--topic", "led", "--partition", "0")
    for kind in ("preferred", "unclean"):
        elected = tool(broker, ELECTION, "--election-type", kind, *one)
        assert elected.strip() == "Valid replica already elected for partitions led-0"
    topics = tmp_path / "topics.json"
    topics.write_text('{"version": 1, "topics": [{"topic": "led"}]}')
    named = ("--topics-to-move-json-file", str(topics))
    planned = tool(broker, REASSIGN, "--generate", *named, "--broker-list", "1")
    assert f'"topic":"led","partition":0,"replicas":[1],"log_dirs":["{broker.data}"]' in planned
    elsewhere = tmp_path / "elsewhere.json"
    replica = {"topic": "led", "partition": 0, "replicas": [1, 2]}
    elsewhere.write_text(json.dumps({"version": 1, "partitions": [replica]}))
    asked = ("--execute", "--reassignment-json-file", str(elsewhere))
    assert "Unknown broker id 2" in tool(broker, REASSIGN, *asked, fails=True)
    assert tool(broker, REASSIGN, "--list").strip() == "No partition reassignments found."


@pytest.mark.big
@pytest.mark.timeout(600)
def test_groups_are_described_and_a_reset_is_only_shown(broker: BrokerProcess) -> None:
    create_and_fill(broker, "grouped")
    CLIENTS["confluent-kafka"].consume(broker.address, "grouped", "described", 60)

    def rows(*args: str) -> list[list[str]]:
        said = tool(broker, GROUPS, "--group", "described", *args)
        return [line.split() for line in said.splitlines() if line.startswith("described")]

    dash = "-"
    lag = ["described", "grouped", "0", "60", "100", "40", dash, dash, dash]
    assert rows("--describe", "--offsets") == [lag]
    (state,) = rows("--describe", "--state")
    assert (state[1], state[-2:]) == (broker.address, ["Empty", "0"])
    assert rows("--describe", "--members") == []
    reset = ("--reset-offsets", "--topic", "grouped:0", "--dry-run")
    for how, to in (
        (("--shift-by", "-10"), 50),
        (("--to-latest",), 100),
        (("--to-offset", "500"), 100),
        (("--by-duration", "PT1H"), 0),
        (("--to-datetime", "2100-01-01T00:00:00.000"), 100),
        (("--to-current",), 60),
    ):
        assert rows(*reset, *how) == [["described", "grouped", "0", str(to)]]
    assert rows("--describe", "--offsets") == [lag], "a dry run reset the offsets"
    listed = [line.split() for line in tool(broker, GROUP_LIST, "--list").splitlines()]
    assert ["described", "Classic", "consumer"] in listed


def test_a_partition_is_moved_between_directories(tmp_path: Path) -> None:
    kafka_lib()
    directories = [tmp_path / "first", tmp_path / "second"]
    with broker_process(tmp_path, log__dirs=",".join(map(str, directories))) as broker:
        create_and_fill(broker, "moved")
        source, target = sorted(directories, key=lambda place: not (place / "moved-0").exists())
        size = (source / "moved-0" / f"{0:020}.log").stat().st_size
        replica = {"topic": "moved", "partition": 0, "replicas": [1], "log_dirs": [str(target)]}
        plan = tmp_path / "plan.json"
        plan.write_text(json.dumps({"version": 1, "partitions": [replica]}))
        begun = tool(broker, REASSIGN, "--execute", "--reassignment-json-file", str(plan))
        assert f'"log_dirs":["{source}"]' in begun, "the partition is still in its old directory"
        assert f"started moving log directory to {target} for replica moved-0" in begun
        wait_for(lambda: not (source / "moved-0").exists(), "the source without it")
        verified = tool(broker, REASSIGN, "--verify", "--reassignment-json-file", str(plan))
        assert "Reassignment of partition moved-0 is completed." in verified
        assert "Reassignment of replica moved-0-1 completed successfully." in verified
        said = tool(broker, LOG_DIRS, "--describe", "--topic-list", "moved").splitlines()
        (described,) = (json.loads(line) for line in said if line.startswith("{"))
        there = {"partition": "moved-0", "size": size, "offsetLag": 0, "isFuture": False}
        assert {
            place["logDir"]: place["partitions"] for place in described["brokers"][0]["logDirs"]
        } == {
            str(source): [],
            str(target): [there],
        }
        read = CLIENTS["confluent-kafka"].consume(broker.address, "moved", "reads", 100)
        assert [one.offset for one in read] == list(range(100))


def create_and_fill(broker: BrokerProcess, topic: str) -> None:
    """One partition with a hundred records."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    produce(broker, topic, 100)


@pytest.mark.big
@pytest.mark.timeout(600)
def test_transactions_are_listed_described_and_a_hanging_one_is_aborted(
    broker: BrokerProcess,
) -> None:
    tool(broker, TOPICS, "--create", "--topic", "in-transactions")
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "listed"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("in-transactions", b"x", partition=0)
    assert producer.flush(30) == 0
    listed = tool(broker, TRANSACTIONS, "list").splitlines()
    assert [line.split()[0] for line in listed] == ["TransactionalId", "listed"]
    assert listed[1].split()[-1] == "Ongoing"
    older = tool(broker, TRANSACTIONS, "list", "--duration-filter", "1000000")
    assert len(older.splitlines()) == 1
    described = tool(broker, TRANSACTIONS, "describe", "--transactional-id", "listed")
    row = described.splitlines()[1].split()
    assert (row[1], row[4], row[-1]) == ("listed", "Ongoing", "in-transactions-0")
    missing = tool(broker, TRANSACTIONS, "describe", "--transactional-id", "none such", fails=True)
    assert "none such" in missing
    of_broker = ("--broker-id", "1", "--max-transaction-timeout", "0")
    hanging = tool(broker, TRANSACTIONS, "find-hanging", *of_broker)
    assert len(hanging.splitlines()) == 1, "the coordinator knows it"
    partition = ("--topic", "in-transactions", "--partition", "0")
    tool(broker, TRANSACTIONS, "abort", *partition, "--start-offset", "0")
    row = tool(broker, TRANSACTIONS, "describe-producers", *partition).splitlines()[1].split()
    assert row[-1] == "None"
    refused = tool(broker, TRANSACTIONS, "abort", *partition, "--start-offset", "0", fails=True)
    assert "Could not find any open transactions" in refused
