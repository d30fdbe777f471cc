"""EndQuorumEpoch (key 54), versions 0-1.

v1 flexible, directory ids and node endpoints (KIP-853). On a controller's listener only.
"""

from typing import NamedTuple

from stratalog.broker.coordination.metadata_quorum import MetadataQuorum
from stratalog.broker.coordination.quorum_requests import answered
from stratalog.broker.network.dispatch import Call
from stratalog.wire.messages.end_quorum_epoch import EndQuorumEpochRequest, EndQuorumEpochResponse


class Needs(NamedTuple):
    """The parts of the node that the handler works with."""

    quorum: MetadataQuorum


async def handle(call: Call[EndQuorumEpochRequest, Needs]) -> EndQuorumEpochResponse:
    """Take note that the leader of an epoch resigned."""
    answer: EndQuorumEpochResponse = await answered(call, call.needs.quorum)
    return answer
