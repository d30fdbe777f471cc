"""Producer ids, from blocks that the controller gives to this broker.

In: nothing. Out: ids that no other producer of the cluster has. It holds the unused ids of one block, and loses them
when the process ends.

Kafka: `RPCProducerIdManager`.
"""

import asyncio

from stratalog.broker.coordination.controller_channel import ControllerChannel
from stratalog.broker.coordination.registration import Registration
from stratalog.errors import ErrorCode, Rejected


class ProducerIds:
    """One broker's."""

    def __init__(self, controller: ControllerChannel, registration: Registration) -> None:
        self._controller = controller
        self._registration = registration
        self._block = range(0)
        self._reserving = asyncio.Lock()

    async def next(self) -> int:
        """Return an id that no producer of this cluster ever had.

        Raises Rejected(COORDINATOR_LOAD_IN_PROGRESS) while the controller gives no block.
        """
        async with self._reserving:
            if not self._block:
                self._block = await self._allocate()
            producer_id = self._block[0]
            self._block = self._block[1:]
            return producer_id

    async def _allocate(self) -> range:
        registration = self._registration
        try:
            return await self._controller.allocate_producer_ids(
                registration.node_id, registration.broker_epoch
            )
        except Rejected as error:
            # Clients repeat InitProducerId after this code, and after few others.
            raise Rejected(ErrorCode.coordinator_load_in_progress, error.message) from error
