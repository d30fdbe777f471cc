"""Metadata (key 3), versions 0-13.

v1 controller, racks, null means all topics. v2 cluster id. v4 auto-creation can be refused. v5 offline replicas. v7
leader epoch. v8 authorized operations. v9 flexible. v10 topic ids. v12 topics by id. v13 top-level error.
"""

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from stratalog.broker.coordination.cluster_view import ClusterView
from stratalog.broker.coordination.topics import Topics, name_error
from stratalog.broker.network.authorizer import NOT_REQUESTED, Operation, Resource
from stratalog.broker.network.dispatch import Call
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

_BY_ID_FROM: Final = 12
_AT_ONCE: Final = 200
"""Largest number of topics for one slice."""
NameOrId = tuple[str | None, UUID]
"""A topic as the request names it: by name or by id."""


_DENIED: Final = ErrorCode.topic_authorization_failed


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    cluster: ClusterView
    topics: Topics


def handle(
    call: Call[MetadataRequest, Needs],
) -> MetadataResponse | Awaitable[MetadataResponse]:
    """Return brokers and the requested topics, each once; create missing topics where that is allowed."""
    requested = call.body.topics
    if requested is None or (call.version == 0 and not requested):
        topics = call.needs.cluster.image.topics_by_id
        if len(topics) > _AT_ONCE:
            return _all(call, topics.values())
        seen = [topic for topic in topics.values() if call.shows(Resource.TOPIC, topic.name)]
        return _answer(call, [_topic(call, topic) for topic in seen])
    if len(requested) > _AT_ONCE:
        return _many(call, requested)
    wanted = dict.fromkeys([(topic.name, topic.topic_id) for topic in requested])
    if call.version < _BY_ID_FROM and not all(map(_is_by_name, wanted)):
        return _answer(call, [_invalid(name) for name, _ in wanted])
    rows = [_found(call, *one) for one in wanted]
    missing = [name for name, _, topic in rows if topic is None and name is not None]
    if missing and call.needs.topics.may_create(allowed=call.body.allow_auto_topic_creation):
        return _many(call, requested)
    return _answer(call, [_row(call, *row, {}) for row in rows])


async def _all(call: Call[MetadataRequest, Needs], topics: Iterable[Topic]) -> MetadataResponse:
    rows = [
        _topic(call, topic)
        async for topic in call.pace.each(topics)
        if call.shows(Resource.TOPIC, topic.name)
    ]
    return _answer(call, rows)


async def _many(
    call: Call[MetadataRequest, Needs], requested: Sequence[MetadataRequestTopic]
) -> MetadataResponse:
    """Answer as `handle`, for many topics, or with topics to create."""
    pace = call.pace
    wanted: dict[NameOrId, None] = {}
    is_valid = True
    async for topic in pace.each(requested):
        key = topic.name, topic.topic_id
        wanted[key] = None
        is_valid = is_valid and (call.version >= _BY_ID_FROM or _is_by_name(key))
    if not is_valid:
        return _answer(call, [_invalid(name) async for name, _ in pace.each(wanted)])
    errors: dict[str, ErrorCode] = {}
    if call.needs.topics.may_create(allowed=call.body.allow_auto_topic_creation):
        missing = []
        async for name, _ in pace.each(wanted):
            if name is None or call.needs.cluster.topic(name) or not _may_describe(call, name):
                continue
            if _may_create(call, name):
                missing.append(name)
            else:
                errors[name] = _DENIED
        if missing:
            errors |= await call.needs.topics.create_automatically(missing, call.pace)
    rows = [_row(call, *_found(call, *key), errors) async for key in pace.each(wanted)]
    return _answer(call, rows)


def _may_describe(call: Call[MetadataRequest, Needs], name: str) -> bool:
    return call.allows(Operation.DESCRIBE, Resource.TOPIC, name)


def _may_create(call: Call[MetadataRequest, Needs], name: str) -> bool:
    return call.allows_cluster(Operation.CREATE) or call.allows(
        Operation.CREATE, Resource.TOPIC, name
    )


def _is_by_name(wanted: NameOrId) -> bool:
    """Return whether an entry has a name and no id; versions 10 and 11 allow nothing else (Kafka: KafkaApis)."""
    return wanted[0] is not None and wanted[1] == ZERO_ID


def _invalid(name: str | None) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=ErrorCode.invalid_request, name=name or "", is_internal=False, partitions=[]
    )


def _found(
    call: Call[MetadataRequest, Needs], name: str | None, topic_id: UUID
) -> tuple[str | None, UUID, Topic | None]:
    cluster = call.needs.cluster
    if name is not None:
        topic = cluster.topic(name)
        return name, topic.id if topic else ZERO_ID, topic
    topic = cluster.image.topics_by_id.get(topic_id)
    return None, topic_id, topic


def _answer(
    call: Call[MetadataRequest, Needs], topics: Sequence[MetadataResponseTopic]
) -> MetadataResponse:
    cluster = call.needs.cluster
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=node, host=host, port=port, rack=rack)
            for node, host, port, rack in cluster.live_brokers(call.session.listener.name)
        ],
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller_id(),
        topics=topics,
        cluster_authorized_operations=call.cluster_operations()
        if call.body.include_cluster_authorized_operations
        else NOT_REQUESTED,
        error_code=ErrorCode.none,
    )


def _row(
    call: Call[MetadataRequest, Needs],
    name: str | None,
    topic_id: UUID,
    topic: Topic | None,
    errors: Mapping[str, ErrorCode],
) -> MetadataResponseTopic:
    """Return a topic that the request names, by name or by id alone, or its error."""
    visible_name = name if topic is None else topic.name
    if visible_name is not None and not _may_describe(call, visible_name):
        code = _DENIED
        topic_id = topic_id if name is None else ZERO_ID  # an id shows that the topic exists
    elif topic is not None:
        return _topic(call, topic)
    elif name is None:
        code = ErrorCode.unknown_topic_id
    else:
        code = errors.get(name, name_error(name) or ErrorCode.unknown_topic_or_partition)
    return MetadataResponseTopic(
        error_code=code, name=name, topic_id=topic_id, is_internal=False, partitions=[]
    )


def _topic(call: Call[MetadataRequest, Needs], topic: Topic) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name in call.needs.cluster.internal_topics,
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
            for standing in (call.needs.cluster.standing(topic.id, index, partition),)
        ],
        topic_authorized_operations=call.authorized_operations(Resource.TOPIC, topic.name)
        if call.body.include_topic_authorized_operations
        else NOT_REQUESTED,
    )
