"""The settings by which nodes on one machine form one cluster.

In: the nodes' ids and ports. Out: settings by Kafka's names, as text. It never looks for a port.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

HOST: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class NodePorts:
    """A node's ports: one for clients and brokers, one for controllers."""

    clients: int
    controllers: int


def node_settings(node_id: int, ports: Mapping[int, NodePorts], log_dir: str) -> dict[str, str]:
    """Return the settings of one node; each node of `ports` is broker, controller and voter of the quorum."""
    own = ports[node_id]
    voters = (f"{other}@{HOST}:{of.controllers}" for other, of in sorted(ports.items()))
    return {
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "controller.quorum.voters": ",".join(voters),
        "listeners": f"PLAINTEXT://{HOST}:{own.clients},CONTROLLER://{HOST}:{own.controllers}",
        "controller.quorum.election.timeout.ms": "250",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": log_dir,
    }
