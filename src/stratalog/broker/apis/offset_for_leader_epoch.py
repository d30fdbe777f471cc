"""OffsetForLeaderEpoch (key 23), versions 2-4.

v2 current leader epoch, throttle time. v3 replica id. v4 flexible.
"""

from typing import NamedTuple

from stratalog.broker.network.authorizer import Operation, Resource
from stratalog.broker.network.dispatch import Call
from stratalog.broker.partitions.hosting import Hosting
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    hosting: Hosting


async def handle(call: Call[OffsetForLeaderEpochRequest, Needs]) -> OffsetForLeaderEpochResponse:
    """Return the end of an epoch in each partition's log, which a client compares with its own (KIP-320)."""
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    _partition(call, topic.topic, requested)
                    async for requested in call.pace.each(topic.partitions)
                ],
            )
            async for topic in call.pace.each(call.body.topics)
        ]
    )


def _partition(
    call: Call[OffsetForLeaderEpochRequest, Needs], topic: str, requested: OffsetForLeaderPartition
) -> EpochEndOffset:
    code, epoch, end_offset = ErrorCode.none, -1, -1
    try:
        if not call.allows_cluster(Operation.CLUSTER_ACTION):
            call.authorize(Operation.DESCRIBE, Resource.TOPIC, topic)
        hosted = call.needs.hosting.get(topic, requested.partition)
        hosted.check_hosted()
        hosted.replica.check_leader(requested.current_leader_epoch)
        epoch, end_offset = hosted.log.offset_for_epoch(requested.leader_epoch)
    except Rejected as error:
        code = error.code
    return EpochEndOffset(
        error_code=code, partition=requested.partition, leader_epoch=epoch, end_offset=end_offset
    )
