"""OffsetCommit (key 8), versions 2-10.

v5 no retention time. v6 leader epoch. v7 static members. v8 flexible. v9 KIP-848 errors. v10 topic ids instead of names
(KIP-848).
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from stratalog.broker.coordination.cluster_view import ClusterView
from stratalog.broker.coordination.groups import Groups
from stratalog.broker.network.authorizer import Operation, Resource
from stratalog.broker.network.dispatch import Call
from stratalog.coordinators.messages import CommitPartition, CommitTopic, OffsetCommit
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.ids import TopicPartition
from stratalog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

_TOPIC_IDS_FROM = 10
_UNKNOWN: Final = ErrorCode.unknown_topic_or_partition
Share = Sequence[tuple[int, OffsetCommitRequestTopic, Sequence[OffsetCommitRequestPartition]]]


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    cluster: ClusterView
    groups: Groups


async def handle(call: Call[OffsetCommitRequest, Needs]) -> OffsetCommitResponse:
    """Commit offsets of a group; refuse missing partitions, by name or id."""
    topics = call.body.topics
    may_read = call.allows(Operation.READ, Resource.GROUP, call.body.group_id)
    rows: dict[int, list[OffsetCommitResponsePartition]] = {}
    async for share in call.pace.shares(topics, lambda topic: topic.partitions):
        for place, answered in await _commit(call, share) if may_read else _denied(share):
            rows.setdefault(place, []).extend(answered)
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topics[place].name, topic_id=topics[place].topic_id, partitions=partitions
            )
            async for place, partitions in call.pace.each(rows.items())
        ]
    )


def _denied(share: Share) -> list[tuple[int, list[OffsetCommitResponsePartition]]]:
    code = ErrorCode.group_authorization_failed
    return [(place, _answer(requested, None, {}, code)) for place, _, requested in share]


async def _commit(
    call: Call[OffsetCommitRequest, Needs], share: Share
) -> list[tuple[int, list[OffsetCommitResponsePartition]]]:
    """Commit a share of the request; return the result of each partition, with its topic's index."""
    body = call.body
    resolved = [
        (place, requested, *_existing(call, topic, requested)) for place, topic, requested in share
    ]
    existing = [topic for *_, topic, _ in resolved if topic is not None and topic.partitions]
    request = OffsetCommit(
        group_id=body.group_id,
        topics=tuple(existing),
        generation_id=body.generation_id_or_member_epoch,
        member_id=body.member_id,
        group_instance_id=body.group_instance_id,
        retention_ms=body.retention_time_ms,
        supports_group_not_found=call.version >= 9,
    )
    errors: dict[TopicPartition, ErrorCode] = {}
    if existing:
        try:
            answer = await call.needs.groups.commit(request)
            errors = {
                TopicPartition(t.name, p.index): p.error
                for t in answer.topics
                for p in t.partitions
            }
        except Rejected as error:
            errors = {
                TopicPartition(t.name, p.index): error.code for t in existing for p in t.partitions
            }
    return [
        (place, _answer(requested, found, errors, rest))
        for place, requested, found, rest in resolved
    ]


def _existing(
    call: Call[OffsetCommitRequest, Needs],
    topic: OffsetCommitRequestTopic,
    requested: Sequence[OffsetCommitRequestPartition],
) -> tuple[CommitTopic | None, ErrorCode]:
    """Return the partitions that exist, or None if the topic does not or is denied; and the error of all others."""
    image = call.needs.cluster.image
    by_id = call.version >= _TOPIC_IDS_FROM
    found = image.topics_by_id.get(topic.topic_id) if by_id else image.topic(topic.name)
    name = topic.name if not by_id else "" if found is None else found.name
    if name and not call.allows(Operation.READ, Resource.TOPIC, name):
        return None, ErrorCode.topic_authorization_failed
    if found is None:
        return None, ErrorCode.unknown_topic_id if by_id else _UNKNOWN
    partitions = tuple(
        CommitPartition(
            p.partition_index,
            p.committed_offset,
            p.committed_leader_epoch,
            p.committed_metadata or "",
        )
        for p in requested
        if p.partition_index in found.partitions
    )
    return CommitTopic(found.name, partitions, found.id), _UNKNOWN


def _answer(
    requested: Sequence[OffsetCommitRequestPartition],
    found: CommitTopic | None,
    errors: dict[TopicPartition, ErrorCode],
    rest: ErrorCode,
) -> list[OffsetCommitResponsePartition]:
    """Return the result of each partition of a topic; `rest` is the error of the others."""
    name = "" if found is None else found.name
    return [
        OffsetCommitResponsePartition(
            partition_index=p.partition_index,
            error_code=errors.get(TopicPartition(name, p.partition_index), rest),
        )
        for p in requested
    ]
