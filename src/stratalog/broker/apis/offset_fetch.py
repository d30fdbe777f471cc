"""OffsetFetch (key 9), versions 1-10.

v1 an error of the group stands at each partition. v2 null topics means all, group-level error. v5 leader epoch. v6
flexible. v7 require stable. v8 several groups at once (KIP-709). v9 member epoch (KIP-848). v10 topic ids instead of
names.
"""

from collections.abc import Sequence
from dataclasses import replace

from stratalog.broker.api import Api, Call
from stratalog.coordinators.messages import (
    NO_TOPIC_ID,
    FetchedOffset,
    FetchedTopic,
    FetchTopic,
    OffsetFetch,
    OffsetFetchAnswer,
)
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

_GROUP_ERROR_FROM = 2
_SEVERAL_FROM = 8
_TOPIC_IDS_FROM = 10


async def handle(call: Call[OffsetFetchRequest]) -> OffsetFetchResponse:
    """Committed offsets; -1 where there is none."""
    body = call.body
    if call.version >= _SEVERAL_FROM:
        answers = [await _fetch(call, g.group_id, g.topics) for g in body.groups]
        return OffsetFetchResponse(
            groups=[
                OffsetFetchResponseGroup(
                    group_id=answer.group_id,
                    error_code=answer.error,
                    topics=[_of_several(topic) for topic in answer.topics],
                )
                for answer in answers
            ]
        )
    answer = await _fetch(call, body.group_id, body.topics)
    return OffsetFetchResponse(
        topics=[_only_group(topic) for topic in answer.topics], error_code=answer.error
    )


async def _fetch(
    call: Call[OffsetFetchRequest],
    group: str,
    topics: Sequence[OffsetFetchRequestTopic] | Sequence[OffsetFetchRequestTopics] | None,
) -> OffsetFetchAnswer:
    wanted = None if topics is None else tuple(_wanted(call, topic) for topic in topics)
    require_stable = call.body.require_stable
    try:
        answer = await call.broker.groups.fetch_offsets(
            OffsetFetch(group, wanted, require_stable=require_stable)
        )
    except Rejected as error:
        refused = _refused(wanted or (), error.code) if call.version < _GROUP_ERROR_FROM else ()
        return OffsetFetchAnswer(group, error.code, refused)
    return _by_id(call, answer) if call.version >= _TOPIC_IDS_FROM else answer


def _refused(wanted: tuple[FetchTopic, ...], error: ErrorCode) -> tuple[FetchedTopic, ...]:
    """Return each partition asked for with `error` and no offset (Kafka: `OffsetFetchResponse.groupError`)."""
    return tuple(
        FetchedTopic(
            topic.name,
            topic.topic_id,
            tuple(FetchedOffset(index, -1, -1, "", error) for index in topic.partitions),
        )
        for topic in wanted
    )


def _wanted(
    call: Call[OffsetFetchRequest], topic: OffsetFetchRequestTopic | OffsetFetchRequestTopics
) -> FetchTopic:
    """Return the topic with its id, so that a commit for an earlier topic of that name is not taken for this one's."""
    image = call.broker.metadata.image
    partitions = tuple(topic.partition_indexes)
    if isinstance(topic, OffsetFetchRequestTopics) and call.version >= _TOPIC_IDS_FROM:
        found = image.topics_by_id.get(topic.topic_id)
        return FetchTopic("" if found is None else found.name, partitions, topic.topic_id)
    found = image.topic(topic.name)
    return FetchTopic(topic.name, partitions, NO_TOPIC_ID if found is None else found.id)


def _by_id(call: Call[OffsetFetchRequest], answer: OffsetFetchAnswer) -> OffsetFetchAnswer:
    """Put each topic under its id. Unknown ids come last, as errors, where the client asked for them."""
    image = call.broker.metadata.image
    topics, unknown = [], []
    for topic in answer.topics:
        if topic.name == "":
            unknown.append(_unknown(topic))
            continue
        topic_id = topic.topic_id
        if topic_id == NO_TOPIC_ID:
            topic_id = image.topic_ids_by_name.get(topic.name, NO_TOPIC_ID)
        if topic_id != NO_TOPIC_ID:
            topics.append(replace(topic, topic_id=topic_id))
    return replace(answer, topics=(*topics, *unknown))


def _unknown(topic: FetchedTopic) -> FetchedTopic:
    return replace(
        topic,
        partitions=tuple(
            replace(one, error=ErrorCode.unknown_topic_id) for one in topic.partitions
        ),
    )


def _only_group(topic: FetchedTopic) -> OffsetFetchResponseTopic:
    """Return a topic of the one group of versions before 8."""
    return OffsetFetchResponseTopic(
        name=topic.name,
        partitions=[
            OffsetFetchResponsePartition(
                partition_index=one.index,
                committed_offset=one.offset,
                committed_leader_epoch=one.leader_epoch,
                metadata=one.metadata,
                error_code=one.error,
            )
            for one in topic.partitions
        ],
    )


def _of_several(topic: FetchedTopic) -> OffsetFetchResponseTopics:
    """Return a topic of one of several groups."""
    return OffsetFetchResponseTopics(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetFetchResponsePartitions(
                partition_index=one.index,
                committed_offset=one.offset,
                committed_leader_epoch=one.leader_epoch,
                metadata=one.metadata,
                error_code=one.error,
            )
            for one in topic.partitions
        ],
    )


API = Api("OffsetFetch", 9, (1, 10), handle)
