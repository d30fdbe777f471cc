"""The directory of a cluster on this machine: a folder for each node, and the state of their processes.

In: a directory, a number of nodes, settings. Out: properties files, formatted log directories, processes that are
started, signalled and waited for. It never signals a process that it did not start, and deletes no data.

    cluster.json              cluster id, profile, the process of each node
    node-1/server.properties  Kafka's settings with the ports, mode 0600; a person may edit the file
    node-1/data               the node's log directory
    node-1/server.log         the output of its process
    node-1/ready.json         where the node serves, as `strata server --ready-file` writes it
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING, Any, Final, Self

from stratalog.client.security import PLAIN, ClientSecurity
from stratalog.config.local_cluster import HOST
from stratalog.errors import Unavailable, UserError

if TYPE_CHECKING:
    from stratalog.adapters.detached import Detached
    from stratalog.config import BrokerConfig

_STATE: Final = "cluster.json"
_PROPERTIES: Final = "server.properties"
_STEP_S: Final = 0.01
_START_S: Final = 60.0
_STOP_S: Final = 60.0
_ASK_S: Final = 2.0


@dataclass(slots=True)
class ClusterDirectory:
    """One cluster's directory; `locked` opens it. `processes` has each node's last process, by node id.

    `security` is how this process connects to the nodes.
    """

    path: Path
    cluster_id: str = ""
    profile: str = ""
    processes: "dict[int, Detached | None]" = field(default_factory=dict)
    security: ClientSecurity = PLAIN

    @classmethod
    @contextmanager
    def locked(cls, path: Path) -> Iterator[Self]:
        """Open and lock the directory. Raises UserError where another command has locked it, or it cannot be read."""
        from stratalog.adapters.local_disk import LocalDisk

        disk = LocalDisk(str(path))
        try:
            if not disk.lock():
                raise UserError(f"{path}: another strata cluster command works there; wait for it")
            yield cls._load(path)
        finally:
            disk.close()

    @classmethod
    def existing(cls, path: Path) -> "Any":
        """Do as `locked`, for an existing cluster. Raises UserError where there is none."""
        if not (path / _STATE).is_file():
            raise UserError(
                f"{path}: no cluster is there; `strata cluster start` makes one, --directory names another"
            )
        return cls.locked(path)

    @classmethod
    def _load(cls, path: Path) -> Self:
        from stratalog.adapters.detached import Detached

        try:
            state = json.loads((path / _STATE).read_text())
            processes = {
                one["id"]: None if one["process"] is None else Detached(**one["process"])
                for one in state["nodes"]
            }
            return cls(path, state["cluster_id"], state["profile"], processes)
        except FileNotFoundError:
            return cls(path)
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path / _STATE}: not what strata cluster wrote: {error}") from None

    def save(self) -> None:
        """Write `cluster.json`, whole or not at all."""
        nodes = [
            {"id": node, "process": None if process is None else asdict(process)}
            for node, process in self.processes.items()
        ]
        text = json.dumps(
            {"cluster_id": self.cluster_id, "profile": self.profile, "nodes": nodes}, indent=2
        )
        temporary = self.path / f"{_STATE}.tmp"
        temporary.write_text(text + "\n")
        temporary.replace(self.path / _STATE)

    def create(self, nodes: int, settings: Mapping[str, str]) -> None:
        """Choose ports, and write the properties of every node. A UserError comes before any write."""
        from stratalog.adapters.free_ports import free_ports
        from stratalog.adapters.system import SystemEntropy
        from stratalog.broker.storage.claim import new_cluster_id
        from stratalog.config import BrokerConfig
        from stratalog.config.local_cluster import NodePorts, node_settings

        if others := sorted(one.name for one in self.path.iterdir() if one.name != ".lock"):
            raise UserError(
                f"{self.path}: it is not empty ({others[0]}, …) and has no {_STATE}: name another directory"
            )
        if "," in str(self.path):
            raise UserError(f"{self.path}: a comma is not accepted: log.dirs is a list")
        free = free_ports(2 * nodes)
        ports = {
            node: NodePorts(free[2 * node - 2], free[2 * node - 1]) for node in range(1, nodes + 1)
        }
        of_nodes = {
            node: node_settings(node, ports, str(self.folder(node) / "data")) | dict(settings)
            for node in ports
        }
        for one in of_nodes.values():
            BrokerConfig.load(one, profile=self.profile)
        for node, one in of_nodes.items():
            self.folder(node).mkdir()
            self._add_lines(node, one)
        self.cluster_id = new_cluster_id(SystemEntropy())
        self.processes = dict.fromkeys(ports)
        self.save()

    def change(self, settings: Mapping[str, str]) -> None:
        """Add settings to every node's properties, where the last line of a name counts.

        A UserError comes before any write.
        """
        from stratalog.cli.node.serving import read_properties
        from stratalog.config import BrokerConfig

        for node in self.processes:
            BrokerConfig.load(
                read_properties(self.properties(node)) | dict(settings), profile=self.profile
            )
        for node in self.processes if settings else ():
            self._add_lines(node, settings)

    def _add_lines(self, node: int, settings: Mapping[str, str]) -> None:
        """Add settings to a node's properties. A setting may be a secret: only the file's owner reads and writes it."""
        path = self.properties(node)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as file:
            os.fchmod(file.fileno(), 0o600)  # also of a file that an earlier version wrote
            file.write("".join(_line(*one) for one in settings.items()).encode())

    def folder(self, node: int) -> Path:
        return self.path / f"node-{node}"

    def properties(self, node: int) -> Path:
        return self.folder(node) / _PROPERTIES

    def is_running(self, node: int) -> bool:
        """Return whether the node's process runs. Raises UserError for an unknown node."""
        from stratalog.adapters.detached import is_running

        if node not in self.processes:
            node_ids = ", ".join(map(str, self.processes))
            raise UserError(f"node {node} is not there; {self.path} has nodes {node_ids}")
        process = self.processes[node]
        return process is not None and is_running(process)

    def ready(self, node: int) -> dict[str, Any] | None:
        """Return the node's addresses; None while it does not serve."""
        if not self.is_running(node):
            return None
        try:
            found: dict[str, Any] = json.loads((self.folder(node) / "ready.json").read_text())
        except FileNotFoundError:
            return None
        return found

    async def start(self, nodes: Sequence[int]) -> None:
        """Start nodes that do not run, and wait until they serve. Where one fails, the command stops all of them again.

        Raises UserError before the first start (a port in use, a directory of another cluster), Unavailable with the
        last line of a node's log.
        """
        self._check(nodes)
        served = False
        try:
            for node in nodes:
                self._spawn(node)
            await self._until_serving(nodes)
            await self._until_known(nodes)
            served = True
        finally:
            if not served:
                for node in nodes:
                    self.send(node, Signals.SIGKILL)

    def _check(self, nodes: Sequence[int]) -> None:
        """Check ports, and format new directories, before any process starts."""
        from stratalog.adapters.free_ports import is_free
        from stratalog.cli.node.storage import format_directories

        configs = {node: _config(self.properties(node), self.profile) for node in nodes}
        for node, config in configs.items():
            for port in _ports(config):
                if not is_free(port):
                    raise UserError(
                        f"port {port} of node {node} is taken by another process: stop that one, "
                        f"or change listeners and controller.quorum.voters in {self.path}/node-*/{_PROPERTIES}"
                    )
        for config in configs.values():
            format_directories(config, self.cluster_id, ignore_formatted=True)

    def _spawn(self, node: int) -> None:
        from stratalog.adapters.detached import start_detached

        ready = self.folder(node) / "ready.json"
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "stratalog.cli.main", "server", str(self.properties(node))]
        command += ["--ready-file", str(ready)]
        command += ["--profile", self.profile] if self.profile else []
        self.processes[node] = start_detached(command, str(self.log(node)))
        self.save()

    def log(self, node: int) -> Path:
        return self.folder(node) / "server.log"

    async def _until_serving(self, nodes: Sequence[int]) -> None:
        from asyncio import get_running_loop, sleep

        clock = get_running_loop().time
        deadline = clock() + _START_S
        for node in nodes:
            while self.ready(node) is None:
                if not self.is_running(node) or clock() > deadline:
                    lines = self.log(node).read_text(errors="replace").strip().splitlines()
                    raise Unavailable(
                        f"node {node} did not start: {lines[-1] if lines else 'it said nothing'} "
                        f"({self.log(node)})"
                    )
                await sleep(_STEP_S)

    async def _until_known(self, nodes: Sequence[int]) -> None:
        """Wait until each of these nodes names all of them as brokers that serve."""
        from asyncio import get_running_loop, sleep

        from stratalog.adapters.network import TcpNetwork
        from stratalog.client.aio import Client

        clock = get_running_loop().time
        deadline = clock() + _START_S
        for node in nodes:
            ready = self.ready(node) or {"port": 0}
            address = f"{HOST}:{ready['port']}"
            async with await Client.connect(
                TcpNetwork(), address, security=self.security
            ) as client:
                while missing := set(nodes) - (await client.metadata([])).brokers.keys():
                    if clock() > deadline:
                        numbers = ", ".join(map(str, sorted(missing)))
                        raise Unavailable(
                            f"node {node} has no word of node(s) {numbers} after {_START_S:g} s "
                            f"({self.log(node)})"
                        )
                    await sleep(_STEP_S)

    def send(self, node: int, number: Signals) -> None:
        """Send a signal to a node, if it runs."""
        from stratalog.adapters.detached import send

        process = self.processes[node]
        if process is not None:
            send(process, number)

    async def stop(self) -> int:
        """Stop the nodes that run, as SIGTERM does; return how many they were. Raises Unavailable as `end`.

        The active controller goes last: it permits the stops of the others, and gives their leaderships away.
        """
        running = [node for node in self.processes if self.is_running(node)]
        last = await self._active_controller(running)
        await self.end([node for node in running if node != last], Signals.SIGTERM)
        await self.end([node for node in running if node == last], Signals.SIGTERM)
        return len(running)

    async def _active_controller(self, nodes: Sequence[int]) -> int | None:
        """Return the node that leads the quorum, as the first node says that answers; None where none does."""
        from stratalog.adapters.network import TcpNetwork
        from stratalog.client.aio import Client
        from stratalog.client.cluster_admin import describe_quorum
        from stratalog.errors import Rejected

        for node in nodes:
            ready = self.ready(node)
            if ready is None:
                continue
            address = f"{HOST}:{ready['port']}"
            try:
                async with await Client.connect(
                    TcpNetwork(), address, timeout_s=_ASK_S, security=self.security
                ) as client:
                    return (await client.call(describe_quorum())).leader_id
            except (Unavailable, Rejected):
                continue  # paused, or without a controller
        return None

    async def end(self, nodes: Sequence[int], number: Signals) -> None:
        """End nodes by a signal, and wait until they have exited. Raises Unavailable naming a node that does not
        exit.
        """
        from asyncio import get_running_loop, sleep

        for node in nodes:
            self.send(node, number)
            self.send(node, Signals.SIGCONT)  # ends a paused process, too
        clock = get_running_loop().time
        deadline = clock() + _STOP_S
        for node in nodes:
            while self.is_running(node):
                if clock() > deadline:
                    raise Unavailable(
                        f"node {node} still runs after {_STOP_S:g} s: strata cluster kill {node} "
                        f"--directory {self.path}"
                    )
                await sleep(_STEP_S)


def _config(properties: Path, profile: str) -> "BrokerConfig":
    """Return the settings of a node as its process will read them; the process prints the warnings."""
    import os

    from stratalog.cli.node.serving import read_properties
    from stratalog.config import BrokerConfig

    return BrokerConfig.load(read_properties(properties), (), os.environ, profile=profile)[0]


def _ports(config: "BrokerConfig") -> list[int]:
    from stratalog.config.listeners import parse_listener

    return [parse_listener(text).port for text in config.list("listeners")]


def _line(name: str, value: str) -> str:
    """Return a line of a properties file in the usual form."""
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return f"{name}={escaped}\n"
