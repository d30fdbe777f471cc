"""Several real brokers in this process that form one cluster: each is broker, controller and voter.

In: a number of nodes, settings by Kafka's names. Out: addresses that any client can use, and ways to end and restart
each node. It simulates nothing: the nodes speak over sockets of 127.0.0.1.
"""

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from stratalog.adapters.free_ports import free_ports
from stratalog.adapters.scratch import ScratchDirectory
from stratalog.adapters.system import SystemEntropy
from stratalog.broker.storage.claim import new_cluster_id
from stratalog.config.local_cluster import HOST, NodePorts, node_settings
from stratalog.errors import UserError
from stratalog.testing.broker import TemporaryBroker
from stratalog.testing.listener_security import ListenerSecurity

if TYPE_CHECKING:
    from stratalog.testing.certificates import Authority

_NODES: Final = 3
_QUICK: Final = {"broker.heartbeat.interval.ms": 300, "broker.session.timeout.ms": 2000}
"""A killed node's partitions have other leaders after two seconds, not after nine."""


class TemporaryCluster:
    """`with cluster(3) as three: … three.address … three.kill(1)`. Node ids are 1, 2, 3 …

    `brokers` has each node as a `TemporaryBroker`, by node id.
    """

    def __init__(
        self,
        nodes: int = _NODES,
        settings: Mapping[str, str | float] | None = None,
        *,
        tls: bool = False,
        users: Mapping[str, str] | None = None,
    ) -> None:
        """Raises UserError for a number of nodes below 1, a value that is neither text, number nor flag, and a user
        that cannot log in.

        With `tls`, clients connect with TLS, and `authority` signs their certificates. With `users`, they log in by
        name and password. The nodes reach one another without either.
        """
        if nodes < 1:
            raise UserError(f"nodes: {nodes} is not accepted; accepted: 1 and more")
        self._scratch: ScratchDirectory | None = None
        self._nodes = nodes
        self._settings: dict[str, str | float] = {**_QUICK, **(settings or {})}
        self._security = ListenerSecurity(tls=tls, users=users or {})
        self.brokers: dict[int, TemporaryBroker] = {}

    @property
    def address(self) -> str:
        """`host:port,…` of all nodes, also of those that do not run."""
        return ",".join(broker.address for broker in self.brokers.values())

    @property
    def authority(self) -> "Authority":
        """The authority of the nodes' certificates: `authority.issue("alice")` gives a client its own."""
        return self._security.authority

    def start(self) -> Self:
        """Start all nodes, empty. Raises UserError for settings that are wrong."""
        self._scratch = ScratchDirectory("strata-cluster-")
        free = iter(free_ports(3 * self._nodes))
        ports = {node: NodePorts(next(free), next(free)) for node in range(1, self._nodes + 1)}
        cluster_id = new_cluster_id(SystemEntropy())
        for node in ports:
            directory = self._scratch.path / f"node-{node}"
            settings = node_settings(node, ports, str(directory))
            if self._security.is_any:
                settings = _with_secured(settings, self._security.protocol, next(free))
            self.brokers[node] = TemporaryBroker(
                {**settings, **self._settings},
                directory=directory,
                cluster_id=cluster_id,
                security=self._security,
            )
        try:
            for broker in self.brokers.values():
                broker.begin()
            for broker in self.brokers.values():
                broker.finish()
            for broker in self.brokers.values():
                broker.wait_for_brokers(self.brokers.keys())
        except BaseException:  # an interrupt too: no `__exit__` follows, and no broker may stay
            self.close()
            raise
        return self

    def kill(self, node: int) -> None:
        """End a node as `kill -9` does."""
        self.brokers[node].kill()

    def stop(self, node: int) -> None:
        """Stop a node as SIGTERM does."""
        self.brokers[node].stop()

    def restart(self, node: int) -> None:
        """Stop a node unless it has ended already, and start it again with all its data, at its address."""
        self.brokers[node].restart()
        self.brokers[node].wait_for_brokers({node})

    def close(self) -> None:
        """End all nodes at once, and remove their data."""
        for broker in self.brokers.values():
            broker.kill()
        self._security.remove()
        if self._scratch is not None:
            self._scratch.remove()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def cluster(
    nodes: int = _NODES,
    settings: Mapping[str, str | float] | None = None,
    *,
    tls: bool = False,
    users: Mapping[str, str] | None = None,
) -> TemporaryCluster:
    """Return a cluster for a `with` statement; `settings` apply to every node."""
    return TemporaryCluster(nodes, settings, tls=tls, users=users)


def _with_secured(settings: Mapping[str, str], protocol: str, port: int) -> dict[str, str]:
    """Return a node's settings with a listener for clients before its own."""
    mapped = f"{protocol}:{protocol},{settings['listener.security.protocol.map']}"
    listeners = f"{protocol}://{HOST}:{port},{settings['listeners']}"
    return {**settings, "listeners": listeners, "listener.security.protocol.map": mapped}
