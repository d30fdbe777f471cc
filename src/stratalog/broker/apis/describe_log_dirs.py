"""DescribeLogDirs (key 35), versions 1-5.

v1 throttle time. v2 flexible. v3 top-level error. v4 bytes in all and usable (KIP-827). v5 whether a directory takes
no new partitions (KIP-1066).
"""

from collections.abc import Iterable
from typing import NamedTuple

from stratalog.broker.network.authorizer import Operation
from stratalog.broker.network.dispatch import Call
from stratalog.broker.partitions.hosting import Hosting
from stratalog.broker.partitions.moves import Move, Moves
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
Topics = dict[str, list[DescribeLogDirsPartition]]


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
    directories = call.needs.hosting.directories
    spaces = [await _space(directory) for directory in directories]
    found: dict[LogDirectory, Topics] = {directory: {} for directory in directories}
    # One look at each partition: a move may end meanwhile, and the partition must not be missing from both directories.
    async for hosted in call.pace.each(call.needs.hosting.all()):
        name = hosted.name
        if wanted is None or name.partition in wanted.get(name.topic, ()):
            topics = found.setdefault(hosted.directory, {})
            topics.setdefault(name.topic, []).append(_partition(hosted))
    return DescribeLogDirsResponse(
        error_code=ErrorCode.none,
        results=[
            _result(directory, space, found[directory], call.needs.moves.to(directory), wanted)
            for directory, space in zip(directories, spaces, strict=True)
        ],
    )


async def _space(directory: LogDirectory) -> tuple[int, int] | ErrorCode:
    """Return the bytes of the drive and its free ones; the error of a failed directory."""
    try:
        return await directory.space()
    except Rejected as error:
        return error.code


def _result(
    directory: LogDirectory,
    space: tuple[int, int] | ErrorCode,
    topics: Topics,
    moves: Iterable[Move],
    wanted: Wanted,
) -> DescribeLogDirsResult:
    if isinstance(space, ErrorCode):
        return DescribeLogDirsResult(
            error_code=space,
            log_dir=directory.path,
            topics=[],
            total_bytes=-1,
            usable_bytes=-1,
            is_cordoned=directory.is_cordoned,
        )
    for move in moves:
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
        total_bytes=space[0],
        usable_bytes=space[1],
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
