"""Register this broker with the controller, and let it lead again what it led.

In: where the broker can be reached. Out: its registration. It never hosts a partition.

Kafka: BrokerLifecycleManager, without heartbeats.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Final
from uuid import UUID

from stratalog.broker.coordination.cluster_image import ClusterImage
from stratalog.broker.coordination.controller_channel import ControllerChannel
from stratalog.config import BrokerConfig
from stratalog.metadata.image import Endpoint
from stratalog.ports import Entropy
from stratalog.quorum.controller import BrokerRegistration
from stratalog.replication.roles import replicas_of
from stratalog.wire.ids import TopicIdPartition

__all__ = ["Registration"]

_ACTIVATED_AT_ONCE: Final = 1000
"""Partitions of which one decision names the broker leader."""
_NO_EPOCH: Final = -1


class Registration:
    """The registration of one life of the broker."""

    def __init__(
        self,
        config: BrokerConfig,
        entropy: Entropy,
        directory_ids: Sequence[UUID],
        image: ClusterImage,
        controller: ControllerChannel,
    ) -> None:
        self.broker_epoch = _NO_EPOCH
        self.is_complete = False
        """Whether the image says where this broker can be reached now, and not before it was restarted."""
        self._config = config
        self._entropy = entropy
        self._directory_ids = tuple(directory_ids)
        self._image = image
        self._controller = controller

    async def register(self, endpoints: Sequence[Endpoint]) -> None:
        """Register this broker in a new incarnation, unfence it, and let it lead what it led in new leader epochs."""
        node_id = self._config.int("node.id")
        registration = BrokerRegistration(
            id=node_id,
            incarnation_id=self._entropy.uuid(),
            endpoints=tuple(endpoints),
            rack=self._config.str("broker.rack") or None,
            directories=self._directory_ids,
        )
        self.broker_epoch = await self._controller.register_broker(registration)
        await self._controller.unfence_broker(self.broker_epoch)
        mine = (
            TopicIdPartition(topic.id, index)
            for topic, index, _ in replicas_of(self._image.image, node_id)
        )
        while part := list(islice(mine, _ACTIVATED_AT_ONCE)):
            await self._controller.activate_leaders(part)
        self.is_complete = True
