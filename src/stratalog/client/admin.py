"""What administration asks of a cluster, as `Call`s: partitions, settings, sizes, groups.

In: plain arguments. Out: calls in the manner of `calls.py`, whose answers are small dataclasses. It never routes: a
group's calls belong to its coordinator, sizes to every broker.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from stratalog.client.apis import (
    ALTER_REPLICA_LOG_DIRS,
    CREATE_PARTITIONS,
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    DESCRIBE_LOG_DIRS,
    FIND_COORDINATOR,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_GROUPS,
    OFFSET_COMMIT,
    OFFSET_FETCH,
)
from stratalog.client.calls import Call, error_of
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.assignment import decode_assignment
from stratalog.wire.envelope import request

_TIMEOUT_MS = 30_000
Offsets = dict[tuple[str, int], int]
"""(topic, partition) -> offset."""


class Change(IntEnum):
    """What becomes of a setting; the numbers are Kafka's."""

    SET = 0
    DELETE = 1


@dataclass(frozen=True, slots=True)
class Altered:
    """What came of one change, to a topic or a resource or a group."""

    name: str
    error: ErrorCode
    message: str | None


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group as its coordinator lists it; `state` is empty where the broker does not tell."""

    group_id: str
    protocol_type: str
    state: str


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group; `assigned` is empty where it has nothing, or where its protocol is not the consumers'."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assigned: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """A group as its coordinator describes it; one that is not there is Dead."""

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
    """A log directory of a broker; bytes in all and free are -1 where it does not tell."""

    path: str
    error: ErrorCode
    total_bytes: int
    free_bytes: int
    replicas: tuple[LogReplica, ...]


def _checked(code: int, what: str) -> None:
    if code:
        raise Rejected(error_of(code), f"{what}: {error_of(code).name}")


def create_partitions(topic: str, count: int) -> Call[Altered]:
    """Let a topic have `count` partitions in all."""

    def build(version: int) -> Any:
        types = request(CREATE_PARTITIONS, version)
        wanted = types.CreatePartitionsTopic(name=topic, count=count, assignments=None)
        return types.CreatePartitionsRequest(
            topics=[wanted], timeout=_TIMEOUT_MS, validate_only=False
        )

    def read(body: Any) -> Altered:
        (result,) = body.results
        return Altered(topic, error_of(result.error_code), result.error_message)

    return Call(CREATE_PARTITIONS, build, read)


def alter_configs(
    resource_type: int, name: str, changes: Mapping[str, str | None]
) -> Call[Altered]:
    """Set settings of a topic or broker, and give those that are None their default back; the others stay."""

    def build(version: int) -> Any:
        types = request(INCREMENTAL_ALTER_CONFIGS, version)
        configs = [
            types.AlterableConfig(
                name=key,
                config_operation=Change.DELETE if value is None else Change.SET,
                value=value,
            )
            for key, value in changes.items()
        ]
        resource = types.AlterConfigsResource(
            resource_type=resource_type, resource_name=name, configs=configs
        )
        return types.IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)

    def read(body: Any) -> Altered:
        (answer,) = body.responses
        return Altered(name, error_of(answer.error_code), answer.error_message)

    return Call(INCREMENTAL_ALTER_CONFIGS, build, read)


def log_directories(topic: str | None = None) -> Call[list[LogDirectory]]:
    """The log directories of one broker, with what they hold (of one topic, or of all)."""

    def build(version: int) -> Any:
        types = request(DESCRIBE_LOG_DIRS, version)
        return types.DescribeLogDirsRequest(topics=None)

    def read(body: Any) -> list[LogDirectory]:
        _checked(getattr(body, "error_code", 0), "log directories")
        return [
            LogDirectory(
                found.log_dir,
                error_of(found.error_code),
                getattr(found, "total_bytes", -1),
                getattr(found, "usable_bytes", -1),
                tuple(
                    LogReplica(
                        of.name,
                        int(one.partition_index),
                        int(one.partition_size),
                        int(one.offset_lag),
                        one.is_future_key,
                    )
                    for of in found.topics
                    if topic in {None, of.name}
                    for one in of.partitions
                ),
            )
            for found in body.results
        ]

    return Call(DESCRIBE_LOG_DIRS, build, read)


def move_replica(topic: str, partition: int, path: str) -> Call[Altered]:
    """Have a broker move its replica of a partition to another of its log directories; answered before it has."""

    def build(version: int) -> Any:
        types = request(ALTER_REPLICA_LOG_DIRS, version)
        wanted = types.AlterReplicaLogDirTopic(name=topic, partitions=[partition])
        return types.AlterReplicaLogDirsRequest(
            dirs=[types.AlterReplicaLogDir(path=path, topics=[wanted])]
        )

    def read(body: Any) -> Altered:
        ((answer,),) = (found.partitions for found in body.results)
        return Altered(f"{topic}-{partition}", error_of(answer.error_code), None)

    return Call(ALTER_REPLICA_LOG_DIRS, build, read)


def find_coordinator(group: str) -> Call[int]:
    """Node id of a group's coordinator."""

    def build(version: int) -> Any:
        types = request(FIND_COORDINATOR, version)
        return types.FindCoordinatorRequest(key_type=0, coordinator_keys=[group])

    def read(body: Any) -> int:
        (found,) = body.coordinators
        _checked(found.error_code, f"coordinator of {group}")
        return int(found.node_id)

    return Call(FIND_COORDINATOR, build, read)


def list_groups() -> Call[list[ListedGroup]]:
    """The groups that one broker coordinates."""

    def build(version: int) -> Any:
        types = request(LIST_GROUPS, version)
        return types.ListGroupsRequest(states_filter=[], types_filter=[])

    def read(body: Any) -> list[ListedGroup]:
        _checked(body.error_code, "groups")
        return [
            ListedGroup(one.group_id, one.protocol_type, getattr(one, "group_state", ""))
            for one in body.groups
        ]

    return Call(LIST_GROUPS, build, read)


def describe_group(group: str) -> Call[DescribedGroup]:
    """A group's state and members."""

    def build(version: int) -> Any:
        types = request(DESCRIBE_GROUPS, version)
        return types.DescribeGroupsRequest(groups=[group], include_authorized_operations=False)

    def read(body: Any) -> DescribedGroup:
        (found,) = body.groups
        members = tuple(
            GroupMember(
                one.member_id,
                getattr(one, "group_instance_id", None),
                one.client_id,
                one.client_host,
                _assigned(found.protocol_type, one.member_assignment),
            )
            for one in found.members
        )
        return DescribedGroup(
            group, error_of(found.error_code), found.group_state, found.protocol_data, members
        )

    return Call(DESCRIBE_GROUPS, build, read)


def _assigned(protocol_type: str, data: bytes) -> tuple[tuple[str, int], ...]:
    return decode_assignment(memoryview(data)) if protocol_type == "consumer" else ()


def delete_group(group: str) -> Call[Altered]:
    """Delete a group that has no members, its offsets with it."""

    def build(version: int) -> Any:
        return request(DELETE_GROUPS, version).DeleteGroupsRequest(groups_names=[group])

    def read(body: Any) -> Altered:
        (result,) = body.results
        return Altered(group, error_of(result.error_code), None)

    return Call(DELETE_GROUPS, build, read)


def fetch_offsets(group: str) -> Call[Offsets]:
    """Every offset that a group has committed."""

    def build(version: int) -> Any:
        types = request(OFFSET_FETCH, version)
        wanted = types.OffsetFetchRequestGroup(
            group_id=group, topics=None, member_id=None, member_epoch=-1
        )
        return types.OffsetFetchRequest(groups=[wanted], require_stable=False)

    def read(body: Any) -> Offsets:
        (found,) = body.groups
        _checked(found.error_code, f"offsets of {group}")
        return {
            (topic.name, int(one.partition_index)): int(one.committed_offset)
            for topic in found.topics
            for one in topic.partitions
            if one.committed_offset >= 0
        }

    return Call(OFFSET_FETCH, build, read)


def commit_offsets(
    group: str, offsets: Mapping[tuple[str, int], int], member_id: str = "", generation: int = -1
) -> Call[None]:
    """Commit offsets as a member of a generation, or as one who is none: then only a group without members takes
    them.
    """

    def build(version: int) -> Any:
        types = request(OFFSET_COMMIT, version)
        topics: dict[str, list[Any]] = {}
        for (topic, index), offset in offsets.items():
            topics.setdefault(topic, []).append(
                types.OffsetCommitRequestPartition(
                    partition_index=index,
                    committed_offset=offset,
                    committed_leader_epoch=-1,
                    committed_metadata="",
                )
            )
        return types.OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=None,
            topics=[
                types.OffsetCommitRequestTopic(name=name, partitions=found)
                for name, found in topics.items()
            ],
        )

    def read(body: Any) -> None:
        for topic in body.topics:
            for one in topic.partitions:
                _checked(one.error_code, f"offset of {topic.name}-{one.partition_index}")

    return Call(OFFSET_COMMIT, build, read)
