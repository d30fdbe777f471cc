"""UpdateRaftVoter (key 82), versions 0-0.

On a controller's listener only: a voter names its endpoints and versions to the leader. Kafka: KIP-853.
"""

from typing import NamedTuple

from stratalog.broker.coordination.metadata_quorum import MetadataQuorum
from stratalog.broker.coordination.voter_requests import changed
from stratalog.broker.network.authorizer import Operation
from stratalog.broker.network.dispatch import Call
from stratalog.wire.messages.update_raft_voter import (
    CurrentLeader,
    UpdateRaftVoterRequest,
    UpdateRaftVoterResponse,
)


class Needs(NamedTuple):
    """The parts of the node that the handler works with."""

    quorum: MetadataQuorum


async def handle(call: Call[UpdateRaftVoterRequest, Needs]) -> UpdateRaftVoterResponse:
    """Note a voter's endpoints and versions."""
    quorum = call.needs.quorum
    done = await changed(call, quorum, Operation.CLUSTER_ACTION)
    address = quorum.leader_address()
    leader = CurrentLeader(
        leader_id=done.leader_id,
        leader_epoch=done.leader_epoch,
        host=address.host if address else "",
        port=address.port if address else 0,
    )
    return UpdateRaftVoterResponse(error_code=done.error, current_leader=leader)
