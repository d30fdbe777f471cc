"""DescribeTopicPartitions (key 75), versions 0-0.

Metadata of partitions, a page at a time (KIP-966).
"""

from collections.abc import AsyncIterator
from heapq import merge
from typing import NamedTuple

from stratalog.broker.coordination.cluster_view import ClusterView
from stratalog.broker.coordination.topics import name_error
from stratalog.broker.network.authorizer import Operation, Resource
from stratalog.broker.network.dispatch import Call
from stratalog.config import BrokerConfig
from stratalog.errors import ErrorCode
from stratalog.metadata.image import Partition, Topic
from stratalog.wire.ids import ZERO_ID
from stratalog.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseCursor,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    cluster: ClusterView
    config: BrokerConfig


async def handle(
    call: Call[DescribeTopicPartitionsRequest, Needs],
) -> DescribeTopicPartitionsResponse:
    """Return partitions from the cursor on, topics by name; the next cursor where there are more."""
    body = call.body
    cursor = body.cursor
    if cursor is not None and cursor.partition_index < 0:
        return DescribeTopicPartitionsResponse(
            topics=[
                _refused(topic.name, ErrorCode.invalid_request)
                async for topic in call.pace.each(body.topics)
            ],
            next_cursor=None,
        )
    start = ("", 0) if cursor is None else (cursor.topic_name, cursor.partition_index)
    partitions_max = call.needs.config.int("max.request.partition.size.limit")
    left = min(max(body.response_partition_limit, 1), partitions_max)
    topics, denied = [], []
    following = None
    async for name in _names(call, start[0]):
        if not call.allows(Operation.DESCRIBE, Resource.TOPIC, name):
            if body.topics:  # otherwise the answer would reveal that the topic exists
                denied.append(_refused(name, ErrorCode.topic_authorization_failed))
            continue
        topic = call.needs.cluster.topic(name)
        if topic is None:
            topics.append(_unknown(call, name))
            continue
        first = start[1] if name == start[0] else 0
        rest = [row for row in sorted(topic.partitions.items()) if row[0] >= first]
        if left:
            topics.append(_topic(call, topic, rest[:left]))
        if len(rest) > left:
            following = DescribeTopicPartitionsResponseCursor(
                topic_name=name, partition_index=rest[left][0]
            )
            break
        left -= len(rest)
    return DescribeTopicPartitionsResponse(topics=topics + denied, next_cursor=following)


async def _names(
    call: Call[DescribeTopicPartitionsRequest, Needs], first: str
) -> AsyncIterator[str]:
    """Yield the requested topic names, or all, from `first` on, in order and each once."""
    pace = call.pace
    names = {topic.name async for topic in pace.each(call.body.topics) if topic.name >= first}
    if not call.body.topics:
        topic_ids = call.needs.cluster.image.topic_ids_by_name
        names = {name async for name in pace.each(topic_ids) if name >= first}
    # A hundred thousand names at once would take a hundred milliseconds.
    runs = [sorted(run) async for run in pace.parts(list(names))]
    async for name in pace.each(merge(*runs)):
        yield name


def _topic(
    call: Call[DescribeTopicPartitionsRequest, Needs],
    topic: Topic,
    page: list[tuple[int, Partition]],
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name in call.needs.cluster.internal_topics,
        partitions=[
            DescribeTopicPartitionsResponsePartition(
                error_code=standing.error,
                partition_index=index,
                leader_id=standing.leader,
                leader_epoch=partition.leader_epoch,
                replica_nodes=partition.replicas,
                isr_nodes=partition.isr,
                eligible_leader_replicas=partition.eligible_leader_replicas,
                last_known_elr=partition.last_known_elr,
                offline_replicas=standing.offline,
            )
            for index, partition in page
            for standing in (call.needs.cluster.standing(topic.id, index, partition),)
        ],
        topic_authorized_operations=call.authorized_operations(Resource.TOPIC, topic.name),
    )


def _unknown(
    call: Call[DescribeTopicPartitionsRequest, Needs], name: str
) -> DescribeTopicPartitionsResponseTopic:
    code = name_error(name) or ErrorCode.unknown_topic_or_partition
    return DescribeTopicPartitionsResponseTopic(
        error_code=code,
        name=name,
        topic_id=ZERO_ID,
        partitions=[],
        topic_authorized_operations=call.authorized_operations(Resource.TOPIC, name),
    )


def _refused(name: str, error: ErrorCode) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=error, name=name, topic_id=ZERO_ID, partitions=[]
    )
