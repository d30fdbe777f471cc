"""OffsetDelete (key 47), version 0.

Offsets of topics that a group does not read any more (KIP-496).
"""

from stratalog.broker.api import Api, Call
from stratalog.coordinators.messages import FetchTopic, OffsetDelete, OffsetDeleteAnswer
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


async def handle(call: Call[OffsetDeleteRequest]) -> OffsetDeleteResponse:
    """Forget offsets; partitions that do not exist are refused here, by name."""
    body = call.body
    topics = tuple(_known(call, topic) for topic in body.topics)
    try:
        answer = await call.broker.groups.delete_offsets(OffsetDelete(body.group_id, topics))
    except Rejected as error:
        answer = OffsetDeleteAnswer(error.code)
    if answer.error is not ErrorCode.none:
        return OffsetDeleteResponse(error_code=answer.error, topics=[])
    errors = {
        (topic.name, one.index): one.error for topic in answer.topics for one in topic.partitions
    }
    return OffsetDeleteResponse(
        error_code=ErrorCode.none,
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition_index=one.partition_index,
                        error_code=errors.get(
                            (topic.name, one.partition_index), ErrorCode.unknown_topic_or_partition
                        ),
                    )
                    for one in topic.partitions
                ],
            )
            for topic in body.topics
        ],
    )


def _known(call: Call[OffsetDeleteRequest], topic: OffsetDeleteRequestTopic) -> FetchTopic:
    found = call.broker.metadata.topic(topic.name)
    indexes = () if found is None else found.partitions
    asked = (one.partition_index for one in topic.partitions)
    return FetchTopic(topic.name, tuple(index for index in asked if index in indexes))


API = Api("OffsetDelete", 47, (0, 0), handle)
