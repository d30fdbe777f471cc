"""A client of a run that produces each record once: an idempotent producer that sends a batch again until it is in.

In: a cluster under faults, the ledger of a topic. Out: records that were acknowledged, and those that may be there. The
check at the end: each acknowledged record is in the log once, and the records of one producer are in its order.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from random import Random

from tests.cluster.checks import Broken
from tests.cluster.clients import PAUSE_S, TIMEOUT_S, Ledger, kind_of
from tests.sim.cluster import Cluster, host_of

from stratalog.client.aio import Client
from stratalog.client.idempotent import IdempotentPipeline
from stratalog.errors import Rejected, Unavailable
from stratalog.wire.records import BatchBuilder

BURST = 8
"""Batches between two looks at what is acknowledged: more than the five that may be under way."""


class IdempotentProducer:
    """Writes bursts through the client's pipeline, each burst with the same producer id until one fails for good."""

    def __init__(
        self, number: int, cluster: Cluster, ledger: Ledger, counts: Counter[str], seed: int
    ) -> None:
        self._number = number
        self._cluster = cluster
        self._ledger = ledger
        self._counts = counts
        self._chance = Random(seed)
        self._written = 0
        self._client: Client | None = None
        self._pipeline: IdempotentPipeline | None = None
        self.acknowledged: dict[int, list[bytes]] = {one: [] for one in range(ledger.partitions)}
        self._order: dict[bytes, int] = {}
        """The place of each value among all that this producer sent."""

    async def step(self) -> None:
        """Write a burst, and wait until all of it is acknowledged."""
        chance, ledger = self._chance, self._ledger
        burst: list[tuple[int, list[bytes]]] = []
        for _ in range(chance.randint(1, BURST)):
            self._written += 1
            count = chance.randint(1, 3)
            values = [b"once-%d-%d-%d" % (self._number, self._written, n) for n in range(count)]
            self._order |= {value: len(self._order) + n for n, value in enumerate(values)}
            burst.append((chance.randrange(ledger.partitions), values))
        try:
            pipeline = await self._begun()
            for partition, values in burst:
                ledger.sent.update(values)
                await pipeline.send(ledger.topic, partition, self._batch(values))
            await pipeline.drain()
        except (Unavailable, Rejected, TimeoutError) as error:
            self._counts[f"idempotent refused: {kind_of(error)}"] += 1
            await self.close()
            await asyncio.sleep(PAUSE_S)
            return
        for partition, values in burst:
            self.acknowledged[partition] += values
            self._counts["acknowledged once"] += len(values)
        await asyncio.sleep(chance.uniform(0, 0.3))

    async def _begun(self) -> IdempotentPipeline:
        if self._pipeline is None:
            servers = ",".join(f"{host_of(one)}:9092" for one in self._cluster.machines)
            network = self._cluster.world.network
            self._client = await Client.connect(network, servers, timeout_s=TIMEOUT_S)
            self._pipeline = await IdempotentPipeline(self._client).__aenter__()
            self._counts["idempotent producers"] += 1
        return self._pipeline

    def _batch(self, values: list[bytes]) -> BatchBuilder:
        builder = BatchBuilder()
        for value in values:
            builder.add(None, value, self._cluster.world.clock.now_ms())
        return builder

    async def close(self) -> None:
        client, self._client, self._pipeline = self._client, None, None
        if client is not None:
            await client.close()

    def check(self, partition: int, found: Mapping[int, bytes]) -> None:
        """Compare with the values of the partition's log, by offset; the ledger counts how often. Raises Broken."""
        places = [self._order[one] for _, one in sorted(found.items()) if one in self._order]
        name = f"{self._ledger.topic}-{partition}: idempotent producer {self._number}"
        if places != sorted(places):
            raise Broken(f"NoReorderFromIdempotence: {name}: records in another order than sent")
        missing = set(self.acknowledged[partition]) - set(found.values())
        if missing:
            raise Broken(f"AckedRecordsSurvive: {name}: lost {sorted(missing)[:3]}")
