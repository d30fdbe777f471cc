"""CreateTopics (key 19), versions 2-7.

v2 throttle time. v4 default partitions and replication (-1, KIP-464). v5 flexible, the answer tells configurations.
v7 topic ids. The answer leaves out settings that Kafka does not know, unless the topic sets them.
"""

from stratalog.broker.api import Api, Call
from stratalog.broker.apis.alter_configs import our_setting
from stratalog.config import ConfigEntry
from stratalog.config.topic_settings import TOPIC_SETTINGS
from stratalog.errors import ErrorCode, Rejected
from stratalog.quorum.controller import Created, NewTopic
from stratalog.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)


async def handle(call: Call[CreateTopicsRequest]) -> CreateTopicsResponse:
    """Create what can be created; each topic has its own error."""
    asked = [_new_topic(topic) for topic in call.body.topics]
    try:
        created = await call.broker.create_topics(asked, validate_only=call.body.validate_only)
    except Rejected as error:
        created = [Created(topic.name, error=error.code, message=error.message) for topic in asked]
    return CreateTopicsResponse(topics=[_result(call, topic) for topic in created])


def _new_topic(topic: CreatableTopic) -> NewTopic:
    return NewTopic(
        name=topic.name,
        partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments={a.partition_index: tuple(a.broker_ids) for a in topic.assignments},
        configs=dict(our_setting(c.name, c.value) for c in topic.configs if c.value is not None),
    )


def _result(call: Call[CreateTopicsRequest], topic: Created) -> CreatableTopicResult:
    failed = topic.error is not ErrorCode.none
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
            for entry in call.broker.describe_topic(topic.configs)
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


API = Api("CreateTopics", 19, (2, 7), handle)
