"""ElectLeaders (key 43), versions 0-2.

v0 preferred leaders only. v1 unclean ones too, an error for all (KIP-460). v2 flexible.

Codes are Kafka's (`ReplicationControlManager.electLeaders`): a request for all partitions leaves out partitions that
are led already, but not their topics. The controller sees only partitions that need an election.
"""

from collections.abc import AsyncIterator, Iterable
from typing import Final, NamedTuple

from stratalog.broker.coordination.cluster_view import ClusterView
from stratalog.broker.coordination.local_controller import LocalController
from stratalog.broker.network.authorizer import Operation
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.image import Image, Partition
from stratalog.quorum.leaders import ElectionType, is_led
from stratalog.wire.ids import TopicPartition
from stratalog.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

_NOT_AVAILABLE: Final[dict[int, ErrorCode]] = {
    ElectionType.PREFERRED: ErrorCode.preferred_leader_not_available,
    ElectionType.UNCLEAN: ErrorCode.eligible_leaders_not_available,
}
_AT_ONCE: Final = 1000
"""Elections of one decision."""


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    cluster: ClusterView
    local_controller: LocalController


async def handle(call: Call[ElectLeadersRequest, Needs]) -> ElectLeadersResponse:
    """Elect leaders for the requested partitions that need an election."""
    body = call.body
    kind = body.election_type
    if not call.allows_cluster(Operation.ALTER):
        return await _refused(call, ErrorCode.cluster_authorization_failed)
    if kind not in _NOT_AVAILABLE:
        return ElectLeadersResponse(
            error_code=ErrorCode.invalid_request, replica_election_results=[]
        )
    found = [
        (
            topic,
            [
                (index, _refusal(call, topic, index, kind))
                async for index in call.pace.each(indexes)
            ],
        )
        async for topic, indexes in _requested(call)
    ]
    needed = list(
        dict.fromkeys(  # each partition once: two elections of one decision would not see each other
            TopicPartition(topic, index)
            for topic, codes in found
            for index, code in codes
            if code is None
        )
    )
    elected: dict[TopicPartition, ErrorCode] = {}
    try:
        # Asked at least once: that nothing needs an election, too, is the controller's answer.
        for first in range(0, max(1, len(needed)), _AT_ONCE):
            some = await call.needs.local_controller.elect_leaders(
                kind, needed[first : first + _AT_ONCE]
            )
            elected |= {one.partition: one.error for one in some}
    except Rejected as error:
        return await _refused(call, error.code)
    results = []
    async for topic, codes in call.pace.each(found):
        rows = []
        for index, refusal in codes:
            code = elected[TopicPartition(topic, index)] if refusal is None else refusal
            if body.topic_partitions is not None or code != ErrorCode.election_not_needed:
                row = PartitionResult(partition_id=index, error_code=code, error_message=None)
                rows.append(row)
        results.append(ReplicaElectionResult(topic=topic, partition_result=rows))
    return ElectLeadersResponse(error_code=ErrorCode.none, replica_election_results=results)


async def _refused(call: Call[ElectLeadersRequest, Needs], code: ErrorCode) -> ElectLeadersResponse:
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


async def _requested(
    call: Call[ElectLeadersRequest, Needs],
) -> AsyncIterator[tuple[str, Iterable[int]]]:
    requested = call.body.topic_partitions
    if requested is not None:
        async for one in call.pace.each(requested):
            yield one.topic, one.partitions
        return
    async for topic in call.pace.each(call.needs.cluster.image.topics_by_id.values()):
        yield topic.name, topic.partitions


def _refusal(
    call: Call[ElectLeadersRequest, Needs], name: str, index: int, kind: int
) -> ErrorCode | None:
    """Return the code of a partition that needs no election; None for one that does."""
    topic = call.needs.cluster.topic(name)
    if topic is None or index not in topic.partitions:
        return ErrorCode.unknown_topic_or_partition
    partition = topic.partitions[index]
    if not is_led(partition, kind):
        return None
    serves = _serves(call.needs.cluster.image, partition)
    return ErrorCode.election_not_needed if serves else _NOT_AVAILABLE[kind]


def _serves(image: Image, partition: Partition) -> bool:
    """Return whether the leader is alive, with its log directory: a leader whose directory failed leads nothing."""
    broker = image.brokers.get(partition.leader)
    directory = partition.directory_of(partition.leader)
    return (
        broker is not None
        and not broker.fenced
        and (directory is None or directory in broker.directories)
    )
