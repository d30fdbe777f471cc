"""DeleteRecords (key 21), versions 0-2.

v1 the same. v2 flexible.
"""

from typing import Final, NamedTuple

from stratalog.broker.coordination.cluster_view import ClusterView
from stratalog.broker.network.authorizer import Operation, Resource
from stratalog.broker.network.dispatch import Call
from stratalog.broker.partitions.hosting import Hosting
from stratalog.broker.partitions.partition import HostedPartition
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.ids import TopicPartition
from stratalog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

_ALL: Final = -1
"""Everything up to the high watermark."""


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    cluster: ClusterView
    hosting: Hosting


async def handle(call: Call[DeleteRecordsRequest, Needs]) -> DeleteRecordsResponse:
    """Delete records below the requested offsets; answer once no crash can bring them back.

    The last of several offsets for one partition counts. Retention's next round deletes the files of whole segments,
    and the next cycle of the tier their objects.
    """
    pace = call.pace
    requested: dict[TopicPartition, DeleteRecordsPartition] = {}
    rows: dict[str, list[DeleteRecordsPartitionResult]] = {}
    async for topic in pace.each(call.body.topics):
        rows[topic.name] = []
        async for one in pace.each(topic.partitions):
            requested[TopicPartition(topic.name, one.partition_index)] = one
    raised = [
        (name, index, _raise(call, name, one))
        async for (name, index), one in pace.each(requested.items())
    ]
    failed = await _checkpoint(call, [one for *_, one in raised if not isinstance(one, Rejected)])
    async for name, index, result in pace.each(raised):
        error = result if isinstance(result, Rejected) else failed.get(result.directory.path)
        rows[name].append(_row(index, result, error))
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(name=name, partitions=partitions)
            async for name, partitions in pace.each(rows.items())
        ]
    )


def _raise(
    call: Call[DeleteRecordsRequest, Needs], topic: str, requested: DeleteRecordsPartition
) -> HostedPartition | Rejected:
    """Raise the log's start; return the error where the broker refuses."""
    try:
        call.authorize(Operation.DELETE, Resource.TOPIC, topic)
        if topic in call.needs.cluster.internal_topics:
            raise Rejected(ErrorCode.invalid_topic_exception, f"{topic} is the broker's own")
        hosted = call.needs.hosting.get(topic, requested.partition_index)
        hosted.check_hosted()
        hosted.replica.check_leader()
        if "delete" not in hosted.log.config.cleanup_policy:
            raise Rejected(
                ErrorCode.policy_violation,
                f"{hosted.name} is compacted: records go by their keys",
            )
        end = hosted.high_watermark
        offset = end if requested.offset == _ALL else requested.offset
        if not 0 <= offset <= end:
            raise Rejected(ErrorCode.offset_out_of_range, f"{hosted.name} is committed up to {end}")
        hosted.log.raise_log_start(offset)
        hosted.advanced()  # followers receive it with their next fetch
    except Rejected as error:
        return error.with_traceback(None)  # otherwise the traceback keeps the whole request alive
    return hosted


async def _checkpoint(
    call: Call[DeleteRecordsRequest, Needs], raised: list[HostedPartition]
) -> dict[str, Rejected]:
    """Checkpoint the log starts; return the errors by directory."""
    failed: dict[str, Rejected] = {}
    for directory in {hosted.directory for hosted in raised}:
        try:
            await call.needs.hosting.checkpoints.write(directory)
        except Rejected as error:
            failed[directory.path] = error
    return failed


def _row(
    index: int,
    result: HostedPartition | Rejected,
    error: Rejected | None,
) -> DeleteRecordsPartitionResult:
    if error is not None or isinstance(result, Rejected):
        assert error is not None
        return DeleteRecordsPartitionResult(
            partition_index=index, low_watermark=-1, error_code=error.code
        )
    return DeleteRecordsPartitionResult(
        partition_index=index,
        low_watermark=result.log.log_start_offset,
        error_code=ErrorCode.none,
    )
