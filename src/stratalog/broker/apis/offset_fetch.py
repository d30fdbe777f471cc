"""OffsetFetch (key 9), versions 1-10.

v1 an error of the group stands at each partition. v2 null topics means all, group-level error. v5 leader epoch. v6
flexible. v7 require stable. v8 several groups at once (KIP-709). v9 member epoch (KIP-848). v10 topic ids instead of
names.
"""

from dataclasses import replace
from typing import Any

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

_GROUP_ERROR_FROM = 2
_SEVERAL_FROM = 8
_TOPIC_IDS_FROM = 10


async def handle(call: Call) -> Any:
    """Committed offsets; -1 where there is none."""
    body, reply = call.body, call.reply
    if call.version >= _SEVERAL_FROM:
        answers = [await _fetch(call, g.group_id, g.topics) for g in body.groups]
        return reply.OffsetFetchResponse(
            groups=[
                reply.OffsetFetchResponseGroup(
                    group_id=answer.group_id,
                    error_code=answer.error,
                    topics=_topics(
                        call,
                        reply.OffsetFetchResponseTopics,
                        reply.OffsetFetchResponsePartitions,
                        answer,
                    ),
                )
                for answer in answers
            ]
        )
    answer = await _fetch(call, body.group_id, body.topics)
    return reply.OffsetFetchResponse(
        topics=_topics(
            call, reply.OffsetFetchResponseTopic, reply.OffsetFetchResponsePartition, answer
        ),
        error_code=answer.error,
    )


async def _fetch(call: Call, group: str, topics: Any) -> OffsetFetchAnswer:
    wanted = None if topics is None else tuple(_wanted(call, topic) for topic in topics)
    require_stable = getattr(call.body, "require_stable", False)
    try:
        answer = await call.broker.groups.fetch_offsets(
            OffsetFetch(group, wanted, require_stable=require_stable)
        )
    except Rejected as error:
        topics = _refused(wanted or (), error.code) if call.version < _GROUP_ERROR_FROM else ()
        return OffsetFetchAnswer(group, error.code, topics)
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


def _wanted(call: Call, topic: Any) -> FetchTopic:
    """With its id, so that what was committed for an earlier topic of that name is not taken for this one's."""
    image = call.broker.metadata.image
    if call.version >= _TOPIC_IDS_FROM:
        found = image.topics_by_id.get(topic.topic_id)
        name = "" if found is None else found.name
        return FetchTopic(name, tuple(topic.partition_indexes), topic.topic_id or NO_TOPIC_ID)
    found = image.topic(topic.name)
    topic_id = NO_TOPIC_ID if found is None else found.id
    return FetchTopic(topic.name, tuple(topic.partition_indexes), topic_id)


def _by_id(call: Call, answer: OffsetFetchAnswer) -> OffsetFetchAnswer:
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


def _topics(
    call: Call, topic_type: Any, partition_type: Any, answer: OffsetFetchAnswer
) -> list[Any]:
    by_id = call.version >= _TOPIC_IDS_FROM
    return [
        topic_type(
            **({"topic_id": topic.topic_id} if by_id else {"name": topic.name}),
            partitions=[
                partition_type(
                    partition_index=p.index,
                    committed_offset=p.offset,
                    committed_leader_epoch=p.leader_epoch,
                    metadata=p.metadata,
                    error_code=p.error,
                )
                for p in topic.partitions
            ],
        )
        for topic in answer.topics
    ]


API = Api("OffsetFetch", 9, (1, 10), handle)
