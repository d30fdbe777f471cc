"""Measure three of our nodes beside three of Apache Kafka: acks=all with three replicas, CPU, starts, failover.

usage: python -m bench.cluster [--rounds 3] [--warm-gb 1] [--only LINE]... [--scale 1.0]

Both clusters run at the same time and are loaded in turn by the same compiled client, as in `bench.broker`. CPU seconds
and memory are of all three nodes together. The command prints medians, spread and ratios, and leaves neither processes
nor files.
"""

import argparse
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from hatch_build import compile_in_place
from tests.cluster_processes import ClusterProcesses
from tests.wire_client import Wire

from bench import load
from bench.broker import Bench, drop, first_record, report, touch_memory
from bench.peers import (
    START_TIMEOUT_S,
    STOP_TIMEOUT_S,
    accepts,
    free_port,
    java_command,
    product_command,
)
from stratalog.errors import ErrorCode
from stratalog.wire import walk
from stratalog.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)

NODES, FACTOR, PARTITIONS = 3, 3, 3
LATENCY_RATE = 2000
ALL = ("-a", "-1")
"""rdkafka_performance's acks=all; of two options it takes the last."""
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
    restart: Callable[[int], None]
    begun: float
    """When the processes were started, by the steady clock."""

    @property
    def address(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    def _alive(self) -> list[psutil.Process]:
        return [psutil.Process(one.pid) for one in self.processes.values() if one.poll() is None]

    def cpu_seconds(self) -> float:
        times = [one.cpu_times() for one in self._alive()]
        return float(sum(one.user + one.system for one in times))

    def resident_mb(self) -> float:
        return float(sum(one.memory_info().rss for one in self._alive()) / 1e6)


@contextmanager
def strata(directory: Path) -> Iterator[Cluster]:
    """Yield three of our nodes, ready to serve: this checkout, as installed."""
    nodes = ClusterProcesses(directory, NODES, DEFAULTS, command=[product_command()])
    clients = {node: each.clients for node, each in nodes.ports.items()}
    controllers = {node: each.controllers for node, each in nodes.ports.items()}
    begun = time.monotonic()
    with nodes:
        yield Cluster(
            "Stratalog",
            clients,
            controllers,
            nodes.processes,
            lambda node: nodes.start([node]),
            begun,
        )


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

    def restart(node: int) -> None:
        begin(node)
        wait(node)

    begun = time.monotonic()
    try:
        for node in ports:
            begin(node)
        for node in ports:
            wait(node)
        yield Cluster("Apache Kafka", ports, controllers, processes, restart, begun)
    finally:
        for process in processes.values():
            process.send_signal(signal.SIGTERM)
        for process in processes.values():
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def prepare_kafka(directory: Path) -> tuple[dict[int, int], dict[int, int]]:
    """Write and format three nodes; return by node the ports for clients, and for controllers."""
    ids = range(1, NODES + 1)
    ports = {node: free_port() for node in ids}
    controllers = {node: free_port() for node in ids}
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


# Lines on the two running clusters. Each call runs one round on one cluster; round -1 only warms it.


def produce(bench: Bench, cluster: Cluster, topic: str, size: int, full: int, name: str) -> None:
    count = bench.count(full)
    touch_memory(2 * FACTOR * count * size)
    made = load.produce(cluster, topic, size, count, *ALL)
    bench.note(f"produce {name}, MB/s", cluster.name, made.rate)
    bench.note(f"produce {name}, CPU s/GB", cluster.name, made.cpu)


def produce_1k(bench: Bench, cluster: Cluster, topic: str) -> None:
    produce(bench, cluster, topic, 1024, 300_000, "1 KiB")


def produce_100(bench: Bench, cluster: Cluster, topic: str) -> None:
    produce(bench, cluster, topic, 100, 1_500_000, "100 B")


def latency(bench: Bench, cluster: Cluster, topic: str) -> None:
    seconds = max(2.0, 6 * bench.scale)
    before = cluster.cpu_seconds()
    middle, slow = load.latencies(cluster, topic, LATENCY_RATE, seconds, *ALL)
    bench.note("2,000 records/s, p50 ms", cluster.name, middle)
    bench.note("2,000 records/s, p99 ms", cluster.name, slow)
    used = (cluster.cpu_seconds() - before) * 1000 / (LATENCY_RATE * seconds)
    bench.note("2,000 records/s, CPU ms a record", cluster.name, used)


def failover(bench: Bench, cluster: Cluster, topic: str) -> None:
    """Measure, after kill -9 of the active controller, when another is active and each partition has a leader."""
    killed, epoch = active(cluster, list(cluster.ports))
    others = [node for node in cluster.ports if node != killed]
    admin = AdminClient({"bootstrap.servers": cluster.address, "log_level": 2})
    cluster.processes[killed].kill()
    begun = time.monotonic()
    cluster.processes[killed].wait()
    while active(cluster, others)[1] <= epoch:
        time.sleep(0.005)
    bench.note("kill -9 of the controller: another one, s", cluster.name, time.monotonic() - begun)
    while killed in leaders(admin, topic):
        time.sleep(0.02)
    bench.note("kill -9: all partitions led again, s", cluster.name, time.monotonic() - begun)
    cluster.restart(killed)
    wait_for_whole(admin, topic)


RUNNING = {
    "produce 1 KiB": produce_1k,
    "produce 100 B": produce_100,
    "latency": latency,
    "failover": failover,
}
START = "start"


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


def leaders(admin: AdminClient, topic: str) -> set[int]:
    return {one.leader for one in admin.list_topics(topic, 30).topics[topic].partitions.values()}


def wait_for_whole(admin: AdminClient, topic: str) -> None:
    """Wait until every replica of the topic is in sync."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        found = admin.list_topics(topic, timeout=30).topics[topic].partitions.values()
        if found and all(len(one.isrs) == FACTOR and one.leader >= 0 for one in found):
            return
        if time.monotonic() > deadline:
            raise SystemExit(f"{topic}: {[one.isrs for one in found]}")
        time.sleep(0.05)


def create(cluster: Cluster, topic: str) -> None:
    """Create a topic of three replicas, two of which must acknowledge."""
    admin = AdminClient({"bootstrap.servers": cluster.address, "log_level": 2})
    wanted = NewTopic(topic, PARTITIONS, FACTOR, config={"min.insync.replicas": "2"})
    for _ in range(600):
        (future,) = admin.create_topics([wanted], operation_timeout=60).values()
        try:
            future.result(60)
        except KafkaException as error:  # fewer than three brokers are registered yet
            if "INVALID_REPLICATION_FACTOR" not in str(error):
                raise
            time.sleep(0.05)
        else:
            break
    wait_for_whole(admin, topic)


def running(bench: Bench, warm_gb: float) -> None:
    """Measure all lines of `RUNNING` on one warm pair of clusters."""
    lines = {name: line for name, line in RUNNING.items() if bench.wants(name)}
    if not lines:
        return
    warming = Bench(1, bench.scale, [], bench.scratch, {})  # its measurements are dropped
    with ExitStack() as stack:
        pair = [
            stack.enter_context(start(bench.scratch / f"running-{number}"))
            for number, start in enumerate(STARTERS.values())
        ]
        for cluster in pair:
            create(cluster, "warm")
            for _ in range(round(warm_gb)):
                load.produce(cluster, "warm", 1024, 1_000_000, *ALL)
            drop(cluster, "warm")
        for number in range(-1 if warm_gb else 0, bench.rounds):
            for line in lines.values():
                topic = f"{line.__name__}-{number + 1}"
                for cluster in pair if number % 2 == 0 else pair[::-1]:
                    create(cluster, topic)
                    line(bench if number >= 0 else warming, cluster, topic)
                for cluster in pair:
                    drop(cluster, topic)
        for cluster in pair:
            bench.note("resident after the load, MB", cluster.name, cluster.resident_mb())


def starts(bench: Bench) -> None:
    """Measure from the start of three empty nodes to a record with acks=all that is acknowledged."""
    product_command()
    for number in range(bench.rounds):
        for place, start in enumerate(STARTERS.values()):
            with start(bench.scratch / f"start-{place}-{number}") as cluster:
                create(cluster, "first")
                first_record(cluster, "first", acks="all")
                took = time.monotonic() - cluster.begun
                bench.note("start to first acknowledged record, s", cluster.name, took)
                bench.note("resident idle, MB", cluster.name, cluster.resident_mb())


STARTERS: dict[str, Callable[[Path], AbstractContextManager[Cluster]]] = {
    "Stratalog": strata,
    "Apache Kafka": kafka,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-gb", type=float, default=1)
    parser.add_argument("--only", action="append", default=[], metavar="LINE")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--list", action="store_true", help="the lines' names")
    chosen = parser.parse_args()
    if chosen.list:
        print("\n".join([*RUNNING, START]))
        return
    if not walk.__file__.endswith((".so", ".pyd")):
        compile_in_place(Path(__file__).parents[1])  # as in an installation
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as scratch:
        bench = Bench(chosen.rounds, chosen.scale, chosen.only, Path(scratch), STARTERS)
        running(bench, chosen.warm_gb)
        if bench.wants(START):
            starts(bench)
    report(bench, time.monotonic() - begun)


if __name__ == "__main__":
    main()
