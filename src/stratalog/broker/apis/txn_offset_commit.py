"""TxnOffsetCommit (key 28), versions 0-5.

v2 leader epoch. v3 flexible, the consumer's generation and member (KIP-447). v4 the same fields (KIP-890). v5 adds the
partition of the group's offsets to the transaction by itself: clients use it where `transaction.version` is 2.
"""

from typing import Final, NamedTuple

from stratalog.broker.coordination.cluster_view import ClusterView
from stratalog.broker.coordination.groups import OFFSETS_TOPIC, Groups
from stratalog.broker.coordination.verification import Verification
from stratalog.broker.network.authorizer import DENIED, Operation, Resource
from stratalog.broker.network.dispatch import Call
from stratalog.broker.partitions.hosting import Hosting
from stratalog.coordinators.messages import (
    CommitPartition,
    CommitTopic,
    OffsetCommit,
    OffsetCommitAnswer,
)
from stratalog.coordinators.placement import partition_for
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.ids import TopicPartition
from stratalog.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

_ABORTABLE_FROM: Final = 4
_IMPLICIT_FROM: Final = 5
_AS_COORDINATOR: Final = {
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
}
"""A group's client repeats its request after these codes (Kafka: `GroupCoordinatorService`)."""
_Request = Call[TxnOffsetCommitRequest, "Needs"]
_Errors = dict[TopicPartition, ErrorCode]


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    cluster: ClusterView
    groups: Groups
    hosting: Hosting
    verification: Verification


async def handle(call: _Request) -> TxnOffsetCommitResponse:
    """Add offsets of a group to the producer's transaction; they count once that is committed."""
    topics = call.body.topics
    keys = (
        TopicPartition(one.name, part.partition_index) for one in topics for part in one.partitions
    )
    try:
        errors = await _commit(call)
    except Rejected as error:
        errors = {key: error.code async for key in call.pace.each(keys)}
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=one.partition_index,
                        error_code=errors[TopicPartition(topic.name, one.partition_index)],
                    )
                    async for one in call.pace.each(topic.partitions)
                ],
            )
            async for topic in call.pace.each(topics)
        ]
    )


async def _commit(call: _Request) -> _Errors:
    body = call.body
    call.authorize(Operation.WRITE, Resource.TRANSACTIONAL_ID, body.transactional_id)
    call.authorize(Operation.READ, Resource.GROUP, body.group_id)
    errors: _Errors = {}
    existing = [await _existing(call, topic, errors) async for topic in call.pace.each(body.topics)]
    request = OffsetCommit(
        group_id=body.group_id,
        topics=tuple(topic for topic in existing if topic.partitions),
        generation_id=body.generation_id,
        member_id=body.member_id,
        group_instance_id=body.group_instance_id,
        in_transaction=True,
    )
    if request.topics:
        producer = (body.producer_id, body.producer_epoch)
        answer = await _verified(call, request, producer)
        for topic in answer.topics:
            errors |= {TopicPartition(topic.name, one.index): one.error for one in topic.partitions}
    return errors


async def _verified(
    call: _Request, request: OffsetCommit, producer: tuple[int, int]
) -> OffsetCommitAnswer:
    """Commit once the coordinator has the group's partition in the transaction (KIP-890)."""
    needs = call.needs
    topic = needs.cluster.topic(OFFSETS_TOPIC)
    if topic is None:
        raise Rejected(ErrorCode.coordinator_not_available, f"{OFFSETS_TOPIC} does not exist")
    index = partition_for(request.group_id, len(topic.partitions))
    try:
        return await needs.verification.run(
            needs.hosting.get(OFFSETS_TOPIC, index),
            call.body.transactional_id,
            producer,
            lambda: needs.groups.commit_in_transaction(request, producer),
            abortable=call.version >= _ABORTABLE_FROM,
            adds=call.version >= _IMPLICIT_FROM,
        )
    except Rejected as error:
        code = _AS_COORDINATOR.get(error.code)
        if code is None:
            raise
        raise Rejected(code, error.message) from error


async def _existing(
    call: _Request, topic: TxnOffsetCommitRequestTopic, errors: _Errors
) -> CommitTopic:
    """Return the partitions of a topic that exist and that the client may read; note the errors of the others."""
    found = call.needs.cluster.topic(topic.name)
    error = ErrorCode.unknown_topic_or_partition
    if not call.allows(Operation.READ, Resource.TOPIC, topic.name):
        found, error = None, DENIED[Resource.TOPIC]
    partitions = []
    async for one in call.pace.each(topic.partitions):
        if found is None or one.partition_index not in found.partitions:
            errors[TopicPartition(topic.name, one.partition_index)] = error
            continue
        metadata = one.committed_metadata or ""
        partitions.append(
            CommitPartition(
                one.partition_index, one.committed_offset, one.committed_leader_epoch, metadata
            )
        )
    if found is None:
        return CommitTopic(topic.name, ())
    return CommitTopic(topic.name, tuple(partitions), found.id)
