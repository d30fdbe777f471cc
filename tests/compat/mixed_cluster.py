"""Nodes of Apache Kafka and of ours in one cluster, each a process of its own.

In: a directory, which product each node is of, and its role. Out: nodes that start, are killed and stop one by one. It
ends only the processes that it started, and ends all of them. Skips without Java or Kafka, as `tools`.
"""

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from socket import create_connection
from types import TracebackType
from typing import Literal, Self

from tests.compat.tools import java_command, java_environment, java_tool

from stratalog.adapters.free_ports import free_ports
from stratalog.adapters.system import SystemEntropy
from stratalog.broker.storage.claim import new_cluster_id

START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 60
FORMAT_TIMEOUT_S = 60
STRATA = (sys.executable, "-m", "stratalog.cli.main")
Product = Literal["kafka", "strata"]
QUICK = {
    "broker.heartbeat.interval.ms": "300",
    "broker.session.timeout.ms": "3000",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "3",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "replica.lag.time.max.ms": "5000",
    "log.cleaner.enable": "false",
}
"""Of brokers and controllers of both products. Kafka's cleaner alone reserves 128 MiB."""


@dataclass
class Node:
    """One node: its product, its role, where it listens and what it has on the disk."""

    id: int
    product: Product
    role: Literal["broker", "controller"]
    place: Path
    port: int
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def file(self) -> Path:
        return self.place / "server.properties"

    @property
    def data(self) -> Path:
        return self.place / "data"

    @property
    def said(self) -> str:
        return (self.place / "server.log").read_text(errors="replace")


class MixedCluster:
    """`with MixedCluster(place, {100: "kafka"}, {1: "kafka", 2: "strata"}) as nodes: … nodes.start(1)`.

    Controllers never change, and are no brokers. Nodes start one by one.
    """

    def __init__(
        self,
        place: Path,
        controllers: Mapping[int, Product],
        brokers: Mapping[int, Product],
        *,
        features: Mapping[str, int] | None = None,
        settings: Mapping[int, Mapping[str, str]] | None = None,
    ) -> None:
        """`features` are levels of a new cluster that differ from Kafka's own choice, `settings` those of one node."""
        self.place = place
        self.cluster_id = new_cluster_id(SystemEntropy())
        ports = free_ports(len(controllers) + len(brokers))
        self.nodes = {
            node: Node(node, product, "controller", place / f"node-{node}", ports.pop())
            for node, product in controllers.items()
        }
        self.voters = ",".join(f"{one.id}@{one.address}" for one in self.nodes.values())
        for node, product in brokers.items():
            self.nodes[node] = Node(node, product, "broker", place / f"node-{node}", ports.pop())
        for one in self.nodes.values():
            one.place.mkdir(parents=True)
            lines = {**self._settings(one), **(settings or {}).get(one.id, {})}.items()
            one.file.write_text("".join(f"{k}={v}\n" for k, v in lines))
            self._format(one, features or {})

    def _settings(self, node: Node) -> dict[str, str]:
        listener = "PLAINTEXT" if node.role == "broker" else "CONTROLLER"
        return {
            "process.roles": node.role,
            "node.id": str(node.id),
            "controller.quorum.voters": self.voters,
            "listeners": f"{listener}://{node.address}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(node.data),
            **QUICK,
        }

    def _format(self, node: Node, features: Mapping[str, int]) -> None:
        if node.product == "kafka":
            words = [f"--feature={name}={level}" for name, level in features.items()]
            storage = "kafka.tools.StorageTool"
            words = ["format", "-t", self.cluster_id, "-c", str(node.file), *words]
            done = java_tool(storage, *words, timeout_s=FORMAT_TIMEOUT_S)
        else:
            done = subprocess.run(
                [*STRATA, "storage", "format", str(node.file), "-t", self.cluster_id],
                capture_output=True,
                text=True,
                timeout=FORMAT_TIMEOUT_S,
                check=False,
            )
        assert done.returncode == 0, done.stdout + done.stderr

    def address(self, node: int) -> str:
        return self.nodes[node].address

    @property
    def brokers(self) -> str:
        """The addresses of all brokers, also of those that do not run."""
        return ",".join(one.address for one in self.nodes.values() if one.role == "broker")

    def start(self, node: int) -> None:
        """Start a node and wait until it listens. Raises AssertionError with its last lines where it does not."""
        one = self.begin(node)
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            assert one.process is not None
            code = one.process.poll()
            assert code is None, f"node {node} ended with {code}: {one.said[-3000:]}"
            assert time.monotonic() < deadline, f"node {node}: {one.said[-3000:]}"
            try:
                create_connection(("127.0.0.1", one.port), timeout=1).close()
            except OSError:
                time.sleep(0.1)
            else:
                return

    def begin(self, node: int) -> Node:
        """Start a node without waiting."""
        one = self.nodes[node]
        with (one.place / "server.log").open("ab") as output:
            one.process = subprocess.Popen(
                self._command(one),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=java_environment(),
            )
        return one

    def _command(self, node: Node) -> Sequence[str]:
        if node.product == "kafka":
            return java_command("kafka.Kafka", str(node.file), heap="256m")
        return [*STRATA, "server", str(node.file)]

    def kill(self, node: int) -> None:
        """End a node as `kill -9` does."""
        process = self.nodes[node].process
        assert process is not None
        process.kill()
        process.wait(STOP_TIMEOUT_S)

    def stop(self, node: int) -> int:
        """Stop a node as SIGTERM does; return its exit code."""
        process = self.nodes[node].process
        assert process is not None
        process.terminate()
        return process.wait(STOP_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        started = [one.process for one in self.nodes.values() if one.process is not None]
        for process in started:
            if process.poll() is None:
                process.kill()
        for process in started:
            process.wait(STOP_TIMEOUT_S)
