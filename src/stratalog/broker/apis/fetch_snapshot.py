"""FetchSnapshot (key 59), versions 0-1.

v1 directory id of the replica, node endpoints (KIP-853). On a controller's listener only.
"""

from typing import NamedTuple

from stratalog.broker.coordination.metadata_quorum import MetadataQuorum
from stratalog.broker.coordination.quorum_requests import answered
from stratalog.broker.network.dispatch import Call
from stratalog.wire.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse


class Needs(NamedTuple):
    """The parts of the node that the handler works with."""

    quorum: MetadataQuorum


async def handle(call: Call[FetchSnapshotRequest, Needs]) -> FetchSnapshotResponse:
    """Answer with a part of a snapshot of the metadata log."""
    answer: FetchSnapshotResponse = await answered(call, call.needs.quorum)
    return answer
