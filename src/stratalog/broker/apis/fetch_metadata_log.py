"""Fetch (key 1), versions 4-18.

On a controller's listener: records of the metadata log.

v12 flexible, last fetched epoch. v13 topic ids. v15 replica state. v16 node endpoints. v17 replica directory id
(KIP-853). v18 a follower's high watermark (KIP-1166).
"""

from typing import NamedTuple

from stratalog.broker.coordination.metadata_quorum import MetadataQuorum
from stratalog.broker.coordination.quorum_requests import answered
from stratalog.broker.network.dispatch import Call
from stratalog.wire.messages.fetch import FetchRequest, FetchResponse


class Needs(NamedTuple):
    """The parts of the node that the handler works with."""

    quorum: MetadataQuorum


async def handle(call: Call[FetchRequest, Needs]) -> FetchResponse:
    """Answer with records of the metadata log, or with what the replica must do first."""
    answer: FetchResponse = await answered(call, call.needs.quorum)
    return answer
