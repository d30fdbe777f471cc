"""IncrementalAlterConfigs (key 44), versions 0-1.

Settings one by one (KIP-339). v1 flexible.
"""

from typing import NamedTuple

from stratalog.broker.apis.alter_configs import change, denial, resource_of
from stratalog.broker.coordination.local_controller import LocalController
from stratalog.broker.network.dispatch import Call
from stratalog.config import BrokerConfig
from stratalog.errors import Rejected
from stratalog.quorum.controller import Alteration, Altered
from stratalog.quorum.topics import SETTINGS_MAX
from stratalog.wire.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


class Needs(NamedTuple):
    """The parts of the broker that the handler works with."""

    config: BrokerConfig
    local_controller: LocalController


async def handle(
    call: Call[IncrementalAlterConfigsRequest, Needs],
) -> IncrementalAlterConfigsResponse:
    """Set, unset, extend and shorten settings of topics and brokers; each resource has its own error."""
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
    return IncrementalAlterConfigsResponse(
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
    call: Call[IncrementalAlterConfigsRequest, Needs], resource: AlterConfigsResource
) -> Alteration:
    # The controller refuses too many resources, so it need not see all of them.
    changes = [
        change(resource.resource_type, one.name, one.config_operation, one.value)
        async for one in call.pace.each(resource.configs[: SETTINGS_MAX + 1])
    ]
    return Alteration(resource.resource_type, resource.resource_name, tuple(changes))
