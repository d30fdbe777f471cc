"""Start two clusters of three nodes, ours and Apache Kafka's, and look at them as a client does.

In: a scratch directory. Out: clusters with addresses, CPU seconds, memory, leaders. It ends only what it started.
"""

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic, PartitionMetadata
from tests.cluster_processes import ClusterProcesses
from tests.wire_client import Wire

from bench.peers import (
    START_TIMEOUT_S,
    STOP_TIMEOUT_S,
    accepts,
    cpu_seconds,
    java_command,
    product_command,
)
from stratalog.adapters.free_ports import free_ports
from stratalog.errors import ErrorCode
from stratalog.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)

NODES, FACTOR, PARTITIONS = 3, 3, 3
WHOLE_TIMEOUT_S = 600
DEFAULTS = {
    "broker.heartbeat.interval.ms": "2000",
    "broker.session.timeout.ms": "9000",
    "controller.quorum.election.timeout.ms": "1000",
}
"""Kafka's defaults, for both."""


@dataclass
class Cluster:
    """A running cluster; it is a `Loaded` for the generators of load."""

    name: str
    ports: dict[int, int]
    """Of each node, the port for clients."""
    controllers: dict[int, int]
    """Of each node, the port for controllers."""
    processes: dict[int, subprocess.Popen[bytes]]
    start: Callable[[Iterable[int]], None]
    """Starts nodes, and waits until each serves."""
    begun: float
    """When the processes were started, by the steady clock."""
    ready_files: dict[int, Path] = field(default_factory=dict)
    """Of each of our nodes, the file that names the port of its monitor."""

    @property
    def address(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    def _alive(self) -> list[psutil.Process]:
        return [psutil.Process(one.pid) for one in self.processes.values() if one.poll() is None]

    def cpu_seconds(self) -> float:
        return sum(cpu_seconds(one.pid) for one in self._alive())

    def resident_mb(self) -> float:
        return float(sum(one.memory_info().rss for one in self._alive()) / 1e6)

    def kill(self, node: int) -> None:
        """End a node as `kill -9` does."""
        self.processes[node].kill()
        self.processes[node].wait()

    def stop(self, nodes: Iterable[int]) -> None:
        """Stop nodes at the same time, as SIGTERM does, and wait for their ends."""
        chosen = list(nodes)
        for node in chosen:
            self.processes[node].send_signal(signal.SIGTERM)
        for node in chosen:
            try:
                self.processes[node].wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill(node)

    def metrics(self) -> dict[str, float]:
        """Return the sum over our nodes of each series of /metrics, by its name with its labels."""
        summed: dict[str, float] = {}
        for ready in self.ready_files.values():
            port = json.loads(ready.read_text())["monitor_port"]
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
                for line in answer.read().decode().splitlines():
                    if not line.startswith("#"):
                        series, _, value = line.rpartition(" ")
                        summed[series] = summed.get(series, 0) + float(value)
        return summed


@contextmanager
def strata(directory: Path, command: str = "", name: str = "Stratalog") -> Iterator[Cluster]:
    """Yield three of our nodes, ready to serve: this checkout, as installed, or the `strata` of `command`."""
    settings = {**DEFAULTS, "monitor.listener": "127.0.0.1:0"}
    nodes = ClusterProcesses(directory, NODES, settings, command=[command or product_command()])
    clients = {node: each.clients for node, each in nodes.ports.items()}
    controllers = {node: each.controllers for node, each in nodes.ports.items()}
    ready = {node: nodes.directory(node) / "ready.json" for node in nodes.ids}
    begun = time.monotonic()
    with nodes:
        yield Cluster(name, clients, controllers, nodes.processes, nodes.start, begun, ready)


@contextmanager
def kafka(directory: Path) -> Iterator[Cluster]:
    """Yield three nodes of Apache Kafka, formatted and listening."""
    ports, controllers = prepare_kafka(directory)
    processes: dict[int, subprocess.Popen[bytes]] = {}

    def begin(node: int) -> None:
        place = directory / f"node-{node}"
        words = [*java_command(), "kafka.Kafka", str(place / "server.properties")]
        with (place / "log").open("ab") as log:
            processes[node] = subprocess.Popen(
                words, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def wait(node: int) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not accepts(ports[node]):
            if processes[node].poll() is not None or time.monotonic() > deadline:
                said = (directory / f"node-{node}" / "log").read_text()[-2000:]
                raise SystemExit(f"Apache Kafka {node} did not start: {said}")
            time.sleep(0.01)

    def start(nodes: Iterable[int]) -> None:
        chosen = list(nodes)
        for node in chosen:
            begin(node)
        for node in chosen:
            wait(node)

    cluster = Cluster("Apache Kafka", ports, controllers, processes, start, time.monotonic())
    try:
        start(ports)
        yield cluster
    finally:
        cluster.stop([node for node, one in processes.items() if one.poll() is None])


def prepare_kafka(directory: Path) -> tuple[dict[int, int], dict[int, int]]:
    """Write and format three nodes; return by node the ports for clients, and for controllers."""
    ids = range(1, NODES + 1)
    free = free_ports(2 * NODES)
    ports = dict(zip(ids, free[:NODES], strict=True))
    controllers = dict(zip(ids, free[NODES:], strict=True))
    voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in controllers.items())
    storage = [*java_command(), "kafka.tools.StorageTool"]
    made = subprocess.run(
        [*storage, "random-uuid"], capture_output=True, text=True, check=True, timeout=120
    )
    for node in ids:
        place = directory / f"node-{node}"
        place.mkdir(parents=True)
        listeners = (
            f"PLAINTEXT://127.0.0.1:{ports[node]},CONTROLLER://127.0.0.1:{controllers[node]}"
        )
        (place / "server.properties").write_text(
            f"process.roles=broker,controller\nnode.id={node}\nlog.dirs={place / 'data'}\n"
            f"controller.quorum.voters={voters}\nlisteners={listeners}\n"
            "controller.listener.names=CONTROLLER\ninter.broker.listener.name=PLAINTEXT\n"
            "group.initial.rebalance.delay.ms=0\nlog.segment.delete.delay.ms=0\n"
        )
        properties = str(place / "server.properties")
        formatted = [*storage, "format", "-t", made.stdout.split()[-1], "-c", properties]
        subprocess.run(formatted, capture_output=True, check=True, timeout=120)
    return ports, controllers


def active(cluster: Cluster, nodes: list[int]) -> tuple[int, int]:
    """Return (node, epoch) of the active controller, if one of these nodes is active; else (-1, -1)."""
    partition = DescribeQuorumRequestPartitionData(partition_index=0)
    topic = DescribeQuorumRequestTopicData(topic_name="__cluster_metadata", partitions=[partition])
    for node in nodes:
        try:
            with Wire(f"127.0.0.1:{cluster.controllers[node]}") as wire:
                found = wire.ask(0, DescribeQuorumRequest(topics=[topic]))
        except OSError:
            continue
        if found.error_code == ErrorCode.none:
            answer = found.topics[0].partitions[0]
            if answer.error_code == ErrorCode.none:
                return answer.leader_id, answer.leader_epoch
    return -1, -1


def partitions_of(admin: AdminClient, topic: str) -> list[PartitionMetadata]:
    """Return the topic's partitions, or those of all topics with "" for it."""
    found = admin.list_topics(topic, 120) if topic else admin.list_topics(timeout=120)
    topics = [one for name, one in found.topics.items() if not name.startswith("__")]
    return [partition for one in topics for partition in one.partitions.values()]


def leaders(admin: AdminClient, topic: str) -> dict[int, int]:
    """Return the leader of each partition, -1 where none is known."""
    return {one.id: one.leader for one in partitions_of(admin, topic)}


def wait_for_whole(admin: AdminClient, topic: str, count: int = 1) -> None:
    """Wait until every replica of the topic's (or all topics') `count` partitions is in sync."""
    deadline = time.monotonic() + WHOLE_TIMEOUT_S
    while True:
        found = partitions_of(admin, topic)
        behind = [one for one in found if len(one.isrs) != FACTOR or one.leader < 0]
        if len(found) >= count and not behind:
            return
        if time.monotonic() > deadline:
            raise SystemExit(f"{topic}: {len(behind)} of {len(found)} partitions are not in sync")
        time.sleep(0.05 if count < 100 else 0.5)


def create(cluster: Cluster, topic: str, partitions: int = PARTITIONS) -> None:
    """Create a topic of three replicas, two of which must acknowledge."""
    admin = AdminClient({"bootstrap.servers": cluster.address, "log_level": 2})
    wanted = NewTopic(topic, partitions, FACTOR, config={"min.insync.replicas": "2"})
    for _ in range(600):
        (future,) = admin.create_topics(
            [wanted], operation_timeout=120, request_timeout=180
        ).values()
        try:
            future.result(200)
        except KafkaException as error:
            if "TOPIC_ALREADY_EXISTS" in str(error):
                break  # an earlier request took longer than librdkafka waits
            if "INVALID_REPLICATION_FACTOR" not in str(error):
                raise
            time.sleep(0.05)  # fewer than three brokers are registered yet
        else:
            break
    wait_for_whole(admin, topic, partitions)
