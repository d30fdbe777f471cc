"""The job's own cluster: several nodes as processes, of which one dies in the middle of the load.

In: a directory for their data, the bucket's URL, a number of nodes. Out: their addresses; the end of one of them, then
of all. None of them outlives the `with` block.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL

from broker import SETTINGS
from secured import Secured

from stratalog.adapters.network import TcpNetwork
from stratalog.cli.node.cluster_directory import ClusterDirectory
from stratalog.client.aio import Client
from stratalog.errors import UserError

NODES_MIN = 3
NODES_MAX = 9
# A dead leader's partitions have another one after two seconds, because people are waiting.
CLUSTER_SETTINGS = {
    **{name: value for name, value in SETTINGS.items() if name != "listeners"},
    "broker.heartbeat.interval.ms": "300",
    "broker.session.timeout.ms": "2000",
}


def check_count(count: int) -> None:
    """Raise UserError unless the other nodes go on when one of so many dies."""
    if count != 1 and not NODES_MIN <= count <= NODES_MAX:
        raise UserError(
            f"--brokers: {count} is not accepted; accepted: 1, or {NODES_MIN} to {NODES_MAX}, of which one is killed"
        )


@dataclass(slots=True)
class RunningCluster:
    """A cluster that serves at `address` (host:port,… of all its nodes), bucket at `tier_url`."""

    directory: ClusterDirectory
    address: str
    tier_url: str
    secured: Secured
    killed: int | None = None
    """The node that `kill_leader` ended."""

    async def leader_data(self, topic: str) -> Path:
        return self._data(await self._leader(topic))

    async def kill_leader(self, topic: str) -> None:
        """End the leader of the topic's first partition at once, as `kill -9` does."""
        self.killed = await self._leader(topic)
        await self.directory.end([self.killed], SIGKILL)

    def stop(self) -> None:
        """Stop the nodes. Raises UserError for one that did not close its logs cleanly."""
        asyncio.run(self.directory.stop())
        for node in self.directory.processes:
            clean = self._data(node) / ".kafka_cleanshutdown"
            if node != self.killed and not clean.exists():
                raise UserError(f"node {node} did not stop cleanly ({self.directory.log(node)})")

    def _data(self, node: int) -> Path:
        return self.directory.folder(node) / "data"

    async def _leader(self, topic: str) -> int:
        security = self.secured.security
        async with await Client.connect(TcpNetwork(), self.address, security=security) as client:
            return (await client.metadata([topic])).topics[topic].partitions[0].leader


@contextmanager
def running_cluster(
    directory: Path, tier_url: str, nodes: int, secured: Secured
) -> Iterator[RunningCluster]:
    """Start a cluster, and end it with the block in any case. Raises UserError, Unavailable where it does not start."""
    with ClusterDirectory.locked(directory) as cluster:
        cluster.security = secured.security
        cluster.create(nodes, {**CLUSTER_SETTINGS, **secured.nodes, "tier.url": tier_url})
        try:
            asyncio.run(cluster.start(list(cluster.processes)))
            ports = (ready["port"] for node in cluster.processes if (ready := cluster.ready(node)))
            address = ",".join(f"127.0.0.1:{port}" for port in ports)
            yield RunningCluster(cluster, address, tier_url, secured)
        finally:
            for node in cluster.processes:
                cluster.send(node, SIGKILL)
