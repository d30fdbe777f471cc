"""DescribeConfigs (key 32), versions 1-4.

v1 sources and synonyms. v3 types and documentation. v4 flexible.
"""

from typing import Final, NamedTuple

from stratalog.broker.apis.alter_configs import refusal, resource_of
from stratalog.broker.coordination.cluster_image import ClusterImage
from stratalog.broker.coordination.topics import name_error
from stratalog.broker.network.authorizer import Operation
from stratalog.broker.network.dispatch import Call
from stratalog.config import (
    BrokerConfig,
    ConfigEntry,
    describe_broker,
    describe_client_metrics,
    describe_every_broker,
    describe_topic,
)
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

_TOPIC: Final = 2
_BROKER: Final = 4
_CLIENT_METRICS: Final = 16


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    config: BrokerConfig
    metadata: ClusterImage


async def handle(call: Call[DescribeConfigsRequest, Needs]) -> DescribeConfigsResponse:
    """Return the settings of topics, of this broker and of client metrics, each resource once."""
    return DescribeConfigsResponse(
        results=[
            await _resource(call, resource)
            async for resource in call.pace.once(call.body.resources, resource_of)
        ]
    )


async def _resource(
    call: Call[DescribeConfigsRequest, Needs], resource: DescribeConfigsResource
) -> DescribeConfigsResult:
    keys = {key async for key in call.pace.each(resource.configuration_keys or ())}
    try:
        denied = refusal(call, Operation.DESCRIBE_CONFIGS, resource)
        if denied:
            raise Rejected(denied, "DESCRIBE_CONFIGS is not allowed")
        entries = _entries(call, resource.resource_type, resource.resource_name)
    except Rejected as error:
        return DescribeConfigsResult(
            error_code=error.code,
            error_message=error.message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=[],
        )
    return DescribeConfigsResult(
        error_code=ErrorCode.none,
        error_message=None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=[_entry(call, entry) for entry in entries if not keys or entry.name in keys],
    )


def _entries(call: Call[DescribeConfigsRequest, Needs], kind: int, name: str) -> list[ConfigEntry]:
    config, metadata = call.needs
    if kind == _TOPIC:
        topic = metadata.topic(name)
        if topic is None:
            if (error := name_error(name)) is not None:
                raise Rejected(error, f"no topic can be called {name!r}")
            raise Rejected(ErrorCode.unknown_topic_or_partition, f"no topic {name!r}")
        return describe_topic(config, metadata.topic_configs(name), metadata.dynamic_configs)
    if kind == _BROKER:
        if not name:
            return describe_every_broker(metadata.dynamic_configs.every)
        node_id = config.int("node.id")
        if name != str(node_id):
            raise Rejected(
                ErrorCode.invalid_request, f"broker {name!r} is not this one ({node_id})"
            )
        return describe_broker(config, metadata.dynamic_configs)
    if kind == _CLIENT_METRICS:
        if not name:
            raise Rejected(ErrorCode.invalid_request, "a client-metrics resource needs a name")
        return describe_client_metrics(metadata.image.configs.get((kind, name), {}))
    raise Rejected(ErrorCode.invalid_request, f"resource type {kind} has no settings here")


def _entry(
    call: Call[DescribeConfigsRequest, Needs], entry: ConfigEntry
) -> DescribeConfigsResourceResult:
    body = call.body
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=one.name, value=one.value, source=one.source)
            for one in entry.synonyms
        ]
        if body.include_synonyms
        else [],
        config_type=entry.type,
        documentation=entry.doc if body.include_documentation else None,
    )
