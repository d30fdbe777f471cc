"""Take requests to change the voters of the quorum: check them, and pass them to this node's member.

In: a call of AddRaftVoter, RemoveRaftVoter or UpdateRaftVoter. Out: the member's response. The member decides; this
module refuses only what the member does not see: rights, the cluster, the listeners, whether a new voter is there.

Kafka: KafkaRaftClient.handleAddVoterRequest, handleRemoveVoterRequest, handleUpdateVoterRequest.
"""

from collections.abc import Sequence
from typing import Any, Final

from stratalog.broker.coordination.local_controller import LocalController
from stratalog.broker.coordination.metadata_quorum import MetadataQuorum
from stratalog.broker.network.authorizer import Operation
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode, Rejected, Unavailable
from stratalog.metadata.image import Endpoint
from stratalog.quorum.messages import (
    AddVoterRequest,
    RemoveVoterRequest,
    UpdateVoterRequest,
    VoterChangeRequest,
    VoterChangeResponse,
)
from stratalog.quorum.voters import ReplicaKey, Voter
from stratalog.wire.ids import ZERO_ID
from stratalog.wire.messages.add_raft_voter import AddRaftVoterRequest
from stratalog.wire.messages.remove_raft_voter import RemoveRaftVoterRequest
from stratalog.wire.messages.update_raft_voter import UpdateRaftVoterRequest

__all__ = ["changed"]

_REMOVAL_MS: Final = 30_000
"""RemoveRaftVoter has no time of its own. Kafka: the default of `request.timeout.ms`."""


async def changed(
    call: Call[Any, Any],
    quorum: MetadataQuorum,
    operation: Operation,
    controller: LocalController | None = None,
) -> VoterChangeResponse:
    """Return the response to a call that changes the voters; a change waits for its commit.

    `controller`: of a request that brokers forward, and which they refuse where no controller is active.
    """
    try:
        if not call.allows_cluster(operation):
            raise Rejected(
                ErrorCode.cluster_authorization_failed, f"{operation.name} is not allowed"
            )
        _check_here(quorum, controller)
        request = await _request(call.body, quorum)
    except Rejected as refusal:
        return VoterChangeResponse(
            error=refusal.code,
            message=refusal.message,
            leader_id=quorum.leader_id,
            leader_epoch=quorum.leader_epoch,
        )
    return await quorum.change(request)


def _check_here(quorum: MetadataQuorum, controller: LocalController | None) -> None:
    """Raise Rejected: NOT_LEADER_OR_FOLLOWER, or REQUEST_TIMED_OUT on a broker that found no controller."""
    elsewhere = Rejected(ErrorCode.not_leader_or_follower, "this node does not lead the quorum")
    if controller is not None:
        try:
            controller.check_active()
        except Rejected as error:
            raise (elsewhere if error.code is ErrorCode.not_controller else error) from None
    if not quorum.is_leader:
        raise elsewhere


async def _request(body: Any, quorum: MetadataQuorum) -> VoterChangeRequest:
    """Return the change that a request asks for. Raises Rejected."""
    here = quorum.image.cluster_id
    if body.cluster_id is not None and body.cluster_id != here:
        message = f"the request is for cluster {body.cluster_id}, this is {here}"
        raise Rejected(ErrorCode.inconsistent_cluster_id, message)
    key = ReplicaKey(body.voter_id, body.voter_directory_id)
    if key.id < 0 or key.directory_id == ZERO_ID:
        raise Rejected(
            ErrorCode.invalid_request, f"voter {key.id} in directory {key.directory_id}: both count"
        )
    match body:
        case AddRaftVoterRequest():
            endpoints = _endpoints(body.listeners, quorum)
            versions = await _versions(endpoints[0], quorum)
            voter = Voter(key.id, key.directory_id, endpoints, versions)
            return AddVoterRequest(voter, body.timeout_ms, body.ack_when_committed)
        case RemoveRaftVoterRequest():
            return RemoveVoterRequest(key, _REMOVAL_MS)
        case _:
            assert isinstance(body, UpdateRaftVoterRequest)
            feature = body.kraft_version_feature
            versions = (feature.min_supported_version, feature.max_supported_version)
            endpoints = _endpoints(body.listeners, quorum)
            voter = Voter(key.id, key.directory_id, endpoints, versions)
            return UpdateVoterRequest(voter, body.current_leader_epoch)


def _endpoints(listeners: Sequence[Any], quorum: MetadataQuorum) -> tuple[Endpoint, ...]:
    """Return a voter's endpoints, first the one that other voters use. Raises Rejected where that one is missing."""
    used = {one.endpoints[0].name for one in quorum.voters.voters if one.endpoints}
    found = [Endpoint(one.name.upper(), one.host, one.port) for one in listeners]
    found.sort(key=lambda one: one.name not in used)
    if not found or (used and found[0].name not in used):
        raise Rejected(
            ErrorCode.invalid_request,
            f"listeners: none is a controller's; accepted: {', '.join(sorted(used)) or 'one at least'}",
        )
    return tuple(found)


async def _versions(endpoint: Endpoint, quorum: MetadataQuorum) -> tuple[int, int]:
    """Return the new voter's range of kraft.version. Raises Rejected where the node cannot be asked."""
    try:
        return await quorum.kraft_versions(endpoint.host, endpoint.port)
    except (Unavailable, Rejected) as error:
        raise Rejected(
            ErrorCode.request_timed_out,
            f"{endpoint.host}:{endpoint.port} does not answer: {error}",
        ) from error
