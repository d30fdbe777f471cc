"""A transactional producer of Kafka's first protocol or the second one, and a reader of committed records.

In: a connection. Out: error codes; the values that a reader sees. It repeats nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace
from tests.produce import produce_body
from tests.sim.machine import Machine
from tests.sim.raw import Raw, fetch_body, records_of
from tests.sim.records import values_in
from tests.sim.world import START_MS

from stratalog.coordinators.transaction import State
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.batch import scan
from stratalog.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from stratalog.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from stratalog.wire.messages.end_txn import EndTxnRequest
from stratalog.wire.messages.find_coordinator import FindCoordinatorRequest
from stratalog.wire.messages.init_producer_id import InitProducerIdRequest
from stratalog.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from stratalog.wire.records import Record, build_batch, read_records
from stratalog.wire.transactions import Aborted

ID = "tx"
WAIT_S = 30


async def eventually(ask: Callable[[], Awaitable[Any]], wanted: Any) -> None:
    async with asyncio.timeout(WAIT_S):
        while await ask() != wanted:
            await asyncio.sleep(0.1)


class Producer:
    """A transactional producer that sends one request after another, and no retry.

    `raises`: it speaks the second protocol: it names no partition, and each end gives it its next epoch.
    """

    def __init__(self, raw: Raw, name: str = ID, *, raises: bool = False) -> None:
        self.raw = raw
        self.raises = raises
        self.name = name
        self.id, self.epoch = -1, -1
        self.sequences: dict[int, int] = {}
        self.offset = -1
        """Of the last acknowledged write."""

    async def begin(self, *, timeout_ms: int = 60_000) -> ErrorCode:
        """Find the coordinator, and begin as the newest producer of the id."""
        await self.raw.ask(4, FindCoordinatorRequest(key_type=1, coordinator_keys=[self.name]))
        request = InitProducerIdRequest(
            transactional_id=self.name, transaction_timeout_ms=timeout_ms
        )
        found = await self.raw.ask(4, request)
        self.id, self.epoch, self.sequences = found.producer_id, found.producer_epoch, {}
        return ErrorCode(found.error_code)

    async def add(self, *partitions: int) -> ErrorCode:
        if self.raises:
            return ErrorCode.none
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=partitions)],
        )
        (topic,) = (await self.raw.ask(3, request)).results_by_topic_v3_and_below
        (code,) = {one.partition_error_code for one in topic.results_by_partition}
        return ErrorCode(code)

    async def write(
        self, partition: int, value: bytes, *, version: int | None = None, named: bool = True
    ) -> ErrorCode:
        if version is None:
            version = 12 if self.raises else 9
        sequence = self.sequences.get(partition, 0)
        batch = build_batch(
            [Record(0, START_MS, None, value)],
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        request = produce_body("t", batch, index=partition)
        answer = await self.raw.ask(
            version, replace(request, transactional_id=self.name if named else None)
        )
        (written,) = answer.responses[0].partition_responses
        code = ErrorCode(written.error_code)
        if code is ErrorCode.none:
            self.offset = written.base_offset
            self.sequences[partition] = sequence + 1
        return code

    async def begin_again(self, *, timeout_ms: int = 60_000) -> ErrorCode:
        """Ask for the next epoch with the present one (KIP-360)."""
        request = InitProducerIdRequest(
            transactional_id=self.name,
            transaction_timeout_ms=timeout_ms,
            producer_id=self.id,
            producer_epoch=self.epoch,
        )
        found = await self.raw.ask(5, request)
        if not found.error_code:
            self.id, self.epoch, self.sequences = found.producer_id, found.producer_epoch, {}
        return ErrorCode(found.error_code)

    def raise_to(self, machine: Machine, epoch: int) -> bool:
        """Give the producer a higher epoch, as after so many transactions, where it has no open one.

        The next record of the id carries it into the log. Return whether the producer has it.
        """
        if epoch <= self.epoch or not machine.is_up or machine.node.broker is None:
            return False
        try:
            shard = machine.broker.transactions._shard(self.name).machine
            found = shard.describe(self.name).answer
        except Rejected:
            return False
        if (found.producer_id, found.producer_epoch, found.state) != (
            self.id,
            self.epoch,
            State.EMPTY,
        ):
            return False
        shard.replay(self.name, replace(found, producer_epoch=epoch))
        self.epoch = epoch
        return True

    async def add_offsets(self, group_id: str = "g") -> ErrorCode:
        if self.raises:
            return ErrorCode.none
        request = AddOffsetsToTxnRequest(
            transactional_id=self.name,
            producer_id=self.id,
            producer_epoch=self.epoch,
            group_id=group_id,
        )
        return ErrorCode((await self.raw.ask(3, request)).error_code)

    async def commit_offset(
        self, offset: int, *, generation_id: int = -1, group_id: str = "g", topic: str = "t"
    ) -> ErrorCode:
        part = TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=None
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=group_id,
            producer_id=self.id,
            producer_epoch=self.epoch,
            generation_id=generation_id,
            topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[part])],
        )
        (found,) = (await self.raw.ask(5 if self.raises else 3, request)).topics
        return ErrorCode(found.partitions[0].error_code)

    async def end(self, *, commit: bool) -> ErrorCode:
        request = EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        answer = await self.raw.ask(5 if self.raises else 3, request)
        if self.raises and not answer.error_code:
            self.id, self.epoch, self.sequences = answer.producer_id, answer.producer_epoch, {}
        return ErrorCode(answer.error_code)


async def polled(raw: Raw, partition: int, offset: int) -> tuple[list[tuple[int, bytes]], int]:
    """Return the committed records of a partition of `t` from `offset` on, and where the next poll begins."""
    request = fetch_body([("t", partition, offset)], isolation_level=1, max_wait_ms=0, min_bytes=0)
    (found,) = (await raw.ask(11, request)).responses[0].partitions
    aborted = Aborted(
        [(one.producer_id, one.first_offset) for one in found.aborted_transactions or ()]
    )
    records: list[tuple[int, bytes]] = []
    view = memoryview(records_of(found))
    for position, header in scan(view):
        if not aborted.has(header) and not header.is_control:
            batch = view[position : position + header.size]
            records += [(one.offset, one.value or b"") for one in read_records(batch)]
        offset = header.next_offset
    return records, offset


async def committed(raw: Raw, partition: int = 0) -> list[bytes]:
    """Return the values that a reader of committed records sees in a partition of `t`."""
    request = fetch_body([("t", partition, 0)], isolation_level=1, max_wait_ms=0, min_bytes=0)
    (found,) = (await raw.ask(11, request)).responses[0].partitions
    aborted = Aborted(
        [(one.producer_id, one.first_offset) for one in found.aborted_transactions or ()]
    )
    return kept(records_of(found), aborted)


def kept(data: bytes, aborted: Aborted) -> list[bytes]:
    values: list[bytes] = []
    view = memoryview(data)
    for position, header in scan(view):
        if not aborted.has(header) and not header.is_control:
            values += [one for _, one in values_in(view[position : position + header.size])]
    return values
