"""The voters with which a quorum begins: name them at the format of a log directory.

In: the settings of a controller, the options of `strata storage format`. Out: the first voters, and a snapshot
`0-0.checkpoint` that names them. A node without that snapshot asks the bootstrap servers for the leader.

Kafka: KIP-853; StorageTool, Formatter, DynamicVoters.
"""

from dataclasses import dataclass
from uuid import UUID

from stratalog.broker.storage.survey import METADATA_DIRECTORY
from stratalog.config import BrokerConfig
from stratalog.config.kinds import BadValue
from stratalog.config.listeners import items_of, parse_address
from stratalog.errors import UserError
from stratalog.metadata.image import Endpoint
from stratalog.metadata.snapshot import SnapshotId, encode_checkpoint
from stratalog.ports import Disk, Entropy
from stratalog.quorum.voters import Voter, VoterSet, voters_control, voters_record
from stratalog.wire.ids import ZERO_ID, topic_id_parse

__all__ = ["Begin", "first_voters", "write_first_voters"]


@dataclass(frozen=True, slots=True)
class Begin:
    """The options of `strata storage format`; at most one of them."""

    standalone: bool = False
    controllers: str | None = None
    """`id@host:port:directory`, several separated by commas."""
    no_controllers: bool = False


def first_voters(config: BrokerConfig, begin: Begin, entropy: Entropy) -> VoterSet | None:
    """Return the first voters; None where another node's log names them, or `controller.quorum.voters` does.

    Raises UserError where the options contradict the settings or one another.
    """
    names = {
        "--standalone": begin.standalone,
        "--initial-controllers": begin.controllers is not None,
        "--no-initial-controllers": begin.no_controllers,
    }
    given = [name for name, is_given in names.items() if is_given]
    if len(given) > 1:
        raise UserError(f"{given[0]}: it is given beside {given[1]}; accepted: one of them")
    if given and config.quorum_voters:
        raise UserError(
            f"{given[0]}: controller.quorum.voters names voters that never change; accepted: one of the two"
        )
    if not given and config.quorum_servers and not config.quorum_voters and config.is_controller:
        raise UserError(
            "controller.quorum.bootstrap.servers: the metadata log names the voters then; "
            f"accepted: one of {', '.join(names)}"
        )
    if begin.no_controllers or not given:
        return None
    if not config.is_controller:
        raise UserError(f"{given[0]}: process.roles is broker; accepted: a controller")
    if begin.controllers is not None:
        return _named(begin.controllers, config)
    listener = config.controller_listeners[:1]
    if not listener or not listener[0].host or not listener[0].port:
        raise UserError(
            "--standalone: other nodes need a controller's listener; accepted: one of listeners, with host and port, "
            "whose name is in controller.listener.names"
        )
    endpoint = Endpoint(listener[0].name, listener[0].host, listener[0].port)
    return VoterSet((Voter(config.int("node.id"), entropy.uuid(), (endpoint,)),))


def write_first_voters(disk: Disk, voters: VoterSet, wall_ms: int) -> None:
    """Write the snapshot that names the first voters into an empty log directory."""
    control = voters_control(voters_record(voters))
    data = encode_checkpoint([], wall_ms, last_contained_timestamp_ms=0, epoch=0, control=control)
    disk.make_directory(METADATA_DIRECTORY)
    disk.write_file(f"{METADATA_DIRECTORY}/{SnapshotId(0, 0).file_name()}", data)


def _named(text: str, config: BrokerConfig) -> VoterSet:
    name = next(iter(config.controller_listeners)).name
    try:
        found = [_voter(item, name) for item in items_of(text)]
        directories: set[UUID] = {one.directory_id for one in found}
        if not found or len({one.id for one in found}) < len(found) or ZERO_ID in directories:
            raise BadValue
    except (BadValue, ValueError):
        raise UserError(
            f"--initial-controllers: {text!r} is not accepted; accepted: id@host:port:directory, several separated by "
            "commas, each id once; a directory id has 22 characters"
        ) from None
    voters = VoterSet.of(found)
    if voters.voter(config.int("node.id")) is None:
        raise UserError(
            f"--initial-controllers: node.id {config.int('node.id')} is not in {text}; accepted: this node too, "
            "or --no-initial-controllers"
        )
    return voters


def _voter(item: str, name: str) -> Voter:
    node_id, _, rest = item.partition("@")
    address, _, directory = rest.rpartition(":")
    host, port = parse_address(address)
    if not host or not port:
        raise BadValue
    return Voter(int(node_id), topic_id_parse(directory), (Endpoint(name, host, port),))
