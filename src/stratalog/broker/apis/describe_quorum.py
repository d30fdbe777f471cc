"""DescribeQuorum (key 55), versions 0-2.

v1 when replicas last fetched and were caught up (KIP-836). v2 directory ids, addresses, error messages (KIP-853).
Only the leader answers; a broker forwards the request to it. Kafka: KafkaRaftClient.handleDescribeQuorumRequest.
"""

from collections.abc import Sequence
from typing import NamedTuple

from stratalog.broker.coordination.cluster_view import ClusterView
from stratalog.broker.coordination.local_controller import NO_CONTROLLER, LocalController
from stratalog.broker.coordination.metadata_quorum import MetadataQuorum
from stratalog.broker.network.authorizer import Operation
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode
from stratalog.metadata.image import Endpoint
from stratalog.ports import Clock
from stratalog.quorum.metadata_batches import METADATA_TOPIC
from stratalog.quorum.progress import Follower
from stratalog.quorum.voters import ReplicaKey, Voter
from stratalog.wire.internal.metadata_records import ControllerEndpoint
from stratalog.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseTopicData,
    Listener,
    Node,
    ReplicaState,
)


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    clock: Clock
    cluster: ClusterView
    quorum: MetadataQuorum
    local_controller: LocalController


async def handle(call: Call[DescribeQuorumRequest, Needs]) -> DescribeQuorumResponse:
    """Return the metadata log's leader, and how far each voter and observer is."""
    if not call.allows_cluster(Operation.DESCRIBE):
        return DescribeQuorumResponse(
            error_code=ErrorCode.cluster_authorization_failed,
            error_message=None,
            topics=[],
            nodes=[],
        )
    if (late := call.needs.local_controller.absent) is not ErrorCode.not_controller:
        return DescribeQuorumResponse(
            error_code=late, error_message=NO_CONTROLLER, topics=[], nodes=[]
        )
    return DescribeQuorumResponse(
        error_code=ErrorCode.none,
        error_message=None,
        topics=[
            DescribeQuorumResponseTopicData(
                topic_name=topic.topic_name,
                partitions=[
                    _partition(call, topic.topic_name, requested.partition_index)
                    async for requested in call.pace.each(topic.partitions)
                ],
            )
            async for topic in call.pace.each(call.body.topics)
        ],
        nodes=[_node(call, voter) for voter in call.needs.quorum.voters.voters],
    )


def _partition(
    call: Call[DescribeQuorumRequest, Needs], topic: str, index: int
) -> DescribeQuorumResponsePartitionData:
    clock, quorum = call.needs.clock, call.needs.quorum
    if (topic, index) != (METADATA_TOPIC, 0):
        wrong = f"the quorum keeps {METADATA_TOPIC}-0 only"
        return _refused(index, ErrorCode.unknown_topic_or_partition, wrong)
    if not quorum.is_leader:
        return _refused(index, ErrorCode.not_leader_or_follower, "this node does not lead")
    return DescribeQuorumResponsePartitionData(
        partition_index=index,
        error_code=ErrorCode.none,
        error_message=None,
        leader_id=quorum.leader_id,
        leader_epoch=quorum.leader_epoch,
        high_watermark=quorum.high_watermark,
        current_voters=[
            _leader(clock, voter.key, quorum.log.log.log_end_offset)
            if voter.id == quorum.leader_id
            else _state(clock, *_voter(voter.key, quorum))
            for voter in quorum.voters.voters
        ],
        observers=[
            _state(clock, key, seen)
            for key, seen in quorum.replicas().items()
            if not quorum.voters.has(key)
        ],
    )


def _refused(index: int, code: ErrorCode, why: str) -> DescribeQuorumResponsePartitionData:
    return DescribeQuorumResponsePartitionData(
        partition_index=index,
        error_code=code,
        error_message=why,
        leader_id=0,
        leader_epoch=0,
        high_watermark=0,
        current_voters=[],
        observers=[],
    )


def _voter(key: ReplicaKey, quorum: MetadataQuorum) -> tuple[ReplicaKey, Follower]:
    """Return a voter as the leader sees it: of several directories with its id, the one that fetched last."""
    seen = [
        (one, follower)
        for one, follower in quorum.replicas().items()
        if one.id == key.id and quorum.voters.has(one)
    ]
    return max(seen, key=lambda found: found[1].fetched_ms, default=(key, Follower()))


def _leader(clock: Clock, key: ReplicaKey, end_offset: int) -> ReplicaState:
    now_ms = clock.now_ms()
    return ReplicaState(
        replica_id=key.id,
        replica_directory_id=key.directory_id,
        log_end_offset=end_offset,
        last_fetch_timestamp=now_ms,
        last_caught_up_timestamp=now_ms,
    )


def _state(clock: Clock, key: ReplicaKey, seen: Follower) -> ReplicaState:
    """Return what the leader has seen of another replica; the steady times become times of the wall clock."""
    ahead_ms = clock.now_ms() - clock.steady_ms()
    return ReplicaState(
        replica_id=key.id,
        replica_directory_id=key.directory_id,
        log_end_offset=seen.end_offset,
        last_fetch_timestamp=-1 if seen.fetched_ms < 0 else seen.fetched_ms + ahead_ms,
        last_caught_up_timestamp=-1 if seen.caught_up_ms < 0 else seen.caught_up_ms + ahead_ms,
    )


def _node(call: Call[DescribeQuorumRequest, Needs], voter: Voter) -> Node:
    """Return a voter with its endpoints as the log names them, else those that its controller registered.

    A node that is alone may listen to brokers only: then its broker's.
    """
    image = call.needs.cluster.image
    controller, broker = image.controllers.get(voter.id), image.brokers.get(voter.id)
    endpoints: Sequence[Endpoint | ControllerEndpoint] = (
        voter.endpoints
        or (controller.end_points if controller is not None else ())
        or (broker.endpoints if broker is not None else ())
    )
    return Node(
        node_id=voter.id,
        listeners=[Listener(name=one.name, host=one.host, port=one.port) for one in endpoints],
    )
