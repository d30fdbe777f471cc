"""Goal: bad input to a cluster of real processes is one line and exit code 2 for people, and Kafka's code for clients.

Method: three real nodes; further nodes whose settings or directories do not fit them; requests that no cluster can
carry out. Nothing of it is applied: the cluster has the same brokers, topics and voters afterwards.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from tests.cluster_processes import STRATA, ClusterProcesses
from tests.integration.server_process import strata
from tests.integration.waiting import wait_for

from stratalog.adapters.free_ports import free_ports
from stratalog.config.local_cluster import HOST

END_TIMEOUT_S = 100
OTHER_CLUSTER = "abcdefghijklmnopqrstug"
OLDER = """
from msgspec.structs import replace
from stratalog.quorum import features
features.SUPPORTED_FEATURES = tuple(
    one if one.name != "transaction.version" else replace(one, max_level=1)
    for one in features.SUPPORTED_FEATURES
)
from stratalog.cli.main import main
main()
"""
"""A release that serves the first protocol of transactions alone."""

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path_factory.mktemp("cluster") / "nodes") as running:
        admin = admin_of(running)
        admin.create_topics([NewTopic("kept", 1, 3)])["kept"].result(30)
        yield running
        assert set(admin.list_topics(timeout=30).topics) == {"kept"}
        assert set(admin.list_topics(timeout=30).brokers) == set(running.ids)
        assert all(process.poll() is None for process in running.processes.values())


def admin_of(nodes: ClusterProcesses) -> AdminClient:
    return AdminClient({"bootstrap.servers": nodes.address, "log_level": 2})


def cluster_id(nodes: ClusterProcesses) -> str:
    lines = (nodes.data(1) / "meta.properties").read_text().splitlines()
    return next(line.partition("=")[2] for line in lines if line.startswith("cluster.id="))


class Guest:
    """A node that does not fit the cluster: a broker with id 4, but for the settings given."""

    def __init__(self, nodes: ClusterProcesses, place: Path, **settings: str) -> None:
        self.file, self.data = place / "guest.properties", place / "data"
        lines = (nodes.directory(1) / "server.properties").read_text().splitlines()
        values = dict(line.split("=", 1) for line in lines)
        values |= {"process.roles": "broker", "node.id": "4", "log.dirs": str(self.data)}
        values |= {"listeners": f"PLAINTEXT://{HOST}:{free_ports(1)[0]}"}
        values |= {name.replace("__", "."): value for name, value in settings.items()}
        self.file.write_text("".join(f"{name}={value}\n" for name, value in values.items()))

    def format(self, cluster: str) -> None:
        done = strata("storage", "format", str(self.file), "-t", cluster)
        assert done.returncode == 0, done.stderr

    def refused(self, command: Sequence[str] = STRATA) -> str:
        """Run the node until it ends; return its one line. `command` is the `strata` of another release."""
        done = subprocess.run(
            [*command, "server", str(self.file)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=END_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 2, done
        (line,) = done.stderr.splitlines()
        assert "Traceback" not in done.stdout
        return line


def refused(nodes: ClusterProcesses, *words: str) -> str:
    done = strata(*words, "-b", nodes.address)
    assert done.returncode == 2, done
    (line,) = done.stderr.splitlines()
    return line


def code_of(future: object) -> str:
    with pytest.raises(KafkaException) as error:
        future.result(30)  # type: ignore[attr-defined]
    return str(error.value.args[0].name())


def test_a_second_broker_with_the_id_of_a_living_one(
    nodes: ClusterProcesses, tmp_path: Path
) -> None:
    """The first one is a guest too: ids 1 to 3 are voters."""
    settings = {"initial__broker__registration__timeout__ms": "2000"}
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    first = Guest(nodes, tmp_path / "first")
    second = Guest(nodes, tmp_path / "second", **settings)
    for guest in (first, second):
        guest.format(cluster_id(nodes))
    ready = tmp_path / "ready.json"
    with (tmp_path / "log").open("wb") as log:
        words = [*STRATA, "server", str(first.file), "--ready-file", str(ready)]
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        wait_for(ready.exists, "the first broker with id 4")
        line = second.refused()
        assert line == (
            "strata: node.id: 4 is not registered as a broker: another broker has this id and is alive; "
            "stop it, or give this node an id of its own"
        )
        assert process.poll() is None
    finally:
        process.kill()
        process.wait(30)
    done = strata("broker", "list", "-b", nodes.address)
    assert done.returncode == 0
    admin = admin_of(nodes)
    wait_for(lambda: 4 not in admin.list_topics(timeout=30).brokers, "the end of its session")


def test_voters_that_disagree(nodes: ClusterProcesses, tmp_path: Path) -> None:
    text = (nodes.directory(1) / "server.properties").read_text()
    voters = next(
        line.partition("=")[2]
        for line in text.splitlines()
        if line.startswith("controller.quorum.voters=")
    )
    ports = free_ports(2)
    guest = Guest(
        nodes,
        tmp_path,
        process__roles="broker,controller",
        controller__quorum__voters=f"{voters},4@{HOST}:{ports[1]}",
        listeners=f"PLAINTEXT://{HOST}:{ports[0]},CONTROLLER://{HOST}:{ports[1]}",
    )
    guest.format(cluster_id(nodes))
    line = guest.refused()
    assert "this node names the voters 1, 2, 3, 4" in line
    assert "committed with the voters 1, 2, 3; accepted: the same voters on every node" in line


def test_a_broker_that_does_not_serve_the_level_of_a_feature(
    nodes: ClusterProcesses, tmp_path: Path
) -> None:
    guest = Guest(nodes, tmp_path)
    guest.format(cluster_id(nodes))
    assert guest.refused([sys.executable, "-c", OLDER]) == (
        "strata: node.id: 4 is not registered as a broker: this release does not serve the cluster's "
        "transaction.version=2; accepted: transaction.version=1, which kafka-features.sh sets"
    )


def test_a_directory_of_another_cluster(nodes: ClusterProcesses, tmp_path: Path) -> None:
    guest = Guest(nodes, tmp_path)
    guest.format(OTHER_CLUSTER)
    line = guest.refused()
    assert f"belong to another cluster, log.dirs to {OTHER_CLUSTER}" in line


def test_a_directory_of_another_node_and_a_node_of_another_role(
    nodes: ClusterProcesses, tmp_path: Path
) -> None:
    Guest(nodes, tmp_path).format(cluster_id(nodes))
    other = Guest(nodes, tmp_path, node__id="5")
    before = (other.data / "meta.properties").read_text()
    assert "belongs to node 4, this is node 5" in other.refused()
    assert (other.data / "meta.properties").read_text() == before
    no_voter = Guest(nodes, tmp_path, process__roles="broker,controller")
    assert "it lacks node.id 4, whose process.roles has controller" in no_voter.refused()
    no_controller = Guest(nodes, tmp_path, node__id="1")
    assert "it contains node.id 1, whose process.roles is broker" in no_controller.refused()


def test_requests_that_no_cluster_can_carry_out(nodes: ClusterProcesses) -> None:
    admin = admin_of(nodes)
    many = admin.create_topics([NewTopic("t", 1, 9)])["t"]
    assert code_of(many) == "INVALID_REPLICATION_FACTOR"
    unknown = admin.create_topics([NewTopic("t", 1, replica_assignment=[[1, 9]])])["t"]
    assert code_of(unknown) == "INVALID_REPLICA_ASSIGNMENT"
    more = admin.create_partitions([NewPartitions("kept", 2, [[1, 2, 9]])])["kept"]
    assert code_of(more) == "INVALID_REPLICA_ASSIGNMENT"
    line = refused(nodes, "topic", "create", "t", "--replication-factor", "9")
    assert "replication factor 9 with " in line
    assert line.endswith(" brokers registered (INVALID_REPLICATION_FACTOR)")
    line = refused(nodes, "partition", "reassign", "kept", "--replication-factor", "7")
    assert "kept-0 needs 7 replicas, and 3 broker(s) may hold one" in line
    line = refused(nodes, "partition", "reassign", "kept", "--replicas", "1,2,9")
    assert "9" in line
    line = refused(nodes, "broker", "drain", "9")
    assert line.startswith("strata: broker 9 is not registered; the cluster has 1, 2, 3")
    assert "node 9 is no voter; accepted: 1, 2, 3" in refused(nodes, "quorum", "remove", "9")
    for voter in map(str, nodes.ids):
        line = refused(nodes, "quorum", "remove", voter)
        assert "controller.quorum.voters names the voters, which never change" in line


def test_a_change_without_a_quorum(tmp_path: Path) -> None:
    """Of three voters one is left, which did not lead: it serves what it knows, and changes nothing."""
    settings = {"controller.socket.timeout.ms": "1500"}
    with ClusterProcesses(tmp_path / "nodes", settings=settings) as nodes:
        admin = admin_of(nodes)
        admin.create_topics([NewTopic("kept", 1, 3)])["kept"].result(30)
        described = strata("quorum", "describe", "-b", nodes.address, "--json")
        rows = json.loads(described.stdout)["nodes"]
        left = next(row["id"] for row in rows if row["role"] != "leader")
        dead = [node for node in nodes.ids if node != left]
        wait_for(lambda: "topic created" in nodes.said(left), f"the topic on node {left}")
        for node in dead:
            nodes.kill(node)
        alone = f"{HOST}:{nodes.ports[left].clients}"
        one = AdminClient({"bootstrap.servers": alone, "log_level": 2})
        late = one.create_topics([NewTopic("late", 1, 1)], request_timeout=30)["late"]
        assert code_of(late) == "REQUEST_TIMED_OUT"
        done = strata("topic", "create", "late", "-b", alone)
        assert done.returncode == 2
        assert done.stderr == (
            "strata: topic late: no active controller answers; "
            "a majority of the voters must run (REQUEST_TIMED_OUT)\n"
        )
        done = strata("partition", "elect", "kept", "-b", alone)
        assert done.returncode == 2
        assert done.stderr == (
            "strata: no active controller answers; "
            "a majority of the voters must run (REQUEST_TIMED_OUT)\n"
        )
        done = strata("topic", "list", "-b", alone)
        assert (done.returncode, "kept" in done.stdout) == (0, True)
        nodes.start(dead)
        admin.create_topics([NewTopic("after", 1, 3)])["after"].result(30)
        assert set(admin.list_topics(timeout=30).topics) == {"kept", "after"}


def test_a_second_controller_with_the_id_of_a_voter(
    nodes: ClusterProcesses, tmp_path: Path
) -> None:
    """It has the voters of the cluster, a directory of its own, and another address than the voter."""
    for node in nodes.ids:
        ports = free_ports(2)
        (tmp_path / str(node)).mkdir()
        twin = Guest(
            nodes,
            tmp_path / str(node),
            process__roles="broker,controller",
            node__id=str(node),
            listeners=f"PLAINTEXT://{HOST}:{ports[0]},CONTROLLER://{HOST}:{ports[1]}",
        )
        twin.format(cluster_id(nodes))
        assert twin.refused() == (
            f"strata: node.id: {node}: another node serves at {HOST}:{nodes.ports[node].controllers}, which is the "
            "address of this controller; stop that node, give this one an id of its own, or correct the voters' "
            "addresses"
        )


def test_a_second_controller_that_began_before_the_voter(tmp_path: Path) -> None:
    """It votes while the voter is down, and ends once the voter serves."""
    with ClusterProcesses(tmp_path / "nodes") as nodes:
        nodes.kill(3)
        ports = free_ports(2)
        twin = Guest(
            nodes,
            tmp_path,
            process__roles="broker,controller",
            node__id="3",
            listeners=f"PLAINTEXT://{HOST}:{ports[0]},CONTROLLER://{HOST}:{ports[1]}",
        )
        twin.format(cluster_id(nodes))
        ready, log = tmp_path / "ready.json", tmp_path / "log"
        with log.open("wb") as output:
            words = [*STRATA, "server", str(twin.file), "--ready-file", str(ready)]
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        try:
            wait_for(ready.exists, "the second node with id 3")
            nodes.begin([3])
            assert process.wait(END_TIMEOUT_S) == 2
        finally:
            process.kill()
            process.wait(30)
        assert "node.id: 3: another node serves at" in log.read_text().splitlines()[-1]
        wait_for((nodes.directory(3) / "ready.json").exists, "the voter")
