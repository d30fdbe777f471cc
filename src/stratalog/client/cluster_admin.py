"""The cluster itself as `Call`s: brokers, placement of replicas, elections, the quorum.

In: plain arguments. Out: calls in the manner of `calls.py`, whose answers are small dataclasses. It never chooses a
placement.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from stratalog.client.calls import Call, asking, error_of
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.ids import TopicPartition
from stratalog.wire.messages.add_raft_voter import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    Listener,
)
from stratalog.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from stratalog.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from stratalog.wire.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from stratalog.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
    ReplicaState,
)
from stratalog.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from stratalog.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from stratalog.wire.messages.remove_raft_voter import (
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
)

_FENCED_FROM: Final = 2
_NO_CONTROLLER: Final = "no active controller answers; a majority of the voters must run"
_METADATA_TOPIC: Final = "__cluster_metadata"
PREFERRED: Final = 0
UNCLEAN: Final = 1
"""Kinds of election; the numbers are Kafka's."""


@dataclass(frozen=True, slots=True)
class RegisteredBroker:
    """A broker that the cluster knows; a fenced one leads nothing and serves no client."""

    node_id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool


@dataclass(frozen=True, slots=True)
class PartitionOutcome:
    """The result of a change to one partition."""

    partition: TopicPartition
    error: ErrorCode
    message: str | None


@dataclass(frozen=True, slots=True)
class OngoingMove:
    """A reassignment under way: all replicas, with those that are added and removed."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class QuorumReplica:
    """A node's copy of the metadata log; times are epoch ms, -1 where the leader knows none."""

    node_id: int
    directory_id: UUID
    is_voter: bool
    log_end_offset: int
    last_fetch_ms: int
    last_caught_up_ms: int


@dataclass(frozen=True, slots=True)
class QuorumInfo:
    """The metadata quorum as its leader describes it."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    replicas: tuple[QuorumReplica, ...]

    def voter(self, node_id: int) -> "QuorumReplica | None":
        """Return the voter of that id, or None."""
        return next((one for one in self.replicas if one.is_voter and one.node_id == node_id), None)


def describe_cluster() -> Call[list[RegisteredBroker]]:
    """Return the registered brokers; the fenced ones too, where the version can name them (KIP-1073)."""

    def build(version: int) -> DescribeClusterRequest:
        return DescribeClusterRequest(
            include_cluster_authorized_operations=False,
            include_fenced_brokers=version >= _FENCED_FROM,
        )

    def read(body: DescribeClusterResponse) -> list[RegisteredBroker]:
        _checked(body.error_code, body.error_message, "brokers")
        return [
            RegisteredBroker(one.broker_id, one.host, one.port, one.rack, one.is_fenced)
            for one in body.brokers
        ]

    return Call(DescribeClusterRequest.KEY, build, read)


def finalized_features() -> Call[dict[str, int]]:
    """Return the cluster's feature levels by name (KIP-584), as one broker knows them."""

    def read(body: ApiVersionsResponse) -> dict[str, int]:
        return {one.name: one.max_version_level for one in body.finalized_features}

    request = ApiVersionsRequest(client_software_name="stratalog", client_software_version="0.1")
    return asking(request, read)


def alter_reassignments(
    wanted: Mapping[TopicPartition, Sequence[int] | None],
) -> Call[list[PartitionOutcome]]:
    """Give partitions other replicas; None cancels a running reassignment. The answer comes before any move."""
    topics: dict[str, list[ReassignablePartition]] = {}
    for (topic, index), replicas in wanted.items():
        row = ReassignablePartition(partition_index=index, replicas=replicas)
        topics.setdefault(topic, []).append(row)

    def read(body: AlterPartitionReassignmentsResponse) -> list[PartitionOutcome]:
        _checked(body.error_code, body.error_message, "reassignment")
        return [
            PartitionOutcome(
                TopicPartition(topic.name, one.partition_index),
                error_of(one.error_code),
                one.error_message,
            )
            for topic in body.responses
            for one in topic.partitions
        ]

    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=name, partitions=rows) for name, rows in topics.items()]
    )
    return asking(request, read)


def list_reassignments() -> Call[dict[TopicPartition, OngoingMove]]:
    """Return every reassignment under way."""

    def read(body: ListPartitionReassignmentsResponse) -> dict[TopicPartition, OngoingMove]:
        _checked(body.error_code, body.error_message, "reassignments")
        return {
            TopicPartition(topic.name, one.partition_index): OngoingMove(
                tuple(one.replicas), tuple(one.adding_replicas), tuple(one.removing_replicas)
            )
            for topic in body.topics
            for one in topic.partitions
        }

    return asking(ListPartitionReassignmentsRequest(topics=None), read)


def elect_leaders(
    kind: int, partitions: Sequence[TopicPartition] | None
) -> Call[list[PartitionOutcome]]:
    """Elect leaders of partitions (None: of all); PREFERRED, or UNCLEAN where no in-sync replica is left."""
    topics: dict[str, list[int]] = {}
    for topic, index in partitions or ():
        topics.setdefault(topic, []).append(index)
    wanted = [TopicPartitions(topic=name, partitions=rows) for name, rows in topics.items()]

    def read(body: ElectLeadersResponse) -> list[PartitionOutcome]:
        is_late = body.error_code == ErrorCode.request_timed_out
        _checked(body.error_code, _NO_CONTROLLER if is_late else None, "election")
        return [
            PartitionOutcome(
                TopicPartition(topic.topic, one.partition_id),
                error_of(one.error_code),
                one.error_message,
            )
            for topic in body.replica_election_results
            for one in topic.partition_result
        ]

    request = ElectLeadersRequest(
        election_type=kind, topic_partitions=None if partitions is None else wanted
    )
    return asking(request, read)


def describe_quorum() -> Call[QuorumInfo]:
    """Return the leader of the metadata log, its voters and observers."""
    partition = DescribeQuorumRequestPartitionData(partition_index=0)
    topic = DescribeQuorumRequestTopicData(topic_name=_METADATA_TOPIC, partitions=[partition])

    def read(body: DescribeQuorumResponse) -> QuorumInfo:
        _checked(body.error_code, body.error_message, "quorum")
        ((found,),) = (one.partitions for one in body.topics)
        _checked(found.error_code, found.error_message, "quorum")
        return QuorumInfo(
            found.leader_id,
            found.leader_epoch,
            found.high_watermark,
            (
                *(_replica(one, is_voter=True) for one in found.current_voters),
                *(_replica(one, is_voter=False) for one in found.observers),
            ),
        )

    return asking(DescribeQuorumRequest(topics=[topic]), read)


def add_voter(
    node_id: int, directory_id: UUID, listener: tuple[str, str, int], timeout_ms: int
) -> Call[None]:
    """Make a controller a voter; `listener` is its name, host and port. Raises Rejected as KIP-853 says."""
    name, host, port = listener
    request = AddRaftVoterRequest(
        cluster_id=None,
        timeout_ms=timeout_ms,
        voter_id=node_id,
        voter_directory_id=directory_id,
        listeners=[Listener(name=name, host=host, port=port)],
    )

    def read(body: AddRaftVoterResponse) -> None:
        _checked(body.error_code, body.error_message, f"voter {node_id}")

    return asking(request, read)


def remove_voter(node_id: int, directory_id: UUID) -> Call[None]:
    """Take a controller out of the voters. Raises Rejected as KIP-853 says."""
    request = RemoveRaftVoterRequest(
        cluster_id=None, voter_id=node_id, voter_directory_id=directory_id
    )

    def read(body: RemoveRaftVoterResponse) -> None:
        _checked(body.error_code, body.error_message, f"voter {node_id}")

    return asking(request, read)


def _replica(state: ReplicaState, *, is_voter: bool) -> QuorumReplica:
    return QuorumReplica(
        state.replica_id,
        state.replica_directory_id,
        is_voter,
        state.log_end_offset,
        state.last_fetch_timestamp,
        state.last_caught_up_timestamp,
    )


def _checked(code: int, message: str | None, what: str) -> None:
    if code:
        raise Rejected(error_of(code), message or f"{what}: {error_of(code).name}")
