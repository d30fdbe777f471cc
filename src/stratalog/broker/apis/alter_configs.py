"""AlterConfigs (key 33), versions 0-2.

Replaces all settings of a resource. v1 the same. v2 flexible. Kafka prefers IncrementalAlterConfigs; older clients know
only this one.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol, TypeVar

from structlog import get_logger

from stratalog.broker.coordination.asked_broker import NewSettings, refused_here
from stratalog.broker.coordination.local_controller import LocalController
from stratalog.broker.network.authorizer import CLUSTER_NAME, DENIED, Operation, Resource
from stratalog.broker.network.dispatch import BodyT, Call, NeedsT
from stratalog.config import BrokerConfig, our_topic_setting
from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.image import ResourceType
from stratalog.quorum.configurations import Change
from stratalog.quorum.configurations import Operation as Action
from stratalog.quorum.controller import Alteration, Altered
from stratalog.quorum.topics import SETTINGS_MAX
from stratalog.wire.apis import ListenerKind
from stratalog.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

_CLUSTERS: Final = (ResourceType.BROKER, ResourceType.BROKER_LOGGER, ResourceType.CLIENT_METRICS)
"""Resource types whose settings are in the cluster's metadata."""
_NAMED: Final[Mapping[int, Resource]] = {
    ResourceType.TOPIC: Resource.TOPIC,
    ResourceType.GROUP: Resource.GROUP,
}
_Text = TypeVar("_Text", str, str | None)


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    config: BrokerConfig
    local_controller: LocalController


async def handle(call: Call[AlterConfigsRequest, Needs]) -> AlterConfigsResponse:
    """Replace the settings of topics and brokers; each resource has its own error."""
    altered: list[Altered] = []
    async for part in call.pace.bundles(call.body.resources, resource_of):
        denied = {resource_of(one): denial(call, call.needs.config, one) for one in part}
        altered += [one for one in denied.values() if one is not None]
        requested = [await _alteration(call, one) for one in part if not denied[resource_of(one)]]
        try:
            altered += await call.needs.local_controller.alter_configs(
                requested, validate_only=call.body.validate_only
            )
        except Rejected as error:
            altered += [
                Altered(one.resource_type, one.resource_name, error.code, error.message)
                for one in requested
            ]
    return AlterConfigsResponse(
        responses=[
            AlterConfigsResourceResponse(
                error_code=one.error,
                error_message=one.message,
                resource_type=one.resource_type,
                resource_name=one.resource_name,
            )
            for one in altered
        ]
    )


async def _alteration(
    call: Call[AlterConfigsRequest, Needs], resource: AlterConfigsResource
) -> Alteration:
    # The controller refuses too many resources, so it need not see all of them.
    changes = [
        change(resource.resource_type, one.name, Action.SET, one.value)
        async for one in call.pace.each(resource.configs[: SETTINGS_MAX + 1])
    ]
    return Alteration(resource.resource_type, resource.resource_name, tuple(changes), replaces=True)


class _Resource(Protocol):
    @property
    def resource_type(self) -> int: ...
    @property
    def resource_name(self) -> str: ...


def refusal(call: Call[BodyT, NeedsT], operation: Operation, requested: _Resource) -> ErrorCode:
    """Return the error if the client may not perform the operation on a resource's settings, else NONE."""
    kind, name = resource_of(requested)
    if kind in _CLUSTERS:
        name = CLUSTER_NAME
    resource = Resource.CLUSTER if kind in _CLUSTERS else _NAMED.get(kind)
    if resource is None or call.allows(operation, resource, name):
        return ErrorCode.none
    return DENIED[resource]


def denial(call: Call[BodyT, NeedsT], config: BrokerConfig, new: NewSettings) -> Altered | None:
    """Return the answer for a resource whose settings the client, or the broker that it asked, does not let change."""
    error = refusal(call, Operation.ALTER_CONFIGS, new)
    if error:
        return Altered(*resource_of(new), error)
    is_asked = call.session.listener.kind is ListenerKind.BROKER
    return refused_here(config, new) if is_asked else None


def resource_of(requested: _Resource) -> tuple[int, str]:
    """Return the type and the name of a resource in a request."""
    return requested.resource_type, requested.resource_name


def change(resource_type: int, name: str, operation: int, value: str | None) -> Change:
    """Return one requested setting, with this project's name for a topic's setting."""
    if resource_type == ResourceType.TOPIC:
        name, value = our_setting(name, value)
    return Change(name, operation, value)


def our_setting(name: str, value: _Text) -> tuple[str, _Text]:
    """Return a topic's setting by this project's name; log a line where the client used another."""
    ours, meant = our_topic_setting(name, value)
    if ours != name:
        get_logger().info("setting by another name", setting=name, stands_for=ours, value=meant)
    return ours, meant
