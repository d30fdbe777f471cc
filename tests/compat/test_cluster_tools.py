"""Goal: Apache Kafka's own tools see our three nodes as a cluster of Apache Kafka.

Method: each tool against three real processes; the test checks the output's meaning, and foreign clients the records.
"""

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.cluster_processes import ClusterProcesses
from tests.compat.tools import java_command, java_environment, java_tool, kafka_lib
from tests.integration.server_process import strata
from tests.integration.test_voters_cli import CLUSTER, properties, roles, served
from tests.integration.waiting import wait_for

from stratalog.adapters.free_ports import free_ports

TOOLS = "org.apache.kafka.tools"
RECORDS = 200
pytestmark = [pytest.mark.big, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    kafka_lib()
    with ClusterProcesses(tmp_path_factory.mktemp("cluster") / "nodes") as running:
        yield running


def tool(nodes: ClusterProcesses, name: str, *args: str) -> str:
    done = java_tool(f"{TOOLS}.{name}", "--bootstrap-server", nodes.address, *args, timeout_s=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def create(nodes: ClusterProcesses, topic: str, partitions: int, replicas: int) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": nodes.address, "log_level": 2})
    admin.create_topics([NewTopic(topic, partitions, replicas)])[topic].result(30)
    return admin


def fill(nodes: ClusterProcesses, topic: str) -> None:
    producer = Producer({"bootstrap.servers": nodes.address, "enable.idempotence": True})
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(60) == 0


def partition_of(admin: AdminClient, topic: str) -> tuple[int, list[int], list[int]]:
    """Return (leader, replicas, ISR) of partition 0."""
    found = admin.list_topics(topic, timeout=30).topics[topic].partitions[0]
    return found.leader, list(found.replicas), sorted(found.isrs)


def test_the_quorum_is_described(nodes: ClusterProcesses) -> None:
    status = tool(nodes, "MetadataQuorumCommand", "describe", "--status")
    (leader,) = re.findall(r"^LeaderId: +(\d+)$", status, re.MULTILINE)
    assert int(leader) in nodes.ids
    (lag,) = re.findall(r"^MaxFollowerLag: +(\d+)$", status, re.MULTILINE)
    assert int(lag) < 100
    voters = re.findall(r'"id": (\d+)', status.partition("CurrentVoters:")[2])
    assert sorted(map(int, voters)) == list(nodes.ids)
    said = tool(nodes, "MetadataQuorumCommand", "describe", "--replication")
    rows = [line.split() for line in said.splitlines()[1:]]
    assert sorted(int(row[0]) for row in rows) == list(nodes.ids)
    assert sorted(row[-1] for row in rows) == ["Follower", "Follower", "Leader"]


def test_a_partition_moves_and_its_preferred_leader_is_elected(
    nodes: ClusterProcesses, tmp_path: Path
) -> None:
    admin = create(nodes, "moved", 1, 2)
    fill(nodes, "moved")
    _, replicas, _ = partition_of(admin, "moved")
    (absent,) = set(nodes.ids) - set(replicas)
    target = [absent, replicas[0]]
    plan = tmp_path / "plan.json"
    moves = [{"topic": "moved", "partition": 0, "replicas": target}]
    plan.write_text(json.dumps({"version": 1, "partitions": moves}))
    file = ("--reassignment-json-file", str(plan))
    tool(nodes, "reassign.ReassignPartitionsCommand", "--execute", *file)

    def verified() -> str:
        return tool(nodes, "reassign.ReassignPartitionsCommand", "--verify", *file)

    wait_for(lambda: "Reassignment of partition moved-0 is completed." in verified(), "the move")
    assert partition_of(admin, "moved")[1:] == (target, sorted(target))
    one = ("--topic", "moved", "--partition", "0")
    tool(nodes, "LeaderElectionCommand", "--election-type", "preferred", *one)
    wait_for(lambda: partition_of(admin, "moved")[0] == absent, "the preferred leader")


def test_log_directories_of_every_broker_are_described(nodes: ClusterProcesses) -> None:
    create(nodes, "sized", 1, 3)
    fill(nodes, "sized")
    files = [nodes.data(node) / "sized-0" / f"{0:020}.log" for node in nodes.ids]
    wait_for(lambda: len({file.stat().st_size for file in files}) == 1, "replicas of one size")
    said = tool(nodes, "LogDirsCommand", "--describe", "--topic-list", "sized")
    (described,) = (json.loads(line) for line in said.splitlines() if line.startswith("{"))
    sizes = {
        broker["broker"]: [
            each["size"] for place in broker["logDirs"] for each in place["partitions"]
        ]
        for broker in described["brokers"]
    }
    size = files[0].stat().st_size
    assert sizes == {node: [size] for node in nodes.ids}


def test_replica_verification_finds_no_lag(nodes: ClusterProcesses) -> None:
    create(nodes, "verified", 3, 3)
    fill(nodes, "verified")
    words = ("--broker-list", nodes.address, "--topics-include", "verified")
    process = subprocess.Popen(
        java_command(f"{TOOLS}.ReplicaVerificationTool", *words, "--report-interval-ms", "500"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=java_environment(),
    )
    assert process.stdout is not None
    said: list[str] = []
    deadline = time.monotonic() + 60
    try:
        for line in process.stdout:  # it reports for ever
            said.append(line)
            if "max lag is" in line or time.monotonic() > deadline:
                break
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert re.search(r"max lag is 0 for partition verified-\d", said[-1]), said
    assert "among 3 partitions" in said[-1], said


def test_the_verifiable_ones_agree_on_three_replicas(nodes: ClusterProcesses) -> None:
    create(nodes, "agreed", 3, 3)
    produced = tool(
        nodes, "VerifiableProducer", "--topic", "agreed", "--max-messages", f"{RECORDS}"
    )
    read = tool(
        nodes,
        "VerifiableConsumer",
        *("--topic", "agreed", "--group-id", "verifies", "--reset-policy", "earliest"),
        *("--max-messages", f"{RECORDS}", "--verbose"),
    )

    def places(said: str, name: str) -> set[tuple[int, int, str]]:
        found = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        return {(e["partition"], e["offset"], e["value"]) for e in found if e["name"] == name}

    sent = places(produced, "producer_send_success")
    assert len(sent) == RECORDS
    assert places(read, "record_data") == sent


def test_a_controller_is_added_and_removed_by_kafkas_command(tmp_path: Path) -> None:
    """The voters of `controller.quorum.bootstrap.servers` change (KIP-853); the last one cannot be removed."""
    kafka_lib()
    ports = free_ports(4)
    one = properties(tmp_path, 1, ports[:2], ports[1])
    two = properties(tmp_path, 2, ports[2:], ports[1])
    address = f"127.0.0.1:{ports[0]}"
    for file, how in ((one, "--standalone"), (two, "--no-initial-controllers")):
        done = strata("storage", "format", str(file), "-t", CLUSTER, how)
        assert done.returncode == 0, done.stderr

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        return java_tool(
            f"{TOOLS}.MetadataQuorumCommand", "--bootstrap-server", address, *words, timeout_s=120
        )

    def directory_id(node: int) -> str:
        text = (tmp_path / f"data-{node}" / "meta.properties").read_text()
        (found,) = re.findall(r"^directory\.id=(\S+)$", text, re.MULTILINE)
        return str(found)

    def remove(node: int) -> subprocess.CompletedProcess[str]:
        named = ("--controller-id", str(node), "--controller-directory-id", directory_id(node))
        return command("remove-controller", *named)

    with served(tmp_path, one), served(tmp_path, two):
        done = command("--command-config", str(two), "add-controller")
        assert done.returncode == 0, done.stdout + done.stderr
        assert roles(address) == {1: "leader", 2: "voter"}
        done = command("--command-config", str(two), "add-controller")
        assert "DuplicateVoterException" in done.stdout + done.stderr
        done = remove(2)
        assert done.returncode == 0, done.stdout + done.stderr
        assert roles(address) == {1: "leader", 2: "observer"}
        for node in (1, 2):
            done = remove(node)
            assert done.returncode == 1
            assert "VoterNotFoundException" in done.stdout + done.stderr
        assert roles(address) == {1: "leader", 2: "observer"}
