"""Clients of a run: producers and a reader of one topic, and the ledger of what they were answered.

In: a cluster under faults. Out: a ledger; raises `Broken` where an answer contradicts an earlier one, and at the end
where a log contradicts the ledger. A failed record is not sent again: the log may have it or not.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import TypeVar

from tests.cluster.checks import Broken
from tests.sim.cluster import Cluster, host_of
from tests.sim.records import batch, values_in

from stratalog.client.aio import Client
from stratalog.errors import Rejected, Unavailable

T = TypeVar("T")
TIMEOUT_S = 5.0
PAUSE_S = 0.2


class Session:
    """A client that connects again after each failure."""

    def __init__(self, cluster: Cluster, counts: Counter[str]) -> None:
        self._cluster = cluster
        self._counts = counts
        self._client: Client | None = None

    async def ask(self, request: Callable[[Client], Awaitable[T]]) -> T | None:
        """Return the answer; None after a failure, and a pause."""
        try:
            if self._client is None:
                servers = ",".join(f"{host_of(one)}:9092" for one in self._cluster.machines)
                network = self._cluster.world.network
                self._client = await Client.connect(network, servers, timeout_s=TIMEOUT_S)
            async with asyncio.timeout(4 * TIMEOUT_S):
                return await request(self._client)
        except (Unavailable, Rejected, TimeoutError) as error:
            self._counts["refused"] += 1
            self._counts[f"refused: {kind_of(error)}"] += 1
            await self.close()
            await asyncio.sleep(PAUSE_S)
            return None

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()


def kind_of(error: Exception) -> str:
    return error.code.name if isinstance(error, Rejected) else type(error).__name__.lower()


class Ledger:
    """What producers of a topic sent, which answers they got, and what readers read."""

    def __init__(self, topic: str, partitions: int) -> None:
        self.topic = topic
        self.partitions = partitions
        self.sent: set[bytes] = set()
        self.known: dict[tuple[int, int], bytes] = {}
        """(partition, offset) -> value that was acknowledged there, or read there."""
        self.acknowledged = 0

    def note(self, partition: int, offset: int, value: bytes, how: str) -> None:
        """Note what an answer says. Raises Broken where an earlier one says something else."""
        before = self.known.setdefault((partition, offset), value)
        if before != value:
            raise Broken(
                f"AckedRecordsSurvive: {self.topic}-{partition}, offset {offset}: {value!r} {how}, "
                f"{before!r} before"
            )

    def check(self, partition: int, found: Mapping[int, bytes]) -> None:
        """Compare with the values of the partition's log, by offset. Raises Broken."""
        values = list(found.values())
        if len(set(values)) != len(values) or not set(values) <= self.sent:
            raise Broken(f"{self.topic}-{partition}: a record is there twice, or was never sent")
        for (index, offset), value in self.known.items():
            if index == partition and found.get(offset) != value:
                raise Broken(
                    f"AckedRecordsSurvive: {self.topic}-{index}: {value!r} lost at {offset}: "
                    f"{found.get(offset)!r}"
                )


class Producer:
    """Writes batches with acks=all to any partition."""

    def __init__(
        self, number: int, cluster: Cluster, ledger: Ledger, counts: Counter[str], seed: int
    ) -> None:
        self._number = number
        self._session = Session(cluster, counts)
        self._clock = cluster.world.clock
        self._ledger = ledger
        self._counts = counts
        self._chance = Random(seed)
        self._batches = 0

    async def step(self) -> None:
        ledger, chance = self._ledger, self._chance
        self._batches += 1
        partition = chance.randrange(ledger.partitions)
        values = [
            b"%d-%d-%d" % (self._number, self._batches, n) for n in range(chance.randint(1, 4))
        ]
        ledger.sent.update(values)
        made = batch(values, self._clock.now_ms())
        produced = await self._session.ask(
            lambda client: client.produce(ledger.topic, partition, made)
        )
        if produced is not None:
            for place, value in enumerate(values):
                ledger.note(partition, produced.base_offset + place, value, "acknowledged")
            ledger.acknowledged += len(values)
            self._counts["acknowledged"] += len(values)
        if chance.random() < 0.5:
            await asyncio.sleep(chance.uniform(0, 0.3))

    async def close(self) -> None:
        await self._session.close()


class Reader:
    """Reads each partition to its end, sometimes again from an earlier offset."""

    def __init__(self, cluster: Cluster, ledger: Ledger, counts: Counter[str], seed: int) -> None:
        self._session = Session(cluster, counts)
        self._ledger = ledger
        self._counts = counts
        self._chance = Random(seed)
        self._offsets = dict.fromkeys(range(ledger.partitions), 0)

    async def step(self) -> None:
        ledger, chance = self._ledger, self._chance
        partition = chance.randrange(ledger.partitions)
        offset = self._offsets[partition]
        if chance.random() < 0.1:
            offset = chance.randint(0, offset)
        fetched = await self._session.ask(
            lambda client: client.fetch(ledger.topic, partition, offset, max_wait_ms=100)
        )
        if fetched is not None:
            for at, value in values_in(fetched.records):
                if at >= offset:
                    ledger.note(partition, at, value, "read")
                    self._counts["read"] += 1
                    self._offsets[partition] = max(self._offsets[partition], at + 1)
        await asyncio.sleep(chance.uniform(0, 0.2))

    async def close(self) -> None:
        await self._session.close()
