"""Answer other nodes' requests to this node's member of the quorum.

In: a call on a controller's listener. Out: its answer. It decides nothing: the quorum does.
"""

from typing import Any

from stratalog.broker.coordination.metadata_quorum import MetadataQuorum
from stratalog.broker.coordination.quorum_wire import answer_to, request_of
from stratalog.broker.network.authorizer import Operation
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode, Rejected
from stratalog.quorum import messages as raft
from stratalog.wire.messages.begin_quorum_epoch import BeginQuorumEpochRequest

__all__ = ["answered"]


async def answered(call: Call[Any, Any], quorum: MetadataQuorum) -> Any:
    """Return the answer to one of the quorum's RPCs; a fetch may wait."""
    if not call.allows_cluster(Operation.CLUSTER_ACTION):
        return answer_to(call.body, ErrorCode.cluster_authorization_failed)
    try:
        request = request_of(call.body, call.version, quorum.image.cluster_id)
    except Rejected as error:
        return answer_to(call.body, error.code)
    if isinstance(call.body, BeginQuorumEpochRequest) and isinstance(
        request, raft.BeginQuorumEpochRequest
    ):
        for endpoint in call.body.leader_endpoints[:1]:
            quorum.learn(request.leader_id, endpoint.host, endpoint.port)
    response = await quorum.request(request)
    return answer_to(call.body, response, quorum.leader_address())
