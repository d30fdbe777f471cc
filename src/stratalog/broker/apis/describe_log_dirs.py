"""DescribeLogDirs (key 35), versions 1-5.

v1 throttle time. v2 flexible. v3 top-level error. v4 bytes in all and usable (KIP-827). v5 whether a directory takes
no new partitions (KIP-1066).
"""

from typing import NamedTuple

from stratalog.broker.network.authorizer import Operation
from stratalog.broker.network.dispatch import Call
from stratalog.broker.partitions.hosting import Hosting
from stratalog.broker.partitions.moves import Moves
from stratalog.broker.partitions.partition import HostedPartition
from stratalog.broker.storage.directory import LogDirectory
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

Wanted = dict[str, set[int]] | None


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    hosting: Hosting
    moves: Moves


async def handle(call: Call[DescribeLogDirsRequest, Needs]) -> DescribeLogDirsResponse:
    """Return each log directory with the requested partitions in it, or all, and their sizes."""
    if not call.allows_cluster(Operation.DESCRIBE):
        denied = ErrorCode.cluster_authorization_failed
        return DescribeLogDirsResponse(error_code=denied, results=[])
    wanted: Wanted = None
    if call.body.topics is not None:
        wanted = {}
        async for topic in call.pace.each(call.body.topics):
            indexes = wanted.setdefault(topic.topic, set())
            async for index in call.pace.each(topic.partitions):
                indexes.add(index)
    return DescribeLogDirsResponse(
        error_code=ErrorCode.none,
        results=[
            await _directory(call, directory, wanted)
            for directory in call.needs.hosting.directories
        ],
    )


async def _directory(
    call: Call[DescribeLogDirsRequest, Needs], directory: LogDirectory, wanted: Wanted
) -> DescribeLogDirsResult:
    try:
        total, free = await directory.space()
    except Rejected as error:
        return DescribeLogDirsResult(
            error_code=error.code,
            log_dir=directory.path,
            topics=[],
            total_bytes=-1,
            usable_bytes=-1,
            is_cordoned=directory.is_cordoned,
        )
    topics: dict[str, list[DescribeLogDirsPartition]] = {}
    async for hosted in call.pace.each(call.needs.hosting.all()):
        name = hosted.name
        is_requested = wanted is None or name.partition in wanted.get(name.topic, ())
        if is_requested and hosted.directory is directory:
            topics.setdefault(name.topic, []).append(_partition(hosted))
    for move in call.needs.moves.to(directory):
        name = move.hosted.name
        if wanted is None or name.partition in wanted.get(name.topic, ()):
            topics.setdefault(name.topic, []).append(
                DescribeLogDirsPartition(
                    partition_index=name.partition,
                    partition_size=move.size,
                    offset_lag=move.lag,
                    is_future_key=True,
                )
            )
    return DescribeLogDirsResult(
        error_code=ErrorCode.none,
        log_dir=directory.path,
        topics=[
            DescribeLogDirsTopic(name=name, partitions=partitions)
            for name, partitions in sorted(topics.items())
        ],
        total_bytes=total,
        usable_bytes=free,
        is_cordoned=directory.is_cordoned,
    )


def _partition(hosted: HostedPartition) -> DescribeLogDirsPartition:
    log = hosted.log
    return DescribeLogDirsPartition(
        partition_index=hosted.name.partition,
        partition_size=log.size,
        offset_lag=max(hosted.high_watermark - log.log_end_offset, 0),
        is_future_key=False,
    )
