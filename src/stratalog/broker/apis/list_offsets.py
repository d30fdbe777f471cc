"""ListOffsets (key 2), versions 1-11.

v1 one offset per partition. v2 isolation level. v4 leader epoch. v6 flexible. v7 max timestamp (-3). v8 earliest
local (-4, KIP-405). v9 latest tiered (-5, KIP-1005). v10 timeout of a remote look-up (KIP-1075).
v11 earliest pending upload (-6, KIP-1023).
"""

import asyncio
from typing import Final, NamedTuple

from stratalog.broker.network.authorizer import Operation, Resource
from stratalog.broker.network.dispatch import Call
from stratalog.broker.partitions.hosting import Hosting
from stratalog.broker.partitions.partition import HostedPartition
from stratalog.broker.tier.reads import Reads
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.ids import TopicPartition
from stratalog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

_MAX_TIMESTAMP: Final = -3
_EARLIEST_LOCAL: Final = -4
_LATEST_TIERED: Final = -5
_EARLIEST_PENDING_UPLOAD: Final = -6
_OFFSET_NOT_AVAILABLE_FROM: Final = 5
_AT_ONCE: Final = 4
"""Look-ups of one request that wait for a drive or the bucket at the same time: as many as `remote.log.reader.threads`
by default. More would wait for a thread, and others' reads be refused (`remote.log.reader.max.pending.tasks`).
"""
_FIRST_VERSION: Final = {
    _MAX_TIMESTAMP: 7,
    _EARLIEST_LOCAL: 8,
    _LATEST_TIERED: 9,
    _EARLIEST_PENDING_UPLOAD: 11,
}


_Pending = asyncio.Task[ListOffsetsPartitionResponse]


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    hosting: Hosting
    reads: Reads


async def handle(call: Call[ListOffsetsRequest, Needs]) -> ListOffsetsResponse:
    """Return an offset, with its timestamp and leader epoch, for each requested partition and timestamp.

    A partition that the request names twice gets one answer, an error.
    """
    pace = call.pace
    requested: dict[TopicPartition, ListOffsetsPartition | None] = {}
    rows: dict[str, list[ListOffsetsPartitionResponse | _Pending]] = {}
    async for topic in pace.each(call.body.topics):
        rows[topic.name] = []
        async for one in pace.each(topic.partitions):
            key = TopicPartition(topic.name, one.partition_index)
            requested[key] = None if key in requested else one
    free = asyncio.Semaphore(_AT_ONCE)
    async with asyncio.TaskGroup() as group:
        async for (name, index), once in pace.each(requested.items()):
            if once is None:
                rows[name].append(_refused(index, ErrorCode.invalid_request))
            elif once.timestamp >= 0 or once.timestamp == _MAX_TIMESTAMP:
                await free.acquire()
                work = group.create_task(_partition(call, name, once))
                work.add_done_callback(lambda _: free.release())
                rows[name].append(work)
            else:
                rows[name].append(await _partition(call, name, once))
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=name,
                partitions=[
                    one.result() if isinstance(one, asyncio.Task) else one for one in found
                ],
            )
            async for name, found in pace.each(rows.items())
        ]
    )


def _refused(index: int, error: ErrorCode) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(
        partition_index=index, error_code=error, timestamp=-1, offset=-1, leader_epoch=-1
    )


async def _partition(
    call: Call[ListOffsetsRequest, Needs], topic: str, requested: ListOffsetsPartition
) -> ListOffsetsPartitionResponse:
    index = requested.partition_index
    try:
        call.authorize(Operation.DESCRIBE, Resource.TOPIC, topic)
        hosted: HostedPartition = call.needs.hosting.get(topic, index)
        hosted.replica.check_leader(requested.current_leader_epoch)
        offset, timestamp = await _find(call, hosted, requested.timestamp)
    except Rejected as error:
        return _refused(index, error.code)
    return ListOffsetsPartitionResponse(
        partition_index=index,
        error_code=ErrorCode.none,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=hosted.log.epochs.epoch_of(offset) if offset >= 0 else -1,
    )


async def _find(
    call: Call[ListOffsetsRequest, Needs], hosted: HostedPartition, timestamp: int
) -> tuple[int, int]:
    """Return (offset, timestamp); (-1, -1) where nothing matches."""
    if call.version < _FIRST_VERSION.get(timestamp, 0) or timestamp < _EARLIEST_PENDING_UPLOAD:
        raise Rejected(ErrorCode.unsupported_version, f"timestamp {timestamp}")
    end = hosted.last_stable_offset if call.body.isolation_level == 1 else hosted.high_watermark
    if call.body.replica_id >= 0:  # a follower: what is not committed is its concern, too
        end = hosted.log.log_end_offset
    found: tuple[int, int] | None
    match timestamp:
        case -1:  # latest
            if call.body.replica_id < 0:
                _check_end(hosted, call.version)
            return end, -1
        case -2:  # earliest
            return hosted.log.log_start_offset, -1
        case -4:  # earliest local
            return max(hosted.log.local_start_offset, hosted.log.log_start_offset), -1
        case -5:  # latest tiered
            return hosted.log.tiered_end - 1 if hosted.log.tiered_end > 0 else -1, -1
        case -6:  # earliest pending upload
            found = (_pending_upload(hosted), -1)
        case -3:  # of the latest timestamp
            found = await call.needs.reads.max_timestamp(hosted)
        case _:
            found = await call.needs.reads.offset_for_timestamp(hosted, timestamp)
    if found is None or found[0] < end:
        return found or (-1, -1)
    # What was found is beyond what the client may read. Kafka: `ReplicaManager.fetchOffset`.
    if call.body.replica_id < 0:
        _check_end(hosted, call.version)
    return -1, -1


def _check_end(hosted: HostedPartition, version: int) -> None:
    """Refuse to say how far consumers may read while a new leader's high watermark is below the start of its epoch.

    The former leader may have answered a higher one. Raises OFFSET_NOT_AVAILABLE (KIP-207).
    """
    start = hosted.replica.epoch_start_offset
    if hosted.high_watermark < start:
        is_known = version >= _OFFSET_NOT_AVAILABLE_FROM
        code = ErrorCode.offset_not_available if is_known else ErrorCode.leader_not_available
        raise Rejected(code, f"{hosted.name}: the high watermark is below {start} yet")


def _pending_upload(hosted: HostedPartition) -> int:
    """Return the first offset that the bucket lacks, which may be the end; -1 where the topic has no tier, or its end
    is unknown here.
    """
    log = hosted.log
    if not log.config.remote_storage_enable:
        return -1
    if log.tiered_end == 0 and log.local_start_offset > log.log_start_offset:
        return -1
    return max(log.tiered_end, log.log_start_offset)
