"""Administration of a cluster as `Call`s: partitions, settings, sizes, groups.

In: plain arguments. Out: calls in the manner of `calls.py`, whose answers are small dataclasses. It never routes: a
group's calls go to its coordinator, sizes come from every broker.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from stratalog.client.calls import Call, asking, error_of
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.assignment import decode_assignment
from stratalog.wire.ids import TopicPartition
from stratalog.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from stratalog.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from stratalog.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from stratalog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from stratalog.wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from stratalog.wire.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from stratalog.wire.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from stratalog.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from stratalog.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from stratalog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from stratalog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)

_TIMEOUT_MS = 30_000
OF_GROUP, OF_TRANSACTIONAL_ID = 0, 1
"""Kinds of coordinators; the numbers are Kafka's."""
Offsets = dict[TopicPartition, int]


class Change(IntEnum):
    """The kind of change to a setting; the numbers are Kafka's."""

    SET = 0
    DELETE = 1


@dataclass(frozen=True, slots=True)
class Altered:
    """The result of one change to a topic, a resource or a group."""

    name: str
    error: ErrorCode
    message: str | None


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group as its coordinator lists it; `state` is empty where the broker does not report it."""

    group_id: str
    protocol_type: str
    state: str


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group; `assigned` is empty without an assignment, or for a protocol other than the consumers'."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assigned: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """A group as its coordinator describes it; a missing group is Dead."""

    group_id: str
    error: ErrorCode
    state: str
    protocol: str
    members: tuple[GroupMember, ...]


@dataclass(frozen=True, slots=True)
class LogReplica:
    """A partition's copy in a log directory: bytes, offsets behind; `is_future` while it moves there."""

    topic: str
    partition: int
    size: int
    lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """A log directory of a broker; total and free bytes are -1 where the broker does not report them."""

    path: str
    error: ErrorCode
    total_bytes: int
    free_bytes: int
    replicas: tuple[LogReplica, ...]
    is_cordoned: bool = False
    """Whether it takes no new replicas."""


def _checked(code: int, what: str) -> None:
    if code:
        raise Rejected(error_of(code), f"{what}: {error_of(code).name}")


def create_partitions(topic: str, count: int) -> Call[Altered]:
    """Raise a topic's number of partitions to `count`."""
    wanted = CreatePartitionsTopic(name=topic, count=count, assignments=None)

    def read(body: CreatePartitionsResponse) -> Altered:
        (result,) = body.results
        return Altered(topic, error_of(result.error_code), result.error_message)

    request = CreatePartitionsRequest(topics=[wanted], timeout_ms=_TIMEOUT_MS, validate_only=False)
    return asking(request, read)


def alter_configs(
    resource_type: int,
    name: str,
    changes: Mapping[str, str | None],
    *,
    validate_only: bool = False,
) -> Call[Altered]:
    """Set settings of a topic or broker; None resets a setting to its default, and other settings stay.

    With `validate_only` the broker checks the changes and makes none.
    """
    configs = [
        AlterableConfig(
            name=key,
            config_operation=Change.DELETE if value is None else Change.SET,
            value=value,
        )
        for key, value in changes.items()
    ]
    resource = AlterConfigsResource(
        resource_type=resource_type, resource_name=name, configs=configs
    )

    def read(body: IncrementalAlterConfigsResponse) -> Altered:
        (answer,) = body.responses
        return Altered(name, error_of(answer.error_code), answer.error_message)

    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    return asking(request, read)


def delete_records(before: Mapping[TopicPartition, int]) -> Call[dict[TopicPartition, ErrorCode]]:
    """Delete the records below an offset (-1: all) of partitions that one broker leads; return each one's error."""
    topics: dict[str, list[DeleteRecordsPartition]] = {}
    for (topic, index), offset in before.items():
        row = DeleteRecordsPartition(partition_index=index, offset=offset)
        topics.setdefault(topic, []).append(row)

    def read(body: DeleteRecordsResponse) -> dict[TopicPartition, ErrorCode]:
        return {
            TopicPartition(topic.name, one.partition_index): error_of(one.error_code)
            for topic in body.topics
            for one in topic.partitions
        }

    wanted = [DeleteRecordsTopic(name=name, partitions=rows) for name, rows in topics.items()]
    return asking(DeleteRecordsRequest(topics=wanted, timeout_ms=_TIMEOUT_MS), read)


def log_directories(topic: str | None = None) -> Call[list[LogDirectory]]:
    """Return the log directories of one broker, with what they hold (of one topic, or of all)."""

    def read(body: DescribeLogDirsResponse) -> list[LogDirectory]:
        _checked(body.error_code, "log directories")
        return [
            LogDirectory(
                found.log_dir,
                error_of(found.error_code),
                found.total_bytes,
                found.usable_bytes,
                tuple(
                    LogReplica(
                        of.name,
                        one.partition_index,
                        one.partition_size,
                        one.offset_lag,
                        one.is_future_key,
                    )
                    for of in found.topics
                    if topic in {None, of.name}
                    for one in of.partitions
                ),
                found.is_cordoned,
            )
            for found in body.results
        ]

    return asking(DescribeLogDirsRequest(topics=None), read)


def move_replica(topic: str, partition: int, path: str) -> Call[Altered]:
    """Begin to move a replica to another log directory of its broker; the answer comes before the end of the move."""
    wanted = AlterReplicaLogDirTopic(name=topic, partitions=[partition])

    def read(body: AlterReplicaLogDirsResponse) -> Altered:
        ((answer,),) = (found.partitions for found in body.results)
        return Altered(f"{topic}-{partition}", error_of(answer.error_code), None)

    request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=[wanted])])
    return asking(request, read)


def find_coordinator(key: str, key_type: int = OF_GROUP) -> Call[int]:
    """Return node id of the coordinator of a group, or of a transactional id (OF_TRANSACTIONAL_ID)."""

    def read(body: FindCoordinatorResponse) -> int:
        (found,) = body.coordinators
        _checked(found.error_code, f"coordinator of {key}")
        return found.node_id

    return asking(FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key]), read)


def list_groups() -> Call[list[ListedGroup]]:
    """Return the groups that one broker coordinates."""

    def read(body: ListGroupsResponse) -> list[ListedGroup]:
        _checked(body.error_code, "groups")
        return [
            ListedGroup(one.group_id, one.protocol_type, one.group_state) for one in body.groups
        ]

    return asking(ListGroupsRequest(), read)


def describe_group(group: str) -> Call[DescribedGroup]:
    """Return a group's state and members."""

    def read(body: DescribeGroupsResponse) -> DescribedGroup:
        (found,) = body.groups
        members = tuple(
            GroupMember(
                one.member_id,
                one.group_instance_id,
                one.client_id,
                one.client_host,
                _assigned(found.protocol_type, one.member_assignment),
            )
            for one in found.members
        )
        return DescribedGroup(
            group, error_of(found.error_code), found.group_state, found.protocol_data, members
        )

    return asking(DescribeGroupsRequest(groups=[group]), read)


def _assigned(protocol_type: str, data: bytes) -> tuple[TopicPartition, ...]:
    return decode_assignment(memoryview(data)) if protocol_type == "consumer" else ()


def delete_group(group: str) -> Call[Altered]:
    """Delete a group without members, and its offsets."""

    def read(body: DeleteGroupsResponse) -> Altered:
        (result,) = body.results
        return Altered(group, error_of(result.error_code), None)

    return asking(DeleteGroupsRequest(groups_names=[group]), read)


def fetch_offsets(group: str, *, stable: bool = False) -> Call[Offsets]:
    """Return every offset that a group has committed.

    `stable`: Rejected(UNSTABLE_OFFSET_COMMIT) while a transaction that has one of them is still ending (KIP-447).
    """

    def read(body: OffsetFetchResponse) -> Offsets:
        (found,) = body.groups
        _checked(found.error_code, f"offsets of {group}")
        rows = [(topic.name, one) for topic in found.topics for one in topic.partitions]
        for name, one in rows if stable else ():
            _checked(one.error_code, f"offset of {group} for {name}-{one.partition_index}")
        return {
            TopicPartition(name, one.partition_index): one.committed_offset
            for name, one in rows
            if one.committed_offset >= 0
        }

    wanted = OffsetFetchRequestGroup(group_id=group, topics=None)
    return asking(OffsetFetchRequest(groups=[wanted], require_stable=stable), read)


def commit_offsets(
    group: str, offsets: Mapping[TopicPartition, int], member_id: str = "", generation: int = -1
) -> Call[None]:
    """Commit offsets as a member of a generation, or without one: then only a group without members accepts
    them.
    """
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for (topic, index), offset in offsets.items():
        row = OffsetCommitRequestPartition(
            partition_index=index, committed_offset=offset, committed_metadata=""
        )
        topics.setdefault(topic, []).append(row)
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=[
            OffsetCommitRequestTopic(name=name, partitions=rows) for name, rows in topics.items()
        ],
    )

    def read(body: OffsetCommitResponse) -> None:
        for topic in body.topics:
            for one in topic.partitions:
                _checked(one.error_code, f"offset of {topic.name}-{one.partition_index}")

    return asking(request, read)
