"""Nodes behind toxiproxy: whatever a node, broker or client sends to another node goes through that node's proxy.

In: a directory, a number of nodes, settings. Out: a cluster, and toxics for what is sent to one node. It needs no
rights. Skips where toxiproxy is not available.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.cluster_processes import ClusterProcesses
from tests.compat.toxiproxy import Proxy, toxiproxies

from stratalog.config.local_cluster import HOST, NodePorts


class Proxied(ClusterProcesses):
    """`with Proxied(place) as nodes: … with nodes.toxic(1, "latency", latency=100): …`. `ports` are the proxies'."""

    def __init__(
        self, place: Path, count: int = 3, settings: Mapping[str, str] | None = None
    ) -> None:
        self._real: dict[int, NodePorts] = {}
        self._proxies: dict[str, Proxy] = {}
        self._stack = ExitStack()
        super().__init__(place, count, settings)

    def choose_ports(self) -> dict[int, NodePorts]:
        both = super().choose_ports(), super().choose_ports()
        self._real = both[1]
        return both[0]

    def addresses(self, node: int) -> dict[str, str]:
        public, real = self.ports[node], self._real[node]
        return {
            **super().addresses(node),
            "listeners": f"PLAINTEXT://{HOST}:{real.clients},CONTROLLER://{HOST}:{real.controllers}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{public.clients},"
            f"CONTROLLER://{HOST}:{public.controllers}",
        }

    def start(self, nodes: Iterable[int] | None = None) -> None:
        if not self._proxies:
            ports = {}
            for node in self.ids:
                public, real = self.ports[node], self._real[node]
                ports[f"{node}-clients"] = (public.clients, real.clients)
                ports[f"{node}-controllers"] = (public.controllers, real.controllers)
            self._proxies = self._stack.enter_context(toxiproxies(ports, self.place))
        super().start(nodes)

    @contextmanager
    def toxic(self, node: int, kind: str, **attributes: int) -> Iterator[None]:
        """Apply a toxic to both ways of every connection that was made to a node, during the block."""
        with ExitStack() as stack:
            for of in ("clients", "controllers"):
                for stream in ("upstream", "downstream"):
                    proxy = self._proxies[f"{node}-{of}"]
                    stack.enter_context(proxy.toxic(kind, stream, **attributes))
            yield

    def close(self) -> None:
        super().close()
        self._stack.close()
