"""Write in transactions: begin one, write its batches, end it (KIP-98, KIP-939).

In: a client, a transactional id, batches that are not built yet. Out: the batches in the log, once, in one open
transaction, and its end. It never decides between commit and abort.

It speaks Kafka's first protocol, which every broker from Kafka 2.0 on serves: a producer names its partitions first.
The second one guards a producer that uses one epoch for many transactions; here each `begin` raises the epoch.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeVar

from stratalog.client.aio import Client
from stratalog.client.apis import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    INIT_PRODUCER_ID,
    TXN_OFFSET_COMMIT,
)
from stratalog.client.calls import Call, error_of
from stratalog.client.cluster import PASSING
from stratalog.errors import ErrorCode, Rejected, Unavailable
from stratalog.wire.ids import TopicPartition
from stratalog.wire.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from stratalog.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from stratalog.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from stratalog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from stratalog.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

__all__ = ["LOST", "Producer", "Transaction", "begin", "end", "patiently"]

T = TypeVar("T")

LOST: Final = frozenset(
    {
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.invalid_txn_state,
        ErrorCode.producer_fenced,
        ErrorCode.transactional_id_not_found,
    }
)
"""Answers to `end` of a transaction that is no longer open, and did not end so."""
_AGAIN: Final = PASSING | {
    ErrorCode.concurrent_transactions,
    ErrorCode.unstable_offset_commit,
}
_PATIENCE_S: Final = 60.0
_PAUSES_S: Final = (0.01, 0.5)
"""The first pause between attempts, and the longest one; each is twice the one before."""
_TWO_PHASE_FROM: Final = 6
_ADD_TO, _END_TO = 3, 4
"""The last versions of the first protocol."""


class Producer(NamedTuple):
    """The one that writes a transaction; no time-out ends its transactions where `two_phase` is true."""

    producer_id: int
    epoch: int
    two_phase: bool = False


class Transaction:
    """An open transaction. `add` a partition before the first batch for it."""

    def __init__(self, client: Client, transactional_id: str, producer: Producer) -> None:
        self.transactional_id = transactional_id
        self.producer = producer
        self.partitions: set[TopicPartition] = set()
        self._client = client

    async def add(self, partition: TopicPartition) -> None:
        """Add a partition, if the transaction lacks it. Raises Rejected, Unavailable."""
        if partition not in self.partitions:
            call = _add_partition(self.transactional_id, self.producer, partition)
            await _on_coordinator(self._client, self.transactional_id, call)
            self.partitions.add(partition)

    async def commit_offset(self, group: str, partition: TopicPartition, offset: int) -> None:
        """Make a group's offset part of the transaction. Raises Rejected, Unavailable."""
        add = _add_offsets(self.transactional_id, self.producer, group)
        await _on_coordinator(self._client, self.transactional_id, add)
        call = _commit_offset(self, group, partition, offset)
        await patiently(lambda: self._client.on_coordinator(group, call))


async def begin(
    client: Client, transactional_id: str, *, timeout_ms: int, two_phase: bool
) -> Transaction:
    """Fence the id's earlier producers, abort what they left open, and return a transaction without partitions.

    `two_phase`: no time-out aborts it, if the coordinator has KIP-939. Raises Rejected, Unavailable.
    """
    call = _init_transactional_id(transactional_id, timeout_ms, two_phase=two_phase)
    producer = await _on_coordinator(client, transactional_id, call)
    return Transaction(client, transactional_id, producer)


async def end(client: Client, transactional_id: str, producer: Producer, *, commit: bool) -> None:
    """End a transaction that any client has written; repeat it as often as you want.

    Raises Rejected with a code of `LOST` where it has ended otherwise, or belongs to another producer by now; Rejected,
    Unavailable.
    """
    call = _end_transaction(transactional_id, producer, commit=commit)
    await _on_coordinator(client, transactional_id, call)


async def patiently(attempt: Callable[[], Awaitable[T]]) -> T:
    """Run `attempt` again for up to a minute while a coordinator or leader loads, moves or is away, or writes markers.

    A dead broker's partitions have other leaders after `broker.session.timeout.ms`. Raises Rejected, Unavailable.
    """
    pause, longest = _PAUSES_S
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _PATIENCE_S
    while True:
        try:
            return await attempt()
        except (Rejected, Unavailable) as error:
            passing = isinstance(error, Unavailable) or error.code in _AGAIN
            if not passing or loop.time() > deadline:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, longest)


async def _on_coordinator(client: Client, transactional_id: str, call: Call[T]) -> T:
    return await patiently(lambda: client.on_transaction_coordinator(transactional_id, call))


def _init_transactional_id(
    transactional_id: str, timeout_ms: int, *, two_phase: bool
) -> Call[Producer]:
    used = False

    def build(version: int) -> InitProducerIdRequest:
        nonlocal used
        used = two_phase and version >= _TWO_PHASE_FROM
        return InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=timeout_ms, enable2_pc=used
        )

    def read(body: InitProducerIdResponse) -> Producer:
        if body.error_code:
            raise _refused(transactional_id, body.error_code)
        return Producer(body.producer_id, body.producer_epoch, used)

    return Call(INIT_PRODUCER_ID, build, read)


def _add_partition(
    transactional_id: str, producer: Producer, partition: TopicPartition
) -> Call[None]:
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=[
            AddPartitionsToTxnTopic(name=partition.topic, partitions=[partition.partition])
        ],
    )

    def read(body: AddPartitionsToTxnResponse) -> None:
        ((found,),) = (one.results_by_partition for one in body.results_by_topic_v3_and_below)
        if found.partition_error_code:
            code = error_of(found.partition_error_code)
            raise Rejected(code, f"{transactional_id}, {partition}: {code.name}")

    return Call(ADD_PARTITIONS_TO_TXN, lambda _version: request, read, highest=_ADD_TO)


def _add_offsets(transactional_id: str, producer: Producer, group: str) -> Call[None]:
    request = AddOffsetsToTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        group_id=group,
    )

    def read(body: AddOffsetsToTxnResponse) -> None:
        if body.error_code:
            raise _refused(transactional_id, body.error_code)

    return Call(ADD_OFFSETS_TO_TXN, lambda _version: request, read, highest=_ADD_TO)


def _commit_offset(
    transaction: Transaction, group: str, partition: TopicPartition, offset: int
) -> Call[None]:
    row = TxnOffsetCommitRequestPartition(
        partition_index=partition.partition, committed_offset=offset, committed_metadata=""
    )
    request = TxnOffsetCommitRequest(
        transactional_id=transaction.transactional_id,
        group_id=group,
        producer_id=transaction.producer.producer_id,
        producer_epoch=transaction.producer.epoch,
        topics=[TxnOffsetCommitRequestTopic(name=partition.topic, partitions=[row])],
    )

    def read(body: TxnOffsetCommitResponse) -> None:
        ((found,),) = (one.partitions for one in body.topics)
        if found.error_code:
            raise _refused(transaction.transactional_id, found.error_code)

    return Call(TXN_OFFSET_COMMIT, lambda _version: request, read, highest=_ADD_TO)


def _end_transaction(transactional_id: str, producer: Producer, *, commit: bool) -> Call[None]:
    request = EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        committed=commit,
    )

    def read(body: EndTxnResponse) -> None:
        if body.error_code:
            raise _refused(transactional_id, body.error_code)

    return Call(END_TXN, lambda _version: request, read, highest=_END_TO)


def _refused(transactional_id: str, number: int) -> Rejected:
    code = error_of(number)
    return Rejected(code, f"transactional id {transactional_id}: {code.name}")
