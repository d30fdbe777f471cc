"""OffsetFetch (key 9), versions 1-9.

v2 null topics means all, group-level error. v5 leader epoch. v6 flexible. v7 require stable. v8 several groups at once
(KIP-709). v9 member epoch (KIP-848).
"""

from typing import Any
from uuid import UUID

from stratalog.broker.api import Api, Call
from stratalog.coordinators.messages import NO_TOPIC_ID, FetchTopic, OffsetFetch, OffsetFetchAnswer
from stratalog.errors import ErrorCode, Rejected

_SEVERAL_FROM = 8


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
                        reply.OffsetFetchResponseTopics, reply.OffsetFetchResponsePartitions, answer
                    ),
                )
                for answer in answers
            ]
        )
    answer = await _fetch(call, body.group_id, body.topics)
    return reply.OffsetFetchResponse(
        topics=_topics(reply.OffsetFetchResponseTopic, reply.OffsetFetchResponsePartition, answer),
        error_code=answer.error,
    )


async def _fetch(call: Call, group: str, topics: Any) -> OffsetFetchAnswer:
    wanted = (
        None
        if topics is None
        else tuple(
            FetchTopic(t.name, tuple(t.partition_indexes), _topic_id(call, t.name)) for t in topics
        )
    )
    require_stable = getattr(call.body, "require_stable", False)
    try:
        return await call.broker.groups.fetch_offsets(
            OffsetFetch(group, wanted, require_stable=require_stable)
        )
    except Rejected as error:
        return OffsetFetchAnswer(group, error.code)


def _topic_id(call: Call, name: str) -> UUID:
    """So that what was committed for an earlier topic of that name is not taken for this one's."""
    found = call.broker.metadata.topic(name)
    return NO_TOPIC_ID if found is None else found.id


def _topics(topic_type: Any, partition_type: Any, answer: OffsetFetchAnswer) -> list[Any]:
    return [
        topic_type(
            name=topic.name,
            partitions=[
                partition_type(
                    partition_index=p.index,
                    committed_offset=p.offset,
                    committed_leader_epoch=p.leader_epoch,
                    metadata=p.metadata,
                    error_code=p.error if answer.error is ErrorCode.none else answer.error,
                )
                for p in topic.partitions
            ],
        )
        for topic in answer.topics
    ]


API = Api("OffsetFetch", 9, (1, 9), handle)
