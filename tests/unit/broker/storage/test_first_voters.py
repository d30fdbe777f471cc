"""The voters with which a quorum begins: options of `strata storage format`, and the snapshot that they write."""

from uuid import UUID

import pytest
from tests.sim.disk import SimDisk

from stratalog.adapters.system import SystemEntropy
from stratalog.broker.coordination.metadata_log import replay_of
from stratalog.broker.storage.first_voters import Begin, first_voters, write_first_voters
from stratalog.config import BrokerConfig
from stratalog.errors import UserError
from stratalog.metadata.image import Endpoint
from stratalog.metadata.snapshot import SnapshotId
from stratalog.quorum.voters import Voter, voter_set

PATH = "__cluster_metadata-0/00000000000000000000-0000000000.checkpoint"
ONE, TWO = "AAAAAAAAAAAAAAAAAAAACQ", "AAAAAAAAAAAAAAAAAAAACg"
NAMED = f"1@one:9093:{ONE},2@two:9094:{TWO}"
SETTINGS = {
    "node.id": "1",
    "process.roles": "broker,controller",
    "listeners": "PLAINTEXT://one:9092,CONTROLLER://one:9093",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "controller.quorum.bootstrap.servers": "one:9093",
}
BROKER = {"process.roles": "broker", "listeners": "PLAINTEXT://one:9092"}
STATIC = {
    "controller.quorum.bootstrap.servers": "",
    "controller.quorum.voters": "1@one:9093,2@two:9093",
}


def chosen(begin, **changed):
    settings = {**SETTINGS, **{name.replace("_", "."): text for name, text in changed.items()}}
    return first_voters(BrokerConfig.load(settings)[0], begin, SystemEntropy())


def test_a_standalone_controller_is_the_only_voter():
    (voter,) = chosen(Begin(standalone=True)).voters
    assert (voter.id, voter.endpoints) == (1, (Endpoint("CONTROLLER", "one", 9093),))
    assert voter.directory_id.int


def test_initial_controllers_are_named_with_their_directories():
    voters = chosen(Begin(controllers=NAMED))
    assert voters.voters == (
        Voter(1, UUID(int=9), (Endpoint("CONTROLLER", "one", 9093),)),
        Voter(2, UUID(int=10), (Endpoint("CONTROLLER", "two", 9094),)),
    )
    disk = SimDisk()
    write_first_voters(disk, voters, 1_700_000_000_000)
    data = disk.read(PATH, 0, 1 << 20)
    found = replay_of(SnapshotId(0, 0), bytes(data))
    assert found.voters is not None
    assert voter_set(found.voters) == voters
    assert found.image().offset == -1, "the log begins at offset 0"


def test_other_nodes_name_no_voters():
    assert chosen(Begin(no_controllers=True)) is None
    assert (
        first_voters(BrokerConfig.load({**SETTINGS, **BROKER})[0], Begin(), SystemEntropy()) is None
    )
    assert (
        first_voters(BrokerConfig.load({**SETTINGS, **STATIC})[0], Begin(), SystemEntropy()) is None
    )


@pytest.mark.parametrize(
    ("begin", "changed", "reason"),
    [
        (Begin(standalone=True, no_controllers=True), {}, "beside --no-initial-controllers"),
        (Begin(standalone=True), STATIC, "controller.quorum.voters"),
        (Begin(), {}, "one of --standalone"),
        (Begin(standalone=True), BROKER, "process.roles is broker"),
        (
            Begin(standalone=True),
            {"listeners": "PLAINTEXT://one:9092,CONTROLLER://:9093"},
            "with host and port",
        ),
        (Begin(controllers="1@one:9093"), {}, "id@host:port:directory"),
        (Begin(controllers=f"1@one:9093:{ONE},1@two:9093:{TWO}"), {}, "each id once"),
        (Begin(controllers=""), {}, "id@host:port:directory"),
        (Begin(controllers=f"2@two:9094:{TWO}"), {}, "node.id 1 is not in"),
    ],
)
def test_refusals(begin, changed, reason):
    with pytest.raises(UserError, match=reason):
        first_voters(BrokerConfig.load({**SETTINGS, **changed})[0], begin, SystemEntropy())
