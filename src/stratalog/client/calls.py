"""One request and its answer, as a value: what to ask in each version, and what the answer means.

In: plain arguments. Out: a `Call`, which builds a request body for the version that client and broker share and turns
the response body into small dataclasses. It never routes, retries or sends: `cluster.py` and the shells do.

Errors for a single topic or partition stay in the answer; an error for the whole request raises Rejected.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from uuid import UUID

from stratalog.client.apis import (
    API_VERSIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_CONFIGS,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
)
from stratalog.errors import ErrorCode, Rejected
from stratalog.ports import Buffer
from stratalog.wire.envelope import request
from stratalog.wire.ids import ZERO_ID
from stratalog.wire.produce import ProducePartition, ProduceRequest, ProduceTopic

T = TypeVar("T")

EARLIEST, LATEST = -2, -1
"""Timestamps that ListOffsets gives a meaning of their own."""
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
TOPIC, BROKER = 2, 4
"""Resource types of configurations."""

_SPENT_MS = 30_000


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request of one API: `build` makes its body for a version, `read` gives the answer's meaning."""

    api_key: int
    build: Callable[[int], Any]
    read: Callable[[Any], T]
    unanswered: T | None = None
    """What to take as the answer where the broker gives none (Produce with acks=0)."""
    highest: int = 1 << 15
    """The highest version that can carry what is asked."""


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Where a broker listens; a bootstrap server that is not known yet has a negative node id."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """`leader` is -1 where none is known."""

    index: int
    error: ErrorCode
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """`topic_id` is the zero UUID where the broker has none (or the topic is missing: see `error`)."""

    name: str
    topic_id: UUID
    error: ErrorCode
    is_internal: bool
    partitions: Mapping[int, PartitionInfo]


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """One answer of Metadata. `controller_id` is -1 where the cluster names none."""

    cluster_id: str | None
    controller_id: int
    brokers: Mapping[int, BrokerAddress]
    topics: Mapping[str, TopicInfo]


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """`offset` is -1 where no record is that young; `timestamp` is -1 for earliest and latest."""

    error: ErrorCode
    offset: int
    timestamp: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class NewTopic:
    """-1 asks for the broker's default. `assignments`: partition -> replicas, instead of the two counts."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicResult:
    """What became of a creation or deletion. `topic_id` is the zero UUID where the version does not carry it."""

    name: str
    topic_id: UUID
    error: ErrorCode
    message: str | None
    partitions: int = -1
    replication_factor: int = -1


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One configuration. `source` is Kafka's number (1 topic, 2 dynamic broker, 4 static broker, 5 default)."""

    name: str
    value: str | None
    source: int
    read_only: bool
    sensitive: bool
    config_type: int = 0
    documentation: str | None = None


@dataclass(frozen=True, slots=True)
class ResourceConfigs:
    """The configurations of one topic or broker."""

    resource_type: int
    name: str
    error: ErrorCode
    message: str | None
    entries: tuple[ConfigEntry, ...]


@dataclass(frozen=True, slots=True)
class Produced:
    """Where a batch went. `base_offset` is -1 with acks=0."""

    error: ErrorCode
    message: str | None
    base_offset: int
    log_start_offset: int


def error_of(code: int) -> ErrorCode:
    """The error a code stands for; a code from the future is an unknown error."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.unknown_server_error


def _id(value: UUID | None) -> UUID:
    return value if value is not None else ZERO_ID


def api_versions() -> Call[Mapping[int, tuple[int, int]]]:
    """What the broker serves: API key -> (lowest, highest version)."""

    def build(version: int) -> Any:
        return request(API_VERSIONS, version).ApiVersionsRequest(
            client_software_name="stratalog", client_software_version="0.1"
        )

    def read(body: Any) -> Mapping[int, tuple[int, int]]:
        return {
            int(key.api_key): (int(key.min_version), int(key.max_version)) for key in body.api_keys
        }

    return Call(API_VERSIONS, build, read)


def metadata(topics: Sequence[str] | None) -> Call[ClusterInfo]:
    """Brokers and the topics named (None: all). A missing topic is an entry with its error; none is created."""

    def build(version: int) -> Any:
        types = request(METADATA, version)
        wanted = None
        if topics is not None:
            wanted = [types.MetadataRequestTopic(topic_id=None, name=name) for name in topics]
        return types.MetadataRequest(
            topics=wanted,
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )

    def read(body: Any) -> ClusterInfo:
        brokers = {
            int(broker.node_id): BrokerAddress(
                int(broker.node_id), broker.host, int(broker.port), broker.rack
            )
            for broker in body.brokers
        }
        found = {topic.name: _topic(topic) for topic in body.topics}
        return ClusterInfo(body.cluster_id, int(body.controller_id), brokers, found)

    return Call(METADATA, build, read)


def _topic(topic: Any) -> TopicInfo:
    partitions = {
        int(partition.partition_index): PartitionInfo(
            int(partition.partition_index),
            error_of(partition.error_code),
            int(partition.leader_id),
            int(partition.leader_epoch),
            tuple(int(node) for node in partition.replica_nodes),
            tuple(int(node) for node in partition.isr_nodes),
        )
        for partition in topic.partitions
    }
    topic_id = _id(getattr(topic, "topic_id", None))
    return TopicInfo(
        topic.name, topic_id, error_of(topic.error_code), bool(topic.is_internal), partitions
    )


def list_offsets(
    wanted: Mapping[tuple[str, int], int], isolation: int
) -> Call[dict[tuple[str, int], ListedOffset]]:
    """Offsets by timestamp (epoch ms, EARLIEST, LATEST) of (topic, partition)s that one broker leads."""

    def build(version: int) -> Any:
        types = request(LIST_OFFSETS, version)
        topics: dict[str, list[Any]] = {}
        for (name, index), timestamp in wanted.items():
            topics.setdefault(name, []).append(
                types.ListOffsetsPartition(
                    partition_index=index, current_leader_epoch=-1, timestamp=timestamp
                )
            )
        return types.ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation,
            timeout=_SPENT_MS,
            topics=[
                types.ListOffsetsTopic(name=name, partitions=found)
                for name, found in topics.items()
            ],
        )

    def read(body: Any) -> dict[tuple[str, int], ListedOffset]:
        return {
            (topic.name, int(found.partition_index)): ListedOffset(
                error_of(found.error_code),
                int(found.offset),
                int(found.timestamp),
                int(getattr(found, "leader_epoch", -1)),
            )
            for topic in body.topics
            for found in topic.partitions
        }

    return Call(LIST_OFFSETS, build, read)


def create_topics(topics: Sequence[NewTopic], *, validate_only: bool) -> Call[list[TopicResult]]:
    """Create topics, or only check that they could be."""

    def build(version: int) -> Any:
        types = request(CREATE_TOPICS, version)
        wanted = [
            types.CreatableTopic(
                name=topic.name,
                num_partitions=-1 if topic.assignments else topic.partitions,
                replication_factor=-1 if topic.assignments else topic.replication_factor,
                assignments=[
                    types.CreatableReplicaAssignment(partition_index=index, broker_ids=list(nodes))
                    for index, nodes in topic.assignments.items()
                ],
                configs=[
                    types.CreatableTopicConfig(name=name, value=value)
                    for name, value in topic.configs.items()
                ],
            )
            for topic in topics
        ]
        return types.CreateTopicsRequest(
            topics=wanted, timeout=_SPENT_MS, validate_only=validate_only
        )

    def read(body: Any) -> list[TopicResult]:
        return [
            TopicResult(
                topic.name,
                _id(getattr(topic, "topic_id", None)),
                error_of(topic.error_code),
                topic.error_message,
                int(getattr(topic, "num_partitions", -1)),
                int(getattr(topic, "replication_factor", -1)),
            )
            for topic in body.topics
        ]

    return Call(CREATE_TOPICS, build, read)


def delete_topics(names: Sequence[str]) -> Call[list[TopicResult]]:
    """Delete topics by name."""

    def build(version: int) -> Any:
        types = request(DELETE_TOPICS, version)
        if version < 6:
            return types.DeleteTopicsRequest(topic_names=list(names), timeout=_SPENT_MS)
        wanted = [types.DeleteTopicState(name=name, topic_id=None) for name in names]
        return types.DeleteTopicsRequest(topics=wanted, timeout=_SPENT_MS)

    def read(body: Any) -> list[TopicResult]:
        return [
            TopicResult(
                topic.name or "",
                _id(getattr(topic, "topic_id", None)),
                error_of(topic.error_code),
                getattr(topic, "error_message", None),
            )
            for topic in body.responses
        ]

    return Call(DELETE_TOPICS, build, read)


def describe_configs(
    resources: Sequence[tuple[int, str]], *, documentation: bool = False
) -> Call[list[ResourceConfigs]]:
    """Configurations of (TOPIC or BROKER, name)s, in full."""

    def build(version: int) -> Any:
        types = request(DESCRIBE_CONFIGS, version)
        wanted = [
            types.DescribeConfigsResource(
                resource_type=kind, resource_name=name, configuration_keys=None
            )
            for kind, name in resources
        ]
        return types.DescribeConfigsRequest(
            resources=wanted, include_synonyms=False, include_documentation=documentation
        )

    def read(body: Any) -> list[ResourceConfigs]:
        return [
            ResourceConfigs(
                int(result.resource_type),
                result.resource_name,
                error_of(result.error_code),
                result.error_message,
                tuple(_config(entry) for entry in result.configs),
            )
            for result in body.results
        ]

    return Call(DESCRIBE_CONFIGS, build, read)


def _config(entry: Any) -> ConfigEntry:
    return ConfigEntry(
        entry.name,
        entry.value,
        int(getattr(entry, "config_source", -1)),
        bool(entry.read_only),
        bool(entry.is_sensitive),
        int(getattr(entry, "config_type", 0)),
        getattr(entry, "documentation", None),
    )


def init_producer_id() -> Call[tuple[int, int]]:
    """A fresh (producer id, epoch) for idempotent produce."""

    def build(version: int) -> Any:
        return request(INIT_PRODUCER_ID, version).InitProducerIdRequest(
            transactional_id=None, transaction_timeout=_SPENT_MS, producer_id=-1, producer_epoch=-1
        )

    def read(body: Any) -> tuple[int, int]:
        if body.error_code:
            raise Rejected(
                error_of(body.error_code), f"no producer id: {error_of(body.error_code).name}"
            )
        return int(body.producer_id), int(body.producer_epoch)

    return Call(INIT_PRODUCER_ID, build, read)


def produce(
    topic: str, partition: int, batch: Buffer, *, acks: int, timeout_ms: int
) -> Call[Produced]:
    """One whole record batch to one partition. acks: -1 (all in sync), 1 (leader) or 0 (nobody answers)."""

    def build(_version: int) -> Any:
        wanted = ProducePartition(partition, memoryview(batch))
        return ProduceRequest(None, acks, timeout_ms, [ProduceTopic(topic, None, [wanted])])

    def read(body: Any) -> Produced:
        for found in body.responses:
            for answer in found.partition_responses:
                return Produced(
                    error_of(answer.error_code),
                    getattr(answer, "error_message", None),
                    int(answer.base_offset),
                    int(getattr(answer, "log_start_offset", -1)),
                )
        raise Rejected(ErrorCode.unknown_server_error, f"no answer for {topic}-{partition}")

    return Call(PRODUCE, build, read, None if acks else Produced(ErrorCode.none, None, -1, -1))
