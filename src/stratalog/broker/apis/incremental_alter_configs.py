"""IncrementalAlterConfigs (key 44), versions 0-1.

Settings one by one (KIP-339). v1 flexible.
"""

from typing import Any

from stratalog.broker.api import Api, Call
from stratalog.broker.apis.alter_configs import change, results
from stratalog.quorum.controller import Alteration


async def handle(call: Call) -> Any:
    """Set, unset, extend and shorten settings of topics and brokers; each resource has its own error."""
    asked = [
        Alteration(
            resource.resource_type,
            resource.resource_name,
            tuple(
                change(resource, one.name, one.config_operation, one.value)
                for one in resource.configs
            ),
        )
        for resource in call.body.resources
    ]
    altered = await call.broker.metadata.alter_configs(asked, validate_only=call.body.validate_only)
    return call.reply.IncrementalAlterConfigsResponse(responses=results(call.reply, altered))


API = Api("IncrementalAlterConfigs", 44, (0, 1), handle)
