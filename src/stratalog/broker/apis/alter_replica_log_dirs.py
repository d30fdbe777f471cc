"""AlterReplicaLogDirs (key 34), versions 1-2.

v1 throttle time. v2 flexible. The answer leaves at once: DescribeLogDirs shows the progress of a move (KIP-113).
"""

from typing import NamedTuple

from stratalog.broker.network.authorizer import Operation
from stratalog.broker.network.dispatch import Call
from stratalog.broker.partitions.moves import Moves
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.ids import TopicPartition
from stratalog.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    moves: Moves


async def handle(call: Call[AlterReplicaLogDirsRequest, Needs]) -> AlterReplicaLogDirsResponse:
    """Begin to move each partition to the directory that the request names; to the last one of several."""
    pace = call.pace
    wanted: dict[TopicPartition, str] = {}
    async for directory in pace.each(call.body.dirs):
        async for topic in pace.each(directory.topics):
            async for index in pace.each(topic.partitions):
                wanted[TopicPartition(topic.name, index)] = directory.path
    rows: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    async for (name, index), path in pace.each(wanted.items()):
        row = AlterReplicaLogDirPartitionResult(
            partition_index=index, error_code=await _move(call, name, index, path)
        )
        rows.setdefault(name, []).append(row)
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions)
            async for name, partitions in pace.each(rows.items())
        ]
    )


async def _move(
    call: Call[AlterReplicaLogDirsRequest, Needs], topic: str, index: int, path: str
) -> ErrorCode:
    if not call.allows_cluster(Operation.ALTER):
        return ErrorCode.cluster_authorization_failed
    try:
        await call.needs.moves.ask(topic, index, path)
    except Rejected as error:
        return error.code
    return ErrorCode.none
