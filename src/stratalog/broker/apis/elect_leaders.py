"""ElectLeaders (key 43), versions 0-2.

v0 preferred leaders only. v1 unclean ones too, an error for all (KIP-460). v2 flexible. One node elects no leader: a
partition is led already, or its only replica is offline.

Codes are Kafka's (`ReplicationControlManager.electLeaders`): asked for all, those led already are left out,
but not their topics.
"""

from collections.abc import AsyncIterator, Iterable
from typing import Final, NamedTuple

from stratalog.broker.coordination.cluster_view import ClusterView
from stratalog.broker.network.authorizer import Operation
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode
from stratalog.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

_PREFERRED: Final = 0
_UNCLEAN: Final = 1
_NOT_AVAILABLE: Final = {
    _PREFERRED: ErrorCode.preferred_leader_not_available,
    _UNCLEAN: ErrorCode.eligible_leaders_not_available,
}


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    cluster: ClusterView


async def handle(call: Call[ElectLeadersRequest, Needs]) -> ElectLeadersResponse:
    """What keeps each partition's leader from changing."""
    body = call.body
    kind = body.election_type
    if not call.allows_cluster(Operation.ALTER):
        return await _denied(call)
    if kind not in _NOT_AVAILABLE:
        return ElectLeadersResponse(
            error_code=ErrorCode.invalid_request, replica_election_results=[]
        )
    results = []
    async for topic, indexes in _asked(call):
        rows = []
        async for index in call.pace.each(indexes):
            code = _outcome(call, topic, index, _NOT_AVAILABLE[kind])
            if body.topic_partitions is not None or code != ErrorCode.election_not_needed:
                row = PartitionResult(partition_id=index, error_code=code, error_message=None)
                rows.append(row)
        results.append(ReplicaElectionResult(topic=topic, partition_result=rows))
    return ElectLeadersResponse(error_code=ErrorCode.none, replica_election_results=results)


async def _denied(call: Call[ElectLeadersRequest, Needs]) -> ElectLeadersResponse:
    code = ErrorCode.cluster_authorization_failed
    return ElectLeadersResponse(
        error_code=code,
        replica_election_results=[
            ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    PartitionResult(partition_id=index, error_code=code, error_message=None)
                    async for index in call.pace.each(topic.partitions)
                ],
            )
            async for topic in call.pace.each(call.body.topic_partitions or ())
        ],
    )


async def _asked(
    call: Call[ElectLeadersRequest, Needs],
) -> AsyncIterator[tuple[str, Iterable[int]]]:
    asked = call.body.topic_partitions
    if asked is not None:
        async for one in call.pace.each(asked):
            yield one.topic, one.partitions
        return
    async for topic in call.pace.each(call.needs.cluster.image.topics_by_id.values()):
        yield topic.name, topic.partitions


def _outcome(
    call: Call[ElectLeadersRequest, Needs], name: str, index: int, not_available: ErrorCode
) -> ErrorCode:
    topic = call.needs.cluster.topic(name)
    if topic is None or index not in topic.partitions:
        return ErrorCode.unknown_topic_or_partition
    standing = call.needs.cluster.standing(topic.id, index, topic.partitions[index])
    return not_available if standing.error else ErrorCode.election_not_needed
