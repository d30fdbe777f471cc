"""Vote (key 52), versions 0-2.

v1 directory ids and node endpoints (KIP-853). v2 pre-votes (KIP-996). On a controller's listener only.
"""

from typing import NamedTuple

from stratalog.broker.coordination.metadata_quorum import MetadataQuorum
from stratalog.broker.coordination.quorum_requests import answered
from stratalog.broker.network.dispatch import Call
from stratalog.wire.messages.vote import VoteRequest, VoteResponse


class Needs(NamedTuple):
    """The parts of the node that the handler works with."""

    quorum: MetadataQuorum


async def handle(call: Call[VoteRequest, Needs]) -> VoteResponse:
    """Answer a request of a vote, or of a pre-vote."""
    answer: VoteResponse = await answered(call, call.needs.quorum)
    return answer
