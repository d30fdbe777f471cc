"""ListConfigResources (key 74), versions 0-1.

v0 lists client metrics only (KIP-714). v1 any types (KIP-1142).
"""

from typing import NamedTuple

from stratalog.broker.coordination.cluster_view import ClusterView
from stratalog.broker.network.authorizer import Operation
from stratalog.broker.network.dispatch import Call
from stratalog.errors import ErrorCode
from stratalog.metadata.image import ResourceType
from stratalog.wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

_ANY_FROM = 1
_ALL = (ResourceType.TOPIC, ResourceType.BROKER, ResourceType.CLIENT_METRICS, ResourceType.GROUP)


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    cluster: ClusterView


async def handle(call: Call[ListConfigResourcesRequest, Needs]) -> ListConfigResourcesResponse:
    """Return the names of all resources with settings, of the requested types or of every type."""
    if not call.allows_cluster(Operation.DESCRIBE_CONFIGS):
        denied = ErrorCode.cluster_authorization_failed
        return ListConfigResourcesResponse(error_code=denied, config_resources=[])
    types = call.body.resource_types or _ALL
    if call.version < _ANY_FROM:
        types = (ResourceType.CLIENT_METRICS,)
    wanted = {kind: None async for kind in call.pace.each(types)}
    unknown = [kind for kind in wanted if kind not in _ALL]
    return ListConfigResourcesResponse(
        error_code=ErrorCode.unsupported_version if unknown else ErrorCode.none,
        config_resources=[]
        if unknown
        else [
            ConfigResource(resource_name=name, resource_type=kind)
            for kind in wanted
            async for name in call.pace.each(_names(call, kind))
        ],
    )


def _names(call: Call[ListConfigResourcesRequest, Needs], kind: int) -> list[str]:
    image = call.needs.cluster.image
    match kind:
        case ResourceType.TOPIC:
            return sorted(image.topic_ids_by_name)
        case ResourceType.BROKER:
            return [str(node) for node in sorted(image.brokers)]
        case _:
            return sorted(name for resource, name in image.configs if resource == kind)
