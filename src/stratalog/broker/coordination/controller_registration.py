"""Register this node's controller with the active one, so that admin clients find every controller (KIP-919).

In: where the controller listens, the image. Out: requests until the image has the registration. It decides nothing.

Kafka: ControllerRegistrationManager.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import structlog

from stratalog.broker.coordination.cluster_image import ClusterImage
from stratalog.broker.coordination.controller_channel import ControllerChannel
from stratalog.errors import Rejected
from stratalog.metadata.image import Endpoint
from stratalog.ports import Entropy
from stratalog.quorum.features import SUPPORTED_FEATURES
from stratalog.wire.internal.metadata_records import (
    ControllerEndpoint,
    ControllerFeature,
    RegisterControllerRecord,
)

__all__ = ["keep_controller_registered"]

_RETRY_S: Final = 1.0
_LOOK_S: Final = 60.0
"""How often a registered controller looks whether the image still has its registration."""


async def keep_controller_registered(
    node_id: int,
    endpoints: Sequence[Endpoint],
    entropy: Entropy,
    image: ClusterImage,
    controller: ControllerChannel,
) -> None:
    """Register the controller of this start, and again where the image has lost the registration. It never returns."""
    record = RegisterControllerRecord(
        controller_id=node_id,
        incarnation_id=entropy.uuid(),
        zk_migration_ready=False,
        end_points=tuple(
            ControllerEndpoint(
                name=one.name,
                host=one.host,
                port=one.port,
                security_protocol=one.security_protocol,
            )
            for one in endpoints
        ),
        features=tuple(
            ControllerFeature(
                name=one.name,
                min_supported_version=one.min_level,
                max_supported_version=one.max_level,
            )
            for one in SUPPORTED_FEATURES
        ),
    )
    while True:
        if image.image.controllers.get(node_id) == record:
            await asyncio.sleep(_LOOK_S)
            continue
        try:
            await controller.register_controller(record)
        except Rejected as error:
            structlog.get_logger().info("controller not registered yet", reason=error.message)
        await asyncio.sleep(_RETRY_S)
