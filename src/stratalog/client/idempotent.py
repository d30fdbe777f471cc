"""Produce every record once, over deaths of leaders (KIP-98).

In: batches that are not built yet, each for one partition. Out: the same batches in the log, once and in the order of
their `send`. It never gives a batch up before its time is over, and then raises.

In a transaction, its producer writes them, and each partition is added to it first. Ending it is the caller's.
With `acks` 1 there is no producer id, as in Kafka: a batch that is sent again may be in the log twice.

Each batch carries a producer id and the sequence number of its first record, so a leader recognizes a repeated batch.
A leader remembers five batches of a producer: no more are under way.
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from stratalog.client import calls
from stratalog.client.aio import Client
from stratalog.client.calls import Produced
from stratalog.client.cluster import PASSING
from stratalog.client.link import Link
from stratalog.client.transactional import Transaction
from stratalog.errors import ErrorCode, Rejected, Unavailable
from stratalog.wire.ids import TopicPartition
from stratalog.wire.records import BatchBuilder

__all__ = ["IdempotentPipeline"]

_WINDOW: Final = 5
"""Kafka: NUM_BATCHES_TO_RETAIN of ProducerStateEntry."""
_DELIVERY_S: Final = 120.0
"""Kafka: the default of `delivery.timeout.ms`."""
_PAUSE_S: Final = 0.1
"""Kafka: the default of `retry.backoff.ms`."""
_SEQUENCES: Final = 1 << 31
_AGAIN: Final = PASSING | {
    ErrorCode.not_enough_replicas,
    ErrorCode.not_enough_replicas_after_append,
    ErrorCode.unknown_topic_or_partition,
}
"""Refusals of a batch that another attempt may not meet. A new topic reaches one broker after another."""


@dataclass(slots=True, eq=False)
class _Open:
    """A batch without acknowledgement; `answer` is that of the latest attempt."""

    partition: TopicPartition
    data: bytearray
    answer: "tuple[Link, asyncio.Future[Produced]] | Rejected | Unavailable"


class IdempotentPipeline:
    """`async with IdempotentPipeline(client) as pipeline: await pipeline.send("t", 0, builder)`."""

    def __init__(
        self,
        client: Client,
        transaction: Transaction | None = None,
        *,
        acks: int = -1,
        delivery_s: float = _DELIVERY_S,
    ) -> None:
        """`delivery_s`: how long a batch is sent again."""
        assert transaction is None or acks == -1, "a transaction waits for all replicas"
        self._client = client
        self._acks = acks
        self._delivery_s = delivery_s
        self._transaction = transaction
        self._producer = (-1, -1)
        self._sequences: dict[TopicPartition, int] = {}
        self._open: deque[_Open] = deque()
        self._deadline: float | None = None
        """The loop's time at which the oldest batch is given up; None while no attempt of it has failed."""

    async def __aenter__(self) -> Self:
        """Raises Unavailable, Rejected where the cluster gives no producer id."""
        if self._transaction is not None:
            self._producer = self._transaction.producer[:2]
        elif self._acks == -1:
            self._producer = await self._client.init_producer_id()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            await self.drain()

    async def send(self, topic: str, partition: int, batch: BatchBuilder) -> None:
        """Send a batch; wait while five are not acknowledged. Raises as `drain`."""
        while len(self._open) >= _WINDOW:
            await self._await_oldest()
        key = TopicPartition(topic, partition)
        sequence = self._sequences.get(key, 0)
        self._sequences[key] = (sequence + batch.count) % _SEQUENCES
        id_, epoch = self._producer
        in_transaction = self._transaction is not None
        if self._transaction is not None:
            await self._transaction.add(key)
        data = batch.build(
            producer_id=id_,
            producer_epoch=epoch,
            base_sequence=sequence if id_ >= 0 else -1,
            transactional=in_transaction,
        )
        self._open.append(_Open(key, data, await self._sent(key, data)))

    async def drain(self) -> None:
        """Wait until every batch is acknowledged.

        Raises Rejected for a refusal that stays, and the last error of a batch whose time is over.
        """
        while self._open:
            await self._await_oldest()

    async def _await_oldest(self) -> None:
        """Wait for the oldest batch. Where its attempt failed, send it and all later ones again."""
        error = await self._error_of(self._open[0])
        if error is None:
            self._open.popleft()
            self._deadline = None
            return
        now = asyncio.get_running_loop().time()
        self._deadline = now + self._delivery_s if self._deadline is None else self._deadline
        if now > self._deadline or (isinstance(error, Rejected) and error.code not in _AGAIN):
            raise error
        for later in list(self._open)[1:]:  # else a late attempt could overtake a new one
            await self._error_of(later)
        await asyncio.sleep(_PAUSE_S)
        for one in self._open:
            self._client.forget(one.partition.topic)
        for one in self._open:
            one.answer = await self._sent(one.partition, one.data)

    async def _sent(
        self, partition: TopicPartition, data: bytearray
    ) -> "tuple[Link, asyncio.Future[Produced]] | Rejected | Unavailable":
        try:
            link = await self._client.leader_link(*partition)
        except (Rejected, Unavailable) as error:
            return error
        await link.writable()
        call = calls.produce(
            *partition,
            data,
            acks=self._acks,
            timeout_ms=int(self._client.timeout_s * 1000),
            transactional_id=None
            if self._transaction is None
            else self._transaction.transactional_id,
        )
        return link, link.send(call)

    async def _error_of(self, one: _Open) -> Rejected | Unavailable | None:
        """Return why the latest attempt failed; None where the batch is in the log."""
        if not isinstance(one.answer, tuple):
            return one.answer
        try:
            produced = await self._client.within(*one.answer)
        except (Rejected, Unavailable) as error:
            return error
        if produced.error in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
            return None
        return Rejected(
            produced.error, f"{one.partition}: {produced.message or produced.error.name}"
        )
