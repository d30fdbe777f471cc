"""RemoveRaftVoter (key 81), versions 0-0.

Only the leader carries it out; a broker forwards the request to it. Kafka: KIP-853.
"""

from typing import NamedTuple

from stratalog.broker.coordination.local_controller import LocalController
from stratalog.broker.coordination.metadata_quorum import MetadataQuorum
from stratalog.broker.coordination.voter_requests import changed
from stratalog.broker.network.authorizer import Operation
from stratalog.broker.network.dispatch import Call
from stratalog.wire.messages.remove_raft_voter import (
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
)


class Needs(NamedTuple):
    """The parts of the node that the handler works with."""

    quorum: MetadataQuorum
    local_controller: LocalController


async def handle(call: Call[RemoveRaftVoterRequest, Needs]) -> RemoveRaftVoterResponse:
    """Take a controller out of the voters."""
    quorum, controller = call.needs
    done = await changed(call, quorum, Operation.ALTER, controller)
    return RemoveRaftVoterResponse(error_code=done.error, error_message=done.message)
