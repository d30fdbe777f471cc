"""Producer ids, from blocks that the controller gives to this broker.

In: nothing. Out: ids that no other producer of the cluster has. It holds the rest of one block, and loses it when the
process ends.

Kafka: `RPCProducerIdManager`.
"""

import asyncio

from stratalog.broker.coordination.cluster_metadata import ClusterMetadata


class ProducerIds:
    """One broker's."""

    def __init__(self, metadata: ClusterMetadata) -> None:
        self._metadata = metadata
        self._block = range(0)
        self._asked = asyncio.Lock()

    async def next(self) -> int:
        """Return an id that no producer of this cluster ever had."""
        async with self._asked:
            if not self._block:
                self._block = await self._metadata.allocate_producer_ids()
            producer_id = self._block[0]
            self._block = self._block[1:]
            return producer_id
