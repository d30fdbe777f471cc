"""Settings of the metadata quorum and of the listeners between nodes.

In: nothing. Out: settings, and the rules for them together. It reads no file.

Names, types, limits and rules are those of Apache Kafka 4.3's `QuorumConfig`, `ReplicationConfigs` and `KafkaConfig`.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from stratalog.config.kinds import BadValue, Between, Kind, OneOf, Setting, Shaped
from stratalog.config.listeners import SECURITY_PROTOCOLS, parse_address
from stratalog.errors import UserError

__all__ = ["QUORUM", "Address", "check_quorum", "parse_voters"]

_ANY_HOST: Final = "0.0.0.0"  # noqa: S104 - refused, not bound


class Address(NamedTuple):
    """Where a node listens."""

    host: str
    port: int


def parse_voters(texts: Sequence[str]) -> dict[int, Address]:
    """Return host and port by node id of `id@host:port` items; raises BadValue."""
    voters: dict[int, Address] = {}
    for text in texts:
        node_id, at, address = text.partition("@")
        host, port = parse_address(address)
        if not (at and node_id.isdecimal() and host and port) or int(node_id) in voters:
            raise BadValue
        if host == _ANY_HOST:
            raise BadValue  # other nodes cannot reach it
        voters[int(node_id)] = Address(host, port)
    return voters


def parse_servers(texts: Sequence[str]) -> list[Address]:
    """Return the addresses of `host:port` items; raises BadValue."""
    servers = [Address(*parse_address(text)) for text in texts]
    if any(not one.host or not one.port or one.host == _ANY_HOST for one in servers):
        raise BadValue
    return servers


def _check_servers(texts: Sequence[str]) -> None:
    parse_servers(texts)


def _check_voters(texts: Sequence[str]) -> None:
    parse_voters(texts)


QUORUM = (
    Setting(
        "controller.quorum.voters",
        Kind.LIST,
        (),
        "The controllers that vote, and where each listens; the set never changes. Without it, and without "
        "`controller.quorum.bootstrap.servers`, this node is a quorum of its own.",
        Shaped(
            _check_voters,
            "id@host:port, several separated by commas, each id once, no host 0.0.0.0",
        ),
    ),
    Setting(
        "controller.quorum.bootstrap.servers",
        Kind.LIST,
        (),
        "Controllers of which a node asks one for the leader, where the metadata log names the voters (KIP-853). "
        "Without it `controller.quorum.voters` names them.",
        Shaped(_check_servers, "host:port, several separated by commas, no host 0.0.0.0"),
    ),
    Setting(
        "controller.quorum.auto.join.enable",
        Kind.BOOLEAN,
        False,
        "Whether a controller that is no voter asks the leader to make it one, where the metadata log names the "
        "voters. A directory that it had before leaves the voters first.",
    ),
    Setting(
        "controller.quorum.election.timeout.ms",
        Kind.INT,
        1000,
        "How long a controller waits for a leader before it asks the others for their votes; with jitter up to twice "
        "as long.",
        Between(0),
    ),
    Setting(
        "controller.quorum.election.backoff.max.ms",
        Kind.INT,
        1000,
        "The longest wait after an election that had no winner.",
        Between(0),
    ),
    Setting(
        "controller.quorum.fetch.timeout.ms",
        Kind.INT,
        2000,
        "How long a node goes without an answer of the leader before it looks for another one. A leader without "
        "fetches of a majority resigns after 1.5 times as long.",
        Between(0),
    ),
    Setting(
        "controller.quorum.request.timeout.ms",
        Kind.INT,
        2000,
        "How long a request between controllers waits for its answer.",
        Between(0),
    ),
    Setting(
        "controller.quorum.retry.backoff.ms",
        Kind.INT,
        20,
        "The wait before a request between controllers is sent again.",
        Between(0),
    ),
    Setting(
        "auto.leader.rebalance.enable",
        Kind.BOOLEAN,
        True,
        "Whether the active controller gives leaderships back to preferred leaders, the first replicas.",
    ),
    Setting(
        "leader.imbalance.check.interval.seconds",
        Kind.LONG,
        300,
        "How often the active controller looks for partitions that another replica than the first leads.",
        Between(1),
    ),
    Setting(
        "security.inter.broker.protocol",
        Kind.STRING,
        "PLAINTEXT",
        "The security protocol between brokers, where `inter.broker.listener.name` is not set.",
        OneOf(SECURITY_PROTOCOLS),
    ),
)


def check_quorum(
    roles: Collection[str],
    node_id: int,
    voters: Mapping[int, Address],
    servers: Sequence[Address],
    controller_names: Sequence[str],
    listeners: Collection[str],
) -> None:
    """Raise UserError where roles, voters and controller listeners contradict one another.

    `controller_names` are those of `controller.listener.names`, `listeners` the names of all listeners.
    """
    if "controller" not in roles:
        if not voters and not servers:
            raise UserError(
                "controller.quorum.voters: '' is not accepted where process.roles is broker; "
                "accepted: the controllers, as id@host:port, or controller.quorum.bootstrap.servers"
            )
        if node_id in voters:
            raise UserError(
                f"controller.quorum.voters: it contains node.id {node_id}, whose process.roles is broker; "
                "accepted: controllers only"
            )
        if not controller_names:
            raise UserError(
                "controller.listener.names: '' is not accepted where process.roles is broker; "
                "accepted: the name of the controllers' listener"
            )
        here = [name for name in controller_names if name in listeners]
        if here:
            raise UserError(
                f"listeners: {here[0]} is a controller's, and process.roles is broker; "
                "accepted: listeners that are not in controller.listener.names"
            )
        return
    if not voters and not servers:
        return
    if voters and node_id not in voters:
        raise UserError(
            f"controller.quorum.voters: it lacks node.id {node_id}, whose process.roles has controller; "
            "accepted: voters with this node"
        )
    if set(voters) == {node_id}:
        return  # it speaks to no other controller
    if not controller_names:
        raise UserError(
            "controller.listener.names: '' is not accepted where process.roles has controller and others vote; "
            "accepted: the name of one of listeners"
        )
    if not any(name in listeners for name in controller_names):
        raise UserError(
            f"controller.listener.names: {', '.join(controller_names)} is none of listeners; "
            "accepted: the name of one of them"
        )
