"""Several real nodes, each `strata server FILE` in a process of its own: started, killed, paused, stopped.

In: a directory, a number of nodes, settings. Out: one cluster on free ports of 127.0.0.1, with a server.properties for
each node. It ends only the processes that it started, and ends all of them.
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from stratalog.adapters.free_ports import free_ports
from stratalog.adapters.local_disk import LocalDisk
from stratalog.adapters.system import SystemEntropy
from stratalog.broker.storage.claim import format_directory, new_cluster_id
from stratalog.config.local_cluster import NodePorts, node_settings

START_TIMEOUT_S = 180
STOP_TIMEOUT_S = 60
STRATA = (sys.executable, "-m", "stratalog.cli.main")
QUICK = {
    "broker.heartbeat.interval.ms": "300",
    "broker.session.timeout.ms": "2000",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "3",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "log.segment.delete.delay.ms": "0",
}
"""A dead node's partitions have other leaders after two seconds, not after nine."""


class ClusterProcesses:
    """`with ClusterProcesses(place) as nodes: … nodes.address … nodes.kill(1)`. Node ids begin at `first_id`."""

    def __init__(
        self,
        place: Path,
        count: int = 3,
        settings: Mapping[str, str] | None = None,
        *,
        command: Iterable[str] = STRATA,
        first_id: int = 1,
    ) -> None:
        """`command` is the `strata` of another installation."""
        self.place = place
        self.ids = range(first_id, first_id + count)
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._command = tuple(command)
        self.ports = self.choose_ports()
        cluster_id = new_cluster_id(SystemEntropy())
        for node in self.ids:
            directory = self.directory(node)
            directory.mkdir(parents=True, exist_ok=True)
            lines = {**QUICK, **self.addresses(node), **(settings or {})}.items()
            (directory / "server.properties").write_text("".join(f"{k}={v}\n" for k, v in lines))
            disk = LocalDisk(str(self.data(node)))
            format_directory(str(self.data(node)), disk, node, cluster_id, SystemEntropy())
            disk.close()

    def choose_ports(self) -> dict[int, NodePorts]:
        """Return each node's ports: free ones of this machine."""
        free = free_ports(2 * len(self.ids))
        return {node: NodePorts(free.pop(), free.pop()) for node in self.ids}

    def addresses(self, node: int) -> dict[str, str]:
        """Return the settings that name addresses and directories."""
        return node_settings(node, self.ports, str(self.data(node)))

    def words(self, node: int) -> tuple[str, ...]:
        """Return the words of a command that runs the node's `strata`."""
        del node
        return self._command

    def directory(self, node: int) -> Path:
        return self.place / f"node-{node}"

    def data(self, node: int) -> Path:
        return self.directory(node) / "data"

    def said(self, node: int) -> str:
        return (self.directory(node) / "server.log").read_text(errors="replace")

    @property
    def address(self) -> str:
        """The addresses of all nodes, also of those that do not run."""
        return ",".join(f"127.0.0.1:{ports.clients}" for ports in self.ports.values())

    def begin(self, nodes: Iterable[int]) -> None:
        """Start processes, without waiting."""
        for node in nodes:
            directory = self.directory(node)
            ready = directory / "ready.json"
            ready.unlink(missing_ok=True)
            words = [*self.words(node), "server", f"--ready-file={ready}"]
            with (directory / "server.log").open("ab") as output:
                self.processes[node] = subprocess.Popen(
                    [*words, str(directory / "server.properties")],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                )

    def start(self, nodes: Iterable[int] | None = None) -> None:
        """Start nodes (all by default), and wait until each serves. Raises AssertionError with a node's last lines."""
        chosen = list(self.ids if nodes is None else nodes)
        self.begin(chosen)
        deadline = time.monotonic() + START_TIMEOUT_S
        for node in chosen:
            ready = self.directory(node) / "ready.json"
            while not ready.exists():
                code = self.processes[node].poll()
                assert code is None, f"node {node} ended with {code}: {self.said(node)[-2000:]}"
                assert time.monotonic() < deadline, f"node {node}: {self.said(node)[-2000:]}"
                time.sleep(0.01)
            assert json.loads(ready.read_text())["port"] == self.ports[node].clients

    def kill(self, node: int) -> None:
        """End a node as `kill -9` does."""
        self.processes[node].kill()
        self.processes[node].wait(STOP_TIMEOUT_S)

    def pause(self, node: int) -> None:
        """Stop a node's every thread where it is (SIGSTOP)."""
        self.processes[node].send_signal(signal.SIGSTOP)

    def wake(self, node: int) -> None:
        """Continue a paused node (SIGCONT)."""
        self.processes[node].send_signal(signal.SIGCONT)

    def stop(self, nodes: Iterable[int] | None = None) -> None:
        """Stop nodes at the same time, as SIGTERM does. Raises AssertionError for an exit code other than 0."""
        chosen = list(self.ids if nodes is None else nodes)
        for node in chosen:
            self.processes[node].send_signal(signal.SIGTERM)
        for node in chosen:
            code = self.processes[node].wait(STOP_TIMEOUT_S)
            assert code == 0, f"node {node} ended with {code}: {self.said(node)[-2000:]}"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:  # an interrupt too: no `__exit__` follows
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill every process that still runs, a paused one too."""
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
        for process in self.processes.values():
            process.wait(STOP_TIMEOUT_S)
