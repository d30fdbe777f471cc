"""OffsetCommit (key 8), versions 2-9.

v5 no retention time. v6 leader epoch. v7 static members. v8 flexible. v9 KIP-848 errors.
"""

from typing import Any

from stratalog.broker.api import Api, Call
from stratalog.coordinators.messages import CommitPartition, CommitTopic, OffsetCommit
from stratalog.errors import ErrorCode, Rejected


async def handle(call: Call) -> Any:
    """Keep offsets of a group; partitions that do not exist are refused here, by name."""
    body, reply = call.body, call.reply
    known = [topic for topic in (_known(call, topic) for topic in body.topics) if topic.partitions]
    request = OffsetCommit(
        group_id=body.group_id,
        topics=tuple(known),
        generation_id=getattr(
            body, "generation_id_or_member_epoch", getattr(body, "generation_id", -1)
        ),
        member_id=body.member_id,
        group_instance_id=getattr(body, "group_instance_id", None),
        retention_ms=call.broker.milliseconds(getattr(body, "retention_time", -1)),
        group_not_found_known=call.version >= 9,
    )
    errors: dict[tuple[str, int], ErrorCode] = {}
    failed: ErrorCode | None = None
    if known:
        try:
            answer = await call.broker.groups.commit(request)
            errors = {(t.name, p.index): p.error for t in answer.topics for p in t.partitions}
        except Rejected as error:
            failed = error.code
    return reply.OffsetCommitResponse(
        topics=[
            reply.OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    reply.OffsetCommitResponsePartition(
                        partition_index=p.partition_index,
                        error_code=failed
                        or errors.get(
                            (topic.name, p.partition_index), ErrorCode.unknown_topic_or_partition
                        ),
                    )
                    for p in topic.partitions
                ],
            )
            for topic in body.topics
        ]
    )


def _known(call: Call, topic: Any) -> CommitTopic:
    found = call.broker.metadata.topic(topic.name)
    indexes = found.partitions if found is not None else {}
    partitions = tuple(
        CommitPartition(
            p.partition_index,
            p.committed_offset,
            getattr(p, "committed_leader_epoch", -1),
            p.committed_metadata or "",
        )
        for p in topic.partitions
        if p.partition_index in indexes
    )
    if found is None:
        return CommitTopic(topic.name, ())
    return CommitTopic(topic.name, partitions, found.id)


API = Api("OffsetCommit", 8, (2, 9), handle)
