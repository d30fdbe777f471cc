"""OffsetCommit (key 8), versions 2-10.

v5 no retention time. v6 leader epoch. v7 static members. v8 flexible. v9 KIP-848 errors. v10 topic ids instead of names
(KIP-848).
"""

from stratalog.broker.api import Api, Call
from stratalog.coordinators.messages import CommitPartition, CommitTopic, OffsetCommit
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

_TOPIC_IDS_FROM = 10


async def handle(call: Call[OffsetCommitRequest]) -> OffsetCommitResponse:
    """Keep offsets of a group; partitions that do not exist are refused here, by name or id."""
    body = call.body
    resolved = [(topic, _known(call, topic)) for topic in body.topics]
    known = [topic for _, topic in resolved if topic is not None and topic.partitions]
    request = OffsetCommit(
        group_id=body.group_id,
        topics=tuple(known),
        generation_id=body.generation_id_or_member_epoch,
        member_id=body.member_id,
        group_instance_id=body.group_instance_id,
        retention_ms=body.retention_time_ms,
        group_not_found_known=call.version >= 9,
    )
    errors: dict[tuple[str, int], ErrorCode] = {}
    if known:
        try:
            answer = await call.broker.groups.commit(request)
            errors = {(t.name, p.index): p.error for t in answer.topics for p in t.partitions}
        except Rejected as error:
            errors = {(t.name, p.index): error.code for t in known for p in t.partitions}
    return OffsetCommitResponse(
        topics=[_answer(call, topic, found, errors) for topic, found in resolved]
    )


def _known(call: Call[OffsetCommitRequest], topic: OffsetCommitRequestTopic) -> CommitTopic | None:
    """What of it exists; None where not even the topic does."""
    image = call.broker.metadata.image
    by_id = call.version >= _TOPIC_IDS_FROM
    found = image.topics_by_id.get(topic.topic_id) if by_id else image.topic(topic.name)
    if found is None:
        return None
    partitions = tuple(
        CommitPartition(
            p.partition_index,
            p.committed_offset,
            p.committed_leader_epoch,
            p.committed_metadata or "",
        )
        for p in topic.partitions
        if p.partition_index in found.partitions
    )
    return CommitTopic(found.name, partitions, found.id)


def _answer(
    call: Call[OffsetCommitRequest],
    topic: OffsetCommitRequestTopic,
    found: CommitTopic | None,
    errors: dict[tuple[str, int], ErrorCode],
) -> OffsetCommitResponseTopic:
    """The topic as it was asked for, with what became of each partition."""
    by_id = call.version >= _TOPIC_IDS_FROM
    missing = ErrorCode.unknown_topic_or_partition
    if by_id and found is None:
        missing = ErrorCode.unknown_topic_id
    name = "" if found is None else found.name
    partitions = [
        OffsetCommitResponsePartition(
            partition_index=p.partition_index,
            error_code=errors.get((name, p.partition_index), missing),
        )
        for p in topic.partitions
    ]
    return OffsetCommitResponseTopic(
        name=topic.name, topic_id=topic.topic_id, partitions=partitions
    )


API = Api("OffsetCommit", 8, (2, 10), handle)
