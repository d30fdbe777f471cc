"""BeginQuorumEpoch (key 53), versions 0-1.

v1 flexible, directory ids and node endpoints (KIP-853). On a controller's listener only.
"""

from typing import NamedTuple

from stratalog.broker.coordination.metadata_quorum import MetadataQuorum
from stratalog.broker.coordination.quorum_requests import answered
from stratalog.broker.network.dispatch import Call
from stratalog.wire.messages.begin_quorum_epoch import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
)


class Needs(NamedTuple):
    """The parts of the node that the handler works with."""

    quorum: MetadataQuorum


async def handle(call: Call[BeginQuorumEpochRequest, Needs]) -> BeginQuorumEpochResponse:
    """Take note of the leader of an epoch."""
    answer: BeginQuorumEpochResponse = await answered(call, call.needs.quorum)
    return answer
