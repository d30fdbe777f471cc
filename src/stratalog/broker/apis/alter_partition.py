"""AlterPartition (key 56), versions 2-3.

v2 topic ids (KIP-841). v3 the broker epochs of the ISR's members (KIP-903). On a controller's listener only.
"""

from itertools import groupby
from typing import Final, NamedTuple

from stratalog.broker.coordination.controller_channel import ControllerChannel
from stratalog.broker.network.authorizer import Operation
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode, Rejected
from stratalog.quorum.isr import ANY_EPOCH, IsrAnswer, IsrChange
from stratalog.wire.ids import TopicIdPartition
from stratalog.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
)

_NONE: Final = 0
_EPOCHS_FROM: Final = 3


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    controller: ControllerChannel


async def handle(call: Call[AlterPartitionRequest, Needs]) -> AlterPartitionResponse:
    """Change the ISRs of partitions that the broker leads."""
    body = call.body
    requested = [
        IsrChange(
            TopicIdPartition(topic.topic_id, one.partition_index),
            one.leader_epoch,
            one.partition_epoch,
            _members(call.version, one),
            one.leader_recovery_state,
        )
        for topic in body.topics
        for one in topic.partitions
    ]
    try:
        if not call.allows_cluster(Operation.CLUSTER_ACTION):
            raise Rejected(ErrorCode.cluster_authorization_failed, "CLUSTER_ACTION is not allowed")
        answers = await call.needs.controller.alter_isrs(
            body.broker_id, body.broker_epoch, requested
        )
    except Rejected as error:
        return AlterPartitionResponse(error_code=error.code, topics=[])
    by_topic = groupby(answers, key=lambda answer: answer.key.topic_id)
    return AlterPartitionResponse(
        error_code=ErrorCode.none,
        topics=[
            AlterPartitionResponseTopicData(topic_id=topic_id, partitions=[_row(one) for one in of])
            for topic_id, of in by_topic
        ],
    )


def _members(
    version: int, requested: AlterPartitionRequestPartitionData
) -> tuple[tuple[int, int], ...]:
    if version < _EPOCHS_FROM:
        return tuple((broker, ANY_EPOCH) for broker in requested.new_isr)
    return tuple((one.broker_id, one.broker_epoch) for one in requested.new_isr_with_epochs)


def _row(answer: IsrAnswer) -> AlterPartitionResponsePartitionData:
    now = answer.partition
    if now is None:
        return AlterPartitionResponsePartitionData(
            partition_index=answer.key.partition,
            error_code=answer.error,
            leader_id=_NONE,
            leader_epoch=_NONE,
            isr=(),
            partition_epoch=_NONE,
        )
    return AlterPartitionResponsePartitionData(
        partition_index=answer.key.partition,
        error_code=answer.error,
        leader_id=now.leader,
        leader_epoch=now.leader_epoch,
        isr=now.isr,
        leader_recovery_state=now.leader_recovery_state,
        partition_epoch=now.partition_epoch,
    )
