"""IncrementalAlterConfigs (key 44), versions 0-1.

Settings one by one (KIP-339). v1 flexible.
"""

from stratalog.broker.api import Api, Call
from stratalog.broker.apis.alter_configs import change
from stratalog.quorum.controller import Alteration
from stratalog.wire.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


async def handle(call: Call[IncrementalAlterConfigsRequest]) -> IncrementalAlterConfigsResponse:
    """Set, unset, extend and shorten settings of topics and brokers; each resource has its own error."""
    asked = [
        Alteration(
            resource.resource_type,
            resource.resource_name,
            tuple(
                change(resource.resource_type, one.name, one.config_operation, one.value)
                for one in resource.configs
            ),
        )
        for resource in call.body.resources
    ]
    altered = await call.broker.metadata.alter_configs(asked, validate_only=call.body.validate_only)
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


API = Api("IncrementalAlterConfigs", 44, (0, 1), handle)
