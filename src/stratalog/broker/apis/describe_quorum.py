"""DescribeQuorum (key 55), versions 0-2.

v1 when replicas last fetched and were caught up (KIP-836). v2 directory ids, addresses, error messages (KIP-853).
"""

from typing import NamedTuple

from stratalog.broker.coordination.cluster_view import ClusterView
from stratalog.broker.network.authorizer import Operation
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode
from stratalog.ports import Clock
from stratalog.quorum.metadata_batches import METADATA_TOPIC
from stratalog.wire.ids import ZERO_ID
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


async def handle(call: Call[DescribeQuorumRequest, Needs]) -> DescribeQuorumResponse:
    """Return the metadata log's leader, its voters and their end offsets: a quorum of one, this node."""
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
                    _partition(call, topic.topic_name, asked.partition_index)
                    async for asked in call.pace.each(topic.partitions)
                ],
            )
            async for topic in call.pace.each(call.body.topics)
        ],
        nodes=[_node(call)],
    )


def _partition(
    call: Call[DescribeQuorumRequest, Needs], topic: str, index: int
) -> DescribeQuorumResponsePartitionData:
    clock, cluster = call.needs
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
    image = cluster.image
    now_ms = clock.now_ms()
    me = image.brokers.get(cluster.node_id)
    end_offset = image.offset + 1
    return DescribeQuorumResponsePartitionData(
        partition_index=index,
        error_code=ErrorCode.none,
        error_message=None,
        leader_id=cluster.node_id,
        leader_epoch=image.epoch,
        high_watermark=end_offset,
        current_voters=[
            ReplicaState(
                replica_id=cluster.node_id,
                replica_directory_id=me.directories[0] if me and me.directories else ZERO_ID,
                log_end_offset=end_offset,
                last_fetch_timestamp=now_ms,
                last_caught_up_timestamp=now_ms,
            )
        ],
        observers=[],
    )


def _node(call: Call[DescribeQuorumRequest, Needs]) -> Node:
    cluster = call.needs.cluster
    me = cluster.image.brokers.get(cluster.node_id)
    return Node(
        node_id=cluster.node_id,
        listeners=[
            Listener(name=one.name, host=one.host, port=one.port)
            for one in (me.endpoints if me is not None else ())
        ],
    )
