"""Collect records into batches, one open batch per partition, as Kafka's producer does.

In: records, with or without a partition of their own. Out: whole batches, into a pipeline. It never waits for an
acknowledgement: the pipeline raises refusals.
"""

from asyncio import Future
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from stratalog.client.calls import Produced
from stratalog.wire.ids import TopicPartition
from stratalog.wire.murmur2 import partition_of_key
from stratalog.wire.records import BatchBuilder, Header

Send = Callable[[str, int, BatchBuilder], Awaitable[Future[Produced] | None]]
"""A pipeline's `send_built`, or that of one that counts its acknowledgements itself."""
RECORD_OVERHEAD_BYTES = 30
"""More than lengths, deltas and attributes of a record take."""
HEADER_OVERHEAD_BYTES = 10
_GROUP = 256
"""Values whose size is looked at together."""


class Batches:
    """`add` records, then `flush`; `count` is how many were added.

    A key goes to the partition that Java's producer gives it (murmur2); a record without a key goes to the current
    partition for such records, which changes with each batch (KIP-480).
    """

    def __init__(self, send: Send, codec: str, batch_bytes: int) -> None:
        self.count = 0
        self._send_built = send
        self._codec = codec
        self._batch_bytes = batch_bytes
        self._open: dict[TopicPartition, BatchBuilder] = {}
        self._sticky = 0
        self._answers: deque[tuple[Future[Produced], int]] = deque()
        self._acknowledged = 0

    def choose(self, key: bytes | None, partitions: Sequence[TopicPartition]) -> TopicPartition:
        """Return the partition for a record that names none; `partitions` are all of its topic, in order."""
        if key is None:
            return partitions[self._sticky % len(partitions)]
        return partitions[partition_of_key(key, len(partitions))]

    async def add(
        self,
        partition: TopicPartition,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Sequence[Header] = (),
    ) -> None:
        """Add a record (`timestamp` in epoch ms) to its partition's batch; one without room for it goes first."""
        builder = self._open.get(partition)
        size = len(key or b"") + len(value or b"") + RECORD_OVERHEAD_BYTES
        for name, content in headers:
            size += len(name) * 3 + len(content or b"") + HEADER_OVERHEAD_BYTES
        if builder is not None and builder.size + size > self._batch_bytes:
            await self._send(partition)
            builder = None
        if builder is None:
            builder = self._open[partition] = BatchBuilder(self._codec)
        builder.add(key, value, timestamp, headers)
        self.count += 1

    async def extend(
        self,
        partition: TopicPartition,
        values: Sequence[bytes],
        timestamp: int,
        keys: Sequence[bytes | None] | None = None,
    ) -> None:
        """Add a record without headers for each value, to one partition; `keys` are as many as `values`."""
        for first in range(0, len(values), _GROUP):
            group = values[first : first + _GROUP]
            named = None if keys is None else keys[first : first + _GROUP]
            size = sum(map(len, group)) + len(group) * RECORD_OVERHEAD_BYTES
            size += sum(len(key) for key in named or () if key is not None)
            builder = self._open.get(partition)
            if builder is not None and builder.size + size > self._batch_bytes:
                await self._send(partition)
                builder = None
            if size > self._batch_bytes // 2:
                for key, value in zip(named or [None] * len(group), group, strict=True):
                    await self.add(partition, key, value, timestamp)
                continue
            if builder is None:
                builder = self._open[partition] = BatchBuilder(self._codec)
            builder.extend(group, timestamp, named)
            self.count += len(group)

    async def flush(self) -> None:
        """Send the open batches."""
        for partition in list(self._open):
            await self._send(partition)

    async def _send(self, partition: TopicPartition) -> None:
        builder = self._open.pop(partition)
        self._sticky += 1
        # The pipeline awaits the acknowledgement, and raises a refusal itself.
        answer = await self._send_built(*partition, builder)
        if answer is not None:
            self._answers.append((answer, builder.count))
        while self._answers and self._answers[0][0].done():
            self._take_answer()

    def acknowledged(self) -> int:
        """Return how many records a broker has acknowledged so far; call it once nothing more will be sent."""
        while self._answers:
            self._take_answer()
        return self._acknowledged

    def _take_answer(self) -> None:
        answer, count = self._answers.popleft()
        if answer.done() and not answer.cancelled() and answer.exception() is None:
            self._acknowledged += 0 if answer.result().error else count
