"""Register this broker with the controller, and ask to be unfenced.

In: the broker's endpoints. Out: its registration. It never hosts a partition.

Kafka: BrokerLifecycleManager.
"""

from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from stratalog.broker.coordination.cluster_image import ClusterImage
from stratalog.broker.coordination.controller_channel import ControllerChannel
from stratalog.config import BrokerConfig
from stratalog.errors import ErrorCode
from stratalog.metadata.image import Endpoint
from stratalog.ports import Entropy
from stratalog.quorum.controller import BrokerHeartbeat, BrokerRegistration
from stratalog.wire.ids import TopicIdPartition

__all__ = ["Registration"]

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
        self.node_id = config.int("node.id")
        self.broker_epoch = _NO_EPOCH
        self.is_complete = False
        """Whether the image has this incarnation's endpoints, and not those from before a restart."""
        self._config = config
        self._entropy = entropy
        self._directory_ids = tuple(directory_ids)
        self._image = image
        self._controller = controller

    async def register(self, endpoints: Sequence[Endpoint]) -> None:
        """Register this broker in a new incarnation; once unfenced, it leads its former partitions in new leader
        epochs.
        """
        registration = BrokerRegistration(
            id=self.node_id,
            incarnation_id=self._entropy.uuid(),
            endpoints=tuple(endpoints),
            rack=self._config.str("broker.rack") or None,
            directories=self._directory_ids,
        )
        self.broker_epoch = await self._controller.register_broker(registration)
        await self.heartbeat()
        self.is_complete = True

    async def heartbeat(self) -> None:
        """Send a heartbeat with the metadata offset that this broker has applied. Raises Rejected."""
        offset = self._image.image.offset
        await self._controller.heartbeat(BrokerHeartbeat(self.node_id, self.broker_epoch, offset))

    async def assign_directories(
        self, assigned: Mapping[TopicIdPartition, UUID]
    ) -> set[TopicIdPartition]:
        """Record the directories of partitions; return those partitions that this broker still hosts."""
        codes = await self._controller.assign_directories(self.node_id, self.broker_epoch, assigned)
        return {key for key, code in codes.items() if code is ErrorCode.none}
