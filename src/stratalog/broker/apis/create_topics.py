"""CreateTopics (key 19), versions 2-7.

v2 throttle time. v4 default partitions and replication (-1, KIP-464). v5 flexible, the answer has configurations.
v6 may answer that a quota is exceeded (KIP-599). v7 topic ids. The answer leaves out settings that Kafka does not know,
unless the topic sets them.
"""

from typing import Final, NamedTuple

from stratalog.broker.apis.alter_configs import our_setting
from stratalog.broker.coordination.cluster_image import ClusterImage
from stratalog.broker.coordination.local_controller import LocalController
from stratalog.broker.coordination.topics import Topics
from stratalog.broker.network.authorizer import Operation, Resource
from stratalog.broker.network.dispatch import Call
from stratalog.broker.network.throttling import Throttling
from stratalog.config import BrokerConfig, ConfigEntry, describe_topic
from stratalog.config.topic_settings import TOPIC_SETTINGS
from stratalog.errors import ErrorCode, Rejected
from stratalog.quorum.controller import Created, NewTopic
from stratalog.quorum.metadata_batches import METADATA_TOPIC
from stratalog.quorum.topics import (
    DEFAULT,
    PARTITIONS_PER_REQUEST_MAX,
    SETTINGS_MAX,
    too_many_partitions,
)
from stratalog.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

_STRICT_FROM: Final = 6
"""The first version that refuses topics beyond the client's quota (KIP-599)."""
_DENIED: Final = ErrorCode.topic_authorization_failed


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    config: BrokerConfig
    local_controller: LocalController
    metadata: ClusterImage
    throttling: Throttling
    topics: Topics


async def handle(call: Call[CreateTopicsRequest, Needs]) -> CreateTopicsResponse:
    """Create the topics; each topic has its own error."""
    created: list[Created] = []
    is_too_much = await _is_too_much(call)
    is_strict = call.version >= _STRICT_FROM
    mutations = call.needs.throttling.mutations(call.session, is_strict=is_strict)
    async for part in call.pace.bundles(call.body.topics, lambda topic: topic.name):
        if is_too_much:
            created += too_many_partitions(topic.name for topic in part)
            continue
        denied = [topic.name for topic in part if not _may_create(call, topic.name)]
        created += [Created(name, error=_DENIED) for name in dict.fromkeys(denied)]
        unset = {one.name: text for one in part if (text := _without_value(one))}
        created += [
            Created(name, error=ErrorCode.invalid_config, message=f"{text} without a value")
            for name, text in unset.items()
            if name not in denied
        ]
        refused = {*denied, *unset}
        requested = [await _new_topic(call, topic) for topic in part if topic.name not in refused]
        try:
            created += await call.needs.local_controller.create_topics(
                [call.needs.topics.tiered(one) for one in requested],
                mutations.charge,
                validate_only=call.body.validate_only,
            )
        except Rejected as error:
            created += [
                Created(one.name, error=error.code, message=error.message) for one in requested
            ]
    return CreateTopicsResponse(
        throttle_time_ms=mutations.throttle_ms(),
        topics=[_result(call, topic) async for topic in call.pace.each(created)],
    )


def _may_create(call: Call[CreateTopicsRequest, Needs], name: str) -> bool:
    # The controller refuses the metadata log's name, whatever the client's rights.
    return (
        call.allows_cluster(Operation.CREATE)
        or name == METADATA_TOPIC
        or call.allows(Operation.CREATE, Resource.TOPIC, name)
    )


def _without_value(topic: CreatableTopic) -> str:
    """Return the first setting whose value is null; "" for none."""
    settings = topic.configs[: SETTINGS_MAX + 1]  # the controller refuses more
    return next((one.name for one in settings if one.value is None), "")


async def _is_too_much(call: Call[CreateTopicsRequest, Needs]) -> bool:
    """Return whether the topics together have more partitions than one request may ask for."""
    count = 0
    default = call.needs.config.int("num.partitions")
    async for topic in call.pace.each(call.body.topics):
        partitions = default if topic.num_partitions == DEFAULT else topic.num_partitions
        count += len(topic.assignments) or max(0, partitions)
    return count > PARTITIONS_PER_REQUEST_MAX


async def _new_topic(call: Call[CreateTopicsRequest, Needs], topic: CreatableTopic) -> NewTopic:
    # The controller refuses too many topics, so it need not see all of them.
    return NewTopic(
        name=topic.name,
        partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments={
            one.partition_index: tuple(one.broker_ids)
            async for one in call.pace.each(topic.assignments[: PARTITIONS_PER_REQUEST_MAX + 1])
        },
        configs=dict(
            [
                our_setting(one.name, one.value or "")
                async for one in call.pace.each(topic.configs[: SETTINGS_MAX + 1])
            ]
        ),
    )


def _result(call: Call[CreateTopicsRequest, Needs], topic: Created) -> CreatableTopicResult:
    config, metadata = call.needs.config, call.needs.metadata
    failed = topic.error is not ErrorCode.none
    if not failed and not call.allows(Operation.DESCRIBE_CONFIGS, Resource.TOPIC, topic.name):
        return CreatableTopicResult(
            name=topic.name,
            topic_id=topic.topic_id,
            error_code=ErrorCode.none,
            error_message=None,
            topic_config_error_code=_DENIED,
        )
    return CreatableTopicResult(
        name=topic.name,
        topic_id=topic.topic_id,
        error_code=topic.error,
        error_message=topic.message,
        num_partitions=-1 if failed else topic.partitions,
        replication_factor=-1 if failed else topic.replication_factor,
        configs=[]
        if failed
        else [
            _config(entry)
            for entry in describe_topic(config, topic.configs, metadata.dynamic_configs)
            if entry.name in topic.configs or not TOPIC_SETTINGS[entry.name].setting.ours
        ],
    )


def _config(entry: ConfigEntry) -> CreatableTopicConfigs:
    return CreatableTopicConfigs(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
    )
