"""Calls: one request and the meaning of its answer, as a value.

In: plain arguments. Out: a `Call`, which builds the request for the version that client and broker share, and turns
the response into small values. It never routes, retries or sends: `cluster.py` and the shells do.

Errors of a single topic or partition stay in the answer; an error of the whole request raises Rejected.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar
from uuid import UUID

from msgspec import Struct, field

from stratalog.client.apis import DELETE_TOPICS, DESCRIBE_CONFIGS
from stratalog.errors import Corrupt, ErrorCode, Rejected
from stratalog.ports import Buffer
from stratalog.wire.ids import ZERO_ID, TopicPartition
from stratalog.wire.messages import Request
from stratalog.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from stratalog.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from stratalog.wire.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from stratalog.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from stratalog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from stratalog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from stratalog.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from stratalog.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

R = TypeVar("R")
T = TypeVar("T")

EARLIEST, LATEST = -2, -1
EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -4, -5, -6
"""Special timestamps of ListOffsets."""
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
TOPIC, BROKER = 2, 4
"""Resource types of configurations."""

_SPENT_MS = 30_000
_TOPIC_STATES_FROM = 6
_DOCUMENTATION_FROM = 3
_INIT_PLAIN = 4
"""Later versions of InitProducerId differ for transactional ids alone."""
_PRODUCE_FIRST_PROTOCOL, _PRODUCE_ALL = 11, 1 << 15
"""From version 12 on, Produce adds partitions to transactions (KIP-890)."""


class Call(Struct, Generic[T], frozen=True):
    """A request of one API: `build` makes its body for a version, and `read` converts the answer.

    `asking` creates one, and checks that `read` takes the request's response class.
    """

    api_key: int
    build: Callable[[int], Request[Any]]
    read: Callable[[Any], T]
    unanswered: T | None = None
    """The answer where the broker sends none (Produce with acks=0)."""
    highest: int = 1 << 15
    """The highest version that can carry the request."""


def asking(
    request: Request[R],
    read: Callable[[R], T],
    *,
    unanswered: T | None = None,
    highest: int = 1 << 15,
) -> Call[T]:
    """Return the call of a request that is the same in every version; see `Call`."""
    return Call(request.KEY, lambda _version: request, read, unanswered, highest)


class BrokerAddress(Struct, frozen=True):
    """A broker's address; a bootstrap server with an unknown id has a negative node id."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class PartitionInfo(Struct, frozen=True):
    """`leader` is -1 where none is known, `leader_epoch` where the answer has none (Metadata before version 7)."""

    index: int
    error: ErrorCode
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class TopicInfo(Struct, frozen=True):
    """`topic_id` is the zero UUID where the broker has none (or the topic is missing: see `error`)."""

    name: str
    topic_id: UUID
    error: ErrorCode
    is_internal: bool
    partitions: Mapping[int, PartitionInfo]


class ClusterInfo(Struct, frozen=True):
    """One answer of Metadata. `controller_id` is -1 where the cluster names none."""

    cluster_id: str | None
    controller_id: int
    brokers: Mapping[int, BrokerAddress]
    topics: Mapping[str, TopicInfo]


class ListedOffset(Struct, frozen=True):
    """`offset` is -1 where no record is that young; `timestamp` is -1 for earliest and latest."""

    error: ErrorCode
    offset: int
    timestamp: int
    leader_epoch: int


class NewTopic(Struct, frozen=True):
    """-1 asks for the broker's default. `assignments`: partition -> replicas, instead of the two counts."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)


class TopicResult(Struct, frozen=True):
    """The result of a creation or deletion. `topic_id` is the zero UUID where the version does not carry it."""

    name: str
    topic_id: UUID
    error: ErrorCode
    message: str | None
    partitions: int = -1
    replication_factor: int = -1


class ConfigEntry(Struct, frozen=True):
    """One configuration. `source` is Kafka's number (1 topic, 2 dynamic broker, 4 static broker, 5 default)."""

    name: str
    value: str | None
    source: int
    read_only: bool
    sensitive: bool
    config_type: int = 0
    documentation: str | None = None


class ResourceConfigs(Struct, frozen=True):
    """The configurations of one topic or broker."""

    resource_type: int
    name: str
    error: ErrorCode
    message: str | None
    entries: tuple[ConfigEntry, ...]


class Produced(Struct, frozen=True):
    """The place of a produced batch. `base_offset` is -1 with acks=0."""

    error: ErrorCode
    message: str | None
    base_offset: int
    log_start_offset: int
    throttle_ms: int = 0
    """How long a client quota mutes the connection."""


def error_of(code: int) -> ErrorCode:
    """Return the error a code stands for; a code from the future is an unknown error."""
    return ErrorCode(code)


def api_versions() -> Call[Mapping[int, tuple[int, int]]]:
    """Return what the broker serves: API key -> (lowest, highest version)."""

    def read(body: ApiVersionsResponse) -> Mapping[int, tuple[int, int]]:
        served = {key.api_key: (key.min_version, key.max_version) for key in body.api_keys}
        for key, (lowest, highest) in served.items():
            if not 0 <= lowest <= highest:
                # Without this check the connection would refuse that API until it ends.
                raise Corrupt(f"versions {lowest} to {highest} of API {key}")
        return served

    request = ApiVersionsRequest(client_software_name="stratalog", client_software_version="0.1")
    return asking(request, read)


def metadata(topics: Sequence[str] | None) -> Call[ClusterInfo]:
    """Return brokers and the topics named (None: all). A missing topic is an entry with its error; none is created."""
    wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]

    def read(body: MetadataResponse) -> ClusterInfo:
        brokers = {
            one.node_id: BrokerAddress(one.node_id, one.host, one.port, one.rack)
            for one in body.brokers
        }
        found = {topic.name or "": _topic(topic) for topic in body.topics}
        return ClusterInfo(body.cluster_id, body.controller_id, brokers, found)

    return asking(MetadataRequest(topics=wanted, allow_auto_topic_creation=False), read)


def topic_operations(name: str) -> Call[int]:
    """Return the operations on a topic that the client may perform, one bit for each (KIP-430)."""

    def read(body: MetadataResponse) -> int:
        return next((one.topic_authorized_operations for one in body.topics), 0)

    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name)],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )
    return asking(request, read)


def _topic(topic: MetadataResponseTopic) -> TopicInfo:
    partitions = {
        one.partition_index: PartitionInfo(
            one.partition_index,
            error_of(one.error_code),
            one.leader_id,
            one.leader_epoch,
            tuple(one.replica_nodes),
            tuple(one.isr_nodes),
        )
        for one in topic.partitions
    }
    return TopicInfo(
        topic.name or "", topic.topic_id, error_of(topic.error_code), topic.is_internal, partitions
    )


def list_offsets(
    wanted: Mapping[TopicPartition, int],
    isolation: int,
    leader_epochs: Mapping[TopicPartition, int] | None = None,
) -> Call[dict[TopicPartition, ListedOffset]]:
    """Return offsets by timestamp (epoch ms, EARLIEST, LATEST) of partitions that one broker leads.

    A broker of another leader epoch than that in `leader_epochs` refuses the partition.
    """
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for key, timestamp in wanted.items():
        row = ListOffsetsPartition(
            partition_index=key.partition,
            current_leader_epoch=(leader_epochs or {}).get(key, -1),
            timestamp=timestamp,
        )
        topics.setdefault(key.topic, []).append(row)
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation,
        timeout_ms=_SPENT_MS,
        topics=[ListOffsetsTopic(name=name, partitions=rows) for name, rows in topics.items()],
    )

    def read(body: ListOffsetsResponse) -> dict[TopicPartition, ListedOffset]:
        return {
            TopicPartition(topic.name, found.partition_index): ListedOffset(
                error_of(found.error_code), found.offset, found.timestamp, found.leader_epoch
            )
            for topic in body.topics
            for found in topic.partitions
        }

    return asking(request, read)


def create_topics(topics: Sequence[NewTopic], *, validate_only: bool) -> Call[list[TopicResult]]:
    """Create topics, or only check the request."""
    wanted = [
        CreatableTopic(
            name=topic.name,
            num_partitions=-1 if topic.assignments else topic.partitions,
            replication_factor=-1 if topic.assignments else topic.replication_factor,
            assignments=[
                CreatableReplicaAssignment(partition_index=index, broker_ids=nodes)
                for index, nodes in topic.assignments.items()
            ],
            configs=[
                CreatableTopicConfig(name=name, value=value)
                for name, value in topic.configs.items()
            ],
        )
        for topic in topics
    ]

    def read(body: CreateTopicsResponse) -> list[TopicResult]:
        return [
            TopicResult(
                topic.name,
                topic.topic_id,
                error_of(topic.error_code),
                topic.error_message,
                topic.num_partitions,
                topic.replication_factor,
            )
            for topic in body.topics
        ]

    request = CreateTopicsRequest(topics=wanted, timeout_ms=_SPENT_MS, validate_only=validate_only)
    return asking(request, read)


def delete_topics(names: Sequence[str]) -> Call[list[TopicResult]]:
    """Delete topics by name."""

    def build(version: int) -> DeleteTopicsRequest:
        if version < _TOPIC_STATES_FROM:
            return DeleteTopicsRequest(topic_names=names, timeout_ms=_SPENT_MS)
        wanted = [DeleteTopicState(name=name, topic_id=ZERO_ID) for name in names]
        return DeleteTopicsRequest(topics=wanted, timeout_ms=_SPENT_MS)

    def read(body: DeleteTopicsResponse) -> list[TopicResult]:
        return [
            TopicResult(
                topic.name or "", topic.topic_id, error_of(topic.error_code), topic.error_message
            )
            for topic in body.responses
        ]

    return Call(DELETE_TOPICS, build, read)


def describe_configs(
    resources: Sequence[tuple[int, str]], *, documentation: bool = False
) -> Call[list[ResourceConfigs]]:
    """Return configurations of (TOPIC or BROKER, name)s, in full."""
    wanted = [
        DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        for kind, name in resources
    ]

    def read(body: DescribeConfigsResponse) -> list[ResourceConfigs]:
        return [
            ResourceConfigs(
                result.resource_type,
                result.resource_name,
                error_of(result.error_code),
                result.error_message,
                tuple(_config(entry) for entry in result.configs),
            )
            for result in body.results
        ]

    def build(version: int) -> DescribeConfigsRequest:
        include = documentation and version >= _DOCUMENTATION_FROM
        return DescribeConfigsRequest(resources=wanted, include_documentation=include)

    return Call(DESCRIBE_CONFIGS, build, read)


def _config(entry: DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        entry.name,
        entry.value,
        entry.config_source,
        entry.read_only,
        entry.is_sensitive,
        entry.config_type,
        entry.documentation or None,
    )


def init_producer_id() -> Call[tuple[int, int]]:
    """Return a fresh (producer id, epoch) for idempotent produce."""

    def read(body: InitProducerIdResponse) -> tuple[int, int]:
        if body.error_code:
            code = error_of(body.error_code)
            raise Rejected(code, f"no producer id: {code.name}")
        return body.producer_id, body.producer_epoch

    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=_SPENT_MS)
    return asking(request, read, highest=_INIT_PLAIN)


def produce(
    topic: str,
    partition: int,
    batch: Buffer,
    *,
    acks: int,
    timeout_ms: int,
    transactional_id: str | None = None,
) -> Call[Produced]:
    """Produce one whole record batch to one partition. acks: -1 (all in sync), 1 (leader) or 0 (no answer).

    A batch of a transaction goes by Kafka's first protocol: the transaction has the partition.
    """
    wanted = PartitionProduceData(index=partition, records=memoryview(batch))

    def read(body: ProduceResponse) -> Produced:
        for found in body.responses:
            for answer in found.partition_responses:
                return Produced(
                    error_of(answer.error_code),
                    answer.error_message,
                    answer.base_offset,
                    answer.log_start_offset,
                    body.throttle_time_ms,
                )
        raise Rejected(ErrorCode.unknown_server_error, f"no answer for {topic}-{partition}")

    request = ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[TopicProduceData(name=topic, partition_data=[wanted])],
    )
    unanswered = None if acks else Produced(ErrorCode.none, None, -1, -1)
    highest = _PRODUCE_ALL if transactional_id is None else _PRODUCE_FIRST_PROTOCOL
    return asking(request, read, unanswered=unanswered, highest=highest)
