"""DescribeQuorum (key 55), versions 0-2.

v1 when replicas last fetched and were caught up (KIP-836). v2 directory ids, addresses, error messages (KIP-853).
"""

from typing import NamedTuple

from stratalog.broker.coordination.cluster_view import ClusterView
from stratalog.broker.coordination.metadata_quorum import MetadataQuorum
from stratalog.broker.network.authorizer import Operation
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode
from stratalog.ports import Clock
from stratalog.quorum.metadata_batches import METADATA_TOPIC
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


async def handle(call: Call[DescribeQuorumRequest, Needs]) -> DescribeQuorumResponse:
    """Return the metadata log's leader, and each voter with the end of its log."""
    if not call.allows_cluster(Operation.DESCRIBE):
        return DescribeQuorumResponse(
            error_code=ErrorCode.cluster_authorization_failed,
            error_message=None,
            topics=[],
            nodes=[],
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
        nodes=[_node(call, voter.id) for voter in call.needs.quorum.voters.voters],
    )


def _partition(
    call: Call[DescribeQuorumRequest, Needs], topic: str, index: int
) -> DescribeQuorumResponsePartitionData:
    clock, _, quorum = call.needs
    if (topic, index) != (METADATA_TOPIC, 0):
        return DescribeQuorumResponsePartitionData(
            partition_index=index,
            error_code=ErrorCode.unknown_topic_or_partition,
            error_message=f"the quorum keeps {METADATA_TOPIC}-0 only",
            leader_id=0,
            leader_epoch=0,
            high_watermark=0,
            current_voters=[],
            observers=[],
        )
    now_ms = clock.now_ms()
    high_watermark = quorum.high_watermark
    return DescribeQuorumResponsePartitionData(
        partition_index=index,
        error_code=ErrorCode.none,
        error_message=None,
        leader_id=quorum.leader_id,
        leader_epoch=quorum.leader_epoch,
        high_watermark=high_watermark,
        current_voters=[
            # The only voter is the leader, and its whole log is committed.
            ReplicaState(
                replica_id=voter.id,
                replica_directory_id=voter.directory_id,
                log_end_offset=high_watermark,
                last_fetch_timestamp=now_ms,
                last_caught_up_timestamp=now_ms,
            )
            for voter in quorum.voters.voters
        ],
        observers=[],
    )


def _node(call: Call[DescribeQuorumRequest, Needs], voter_id: int) -> Node:
    broker = call.needs.cluster.image.brokers.get(voter_id)
    return Node(
        node_id=voter_id,
        listeners=[
            Listener(name=one.name, host=one.host, port=one.port)
            for one in (broker.endpoints if broker is not None else ())
        ],
    )
