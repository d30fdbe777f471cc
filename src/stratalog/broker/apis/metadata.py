"""Metadata (key 3), versions 0-13.

v1 controller, racks, null means all topics. v2 cluster id. v4 auto-creation can be refused. v5 offline replicas.
v7 leader epoch. v8 authorized operations. v9 flexible. v10 topic ids. v12 asking by id. v13 top-level error.
"""

from collections.abc import Awaitable, Mapping, Sequence
from uuid import UUID

from stratalog.broker.api import Api, Call
from stratalog.broker.authorized import NOT_ASKED, OF_CLUSTER, OF_TOPIC
from stratalog.errors import ErrorCode
from stratalog.metadata.image import Topic
from stratalog.wire.ids import ZERO_ID
from stratalog.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

_BY_ID_FROM = 12


def handle(
    call: Call[MetadataRequest],
) -> MetadataResponse | Awaitable[MetadataResponse]:
    """Brokers and the topics asked for; missing ones are created where that is allowed."""
    asked = call.body.topics
    if asked is None or (call.version == 0 and not asked):
        return _answer(
            call, [(t.name, t.id, t) for t in call.broker.metadata.image.topics_by_id.values()]
        )
    if call.version < _BY_ID_FROM and not all(map(_is_by_name, asked)):
        names = [topic.name or "" for topic in asked]
        rows = [(name, ZERO_ID, None) for name in names]
        return _answer(call, rows, dict.fromkeys(names, ErrorCode.invalid_request))
    names = [topic.name for topic in asked if topic.name is not None]
    missing = [name for name in names if call.broker.metadata.topic(name) is None]
    if missing and call.broker.may_create(allowed=call.body.allow_auto_topic_creation):
        return _create_and_answer(call, asked, missing)
    return _answer(call, _found(call, asked))


def _is_by_name(asked: MetadataRequestTopic) -> bool:
    """Versions 10 and 11 can say an id, or no name, and mean nothing by it (Kafka: KafkaApis)."""
    return asked.name is not None and asked.topic_id == ZERO_ID


async def _create_and_answer(
    call: Call[MetadataRequest], asked: Sequence[MetadataRequestTopic], missing: list[str]
) -> MetadataResponse:
    errors = await call.broker.create_automatically(missing)
    return _answer(call, _found(call, asked), errors)


def _found(
    call: Call[MetadataRequest], wanted: Sequence[MetadataRequestTopic]
) -> list[tuple[str | None, UUID, Topic | None]]:
    metadata = call.broker.metadata
    rows: list[tuple[str | None, UUID, Topic | None]] = []
    for asked in wanted:
        if asked.name is not None:
            topic = metadata.topic(asked.name)
            rows.append((asked.name, topic.id if topic else ZERO_ID, topic))
        else:
            topic = metadata.image.topics_by_id.get(asked.topic_id)
            rows.append((topic.name if topic else None, asked.topic_id, topic))
    return rows


def _answer(
    call: Call[MetadataRequest],
    rows: Sequence[tuple[str | None, UUID, Topic | None]],
    errors: Mapping[str, ErrorCode] | None = None,
) -> MetadataResponse:
    broker = call.broker
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=node, host=host, port=port, rack=rack)
            for node, host, port, rack in broker.live_brokers(call.listener)
        ],
        cluster_id=broker.cluster_id,
        controller_id=broker.node_id,
        topics=[
            _topic(call, name, topic_id, topic, errors or {}) for name, topic_id, topic in rows
        ],
        cluster_authorized_operations=OF_CLUSTER
        if call.body.include_cluster_authorized_operations
        else NOT_ASKED,
        error_code=ErrorCode.none,
    )


def _topic(
    call: Call[MetadataRequest],
    name: str | None,
    topic_id: UUID,
    topic: Topic | None,
    errors: Mapping[str, ErrorCode],
) -> MetadataResponseTopic:
    if topic is None:
        code = ErrorCode.unknown_topic_or_partition if name else ErrorCode.unknown_topic_id
        if name is not None:
            code = errors.get(name, call.broker.name_error(name) or code)
        return MetadataResponseTopic(
            error_code=code, name=name, topic_id=topic_id, is_internal=False, partitions=[]
        )
    return MetadataResponseTopic(
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic_id,
        is_internal=topic.name in call.broker.internal_topics,
        partitions=[
            MetadataResponsePartition(
                error_code=standing.error,
                partition_index=index,
                leader_id=standing.leader,
                leader_epoch=partition.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                offline_replicas=standing.offline,
            )
            for index, partition in sorted(topic.partitions.items())
            for standing in (call.broker.standing(topic_id, index, partition),)
        ],
        topic_authorized_operations=OF_TOPIC
        if call.body.include_topic_authorized_operations
        else NOT_ASKED,
    )


API = Api("Metadata", 3, (0, 13), handle)
