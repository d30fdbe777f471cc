"""OffsetDelete (key 47), versions 0-0.

Delete a group's offsets of topics that it no longer reads (KIP-496).
"""

from collections.abc import Sequence
from typing import NamedTuple

from stratalog.broker.coordination.cluster_view import ClusterView
from stratalog.broker.coordination.groups import Groups
from stratalog.broker.network.authorizer import Operation, Resource
from stratalog.broker.network.dispatch import Call
from stratalog.coordinators.messages import FetchTopic, OffsetDelete, OffsetDeleteAnswer
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.ids import TopicPartition
from stratalog.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    cluster: ClusterView
    groups: Groups


async def handle(call: Call[OffsetDeleteRequest, Needs]) -> OffsetDeleteResponse:
    """Delete offsets; refuse missing partitions, by name."""
    topics = call.body.topics
    if not call.allows(Operation.DELETE, Resource.GROUP, call.body.group_id):
        return OffsetDeleteResponse(error_code=ErrorCode.group_authorization_failed, topics=[])
    denied = {
        topic.name
        async for topic in call.pace.each(topics)
        if not call.allows(Operation.READ, Resource.TOPIC, topic.name)
    }
    rows: dict[int, list[OffsetDeleteResponsePartition]] = {}
    async for share in call.pace.shares(topics, lambda topic: topic.partitions):
        existing = tuple(
            _existing(call, topic.name, partitions)
            for _, topic, partitions in share
            if topic.name not in denied
        )
        try:
            request = OffsetDelete(call.body.group_id, existing)
            answer = await call.needs.groups.delete_offsets(request)
        except Rejected as error:
            answer = OffsetDeleteAnswer(error.code)
        if answer.error is not ErrorCode.none:
            return OffsetDeleteResponse(error_code=answer.error, topics=[])
        errors = {
            TopicPartition(t.name, p.index): p.error for t in answer.topics for p in t.partitions
        }
        for place, topic, partitions in share:
            missing = ErrorCode.unknown_topic_or_partition
            if topic.name in denied:
                missing = ErrorCode.topic_authorization_failed
            rows.setdefault(place, []).extend(_answer(topic.name, partitions, errors, missing))
    return OffsetDeleteResponse(
        error_code=ErrorCode.none,
        topics=[
            OffsetDeleteResponseTopic(name=topics[place].name, partitions=partitions)
            async for place, partitions in call.pace.each(rows.items())
        ],
    )


def _existing(
    call: Call[OffsetDeleteRequest, Needs],
    name: str,
    requested: Sequence[OffsetDeleteRequestPartition],
) -> FetchTopic:
    found = call.needs.cluster.topic(name)
    indexes = () if found is None else found.partitions
    wanted = (one.partition_index for one in requested)
    return FetchTopic(name, tuple(index for index in wanted if index in indexes))


def _answer(
    name: str,
    requested: Sequence[OffsetDeleteRequestPartition],
    errors: dict[TopicPartition, ErrorCode],
    missing: ErrorCode,
) -> list[OffsetDeleteResponsePartition]:
    return [
        OffsetDeleteResponsePartition(
            partition_index=one.partition_index,
            error_code=errors.get(TopicPartition(name, one.partition_index), missing),
        )
        for one in requested
    ]
