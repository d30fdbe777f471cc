"""Goal: a transaction is seen whole or never, whatever ends it: its producer, another one, time, or a crash.

Method: the real node under a virtual clock, requests as a client of Kafka's first protocol of transactions sends them.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace
from tests.produce import produce_body
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw, fetch_body, list_offsets_body, records_of
from tests.sim.records import values_in
from tests.sim.world import START_MS, World

from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode
from stratalog.wire.batch import scan
from stratalog.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from stratalog.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from stratalog.wire.messages.end_txn import EndTxnRequest
from stratalog.wire.messages.find_coordinator import FindCoordinatorRequest
from stratalog.wire.messages.init_producer_id import InitProducerIdRequest
from stratalog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from stratalog.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from stratalog.wire.records import Record, build_batch
from stratalog.wire.transactions import Aborted

ID = "tx"
SETTINGS = {"transaction.state.log.num.partitions": "2"}
WAIT_S = 30


async def eventually(ask: Callable[[], Awaitable[Any]], wanted: Any) -> None:
    async with asyncio.timeout(WAIT_S):
        while await ask() != wanted:
            await asyncio.sleep(0.1)


class Producer:
    """A transactional producer that sends one request after another, and no retry."""

    def __init__(self, raw: Raw) -> None:
        self.raw = raw
        self.id, self.epoch = -1, -1
        self.sequences: dict[int, int] = {}

    async def begin(self, *, timeout_ms: int = 60_000) -> ErrorCode:
        """Find the coordinator, and begin as the newest producer of the id."""
        await self.raw.ask(4, FindCoordinatorRequest(key_type=1, coordinator_keys=[ID]))
        request = InitProducerIdRequest(transactional_id=ID, transaction_timeout_ms=timeout_ms)
        found = await self.raw.ask(4, request)
        self.id, self.epoch, self.sequences = found.producer_id, found.producer_epoch, {}
        return ErrorCode(found.error_code)

    async def add(self, *partitions: int) -> ErrorCode:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=ID,
            v3_and_below_producer_id=self.id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=partitions)],
        )
        (topic,) = (await self.raw.ask(3, request)).results_by_topic_v3_and_below
        (code,) = {one.partition_error_code for one in topic.results_by_partition}
        return ErrorCode(code)

    async def write(
        self, partition: int, value: bytes, *, version: int = 9, transactional_id: str | None = ID
    ) -> ErrorCode:
        sequence = self.sequences.get(partition, 0)
        batch = build_batch(
            [Record(0, START_MS, None, value)],
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        request = produce_body("t", batch, index=partition)
        answer = await self.raw.ask(version, replace(request, transactional_id=transactional_id))
        code = ErrorCode(answer.responses[0].partition_responses[0].error_code)
        if code is ErrorCode.none:
            self.sequences[partition] = sequence + 1
        return code

    async def add_offsets(self) -> ErrorCode:
        request = AddOffsetsToTxnRequest(
            transactional_id=ID, producer_id=self.id, producer_epoch=self.epoch, group_id="g"
        )
        return ErrorCode((await self.raw.ask(3, request)).error_code)

    async def commit_offset(self, offset: int, *, generation_id: int = -1) -> ErrorCode:
        part = TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=None
        )
        request = TxnOffsetCommitRequest(
            transactional_id=ID,
            group_id="g",
            producer_id=self.id,
            producer_epoch=self.epoch,
            generation_id=generation_id,
            topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[part])],
        )
        (topic,) = (await self.raw.ask(3, request)).topics
        return ErrorCode(topic.partitions[0].error_code)

    async def end(self, *, commit: bool) -> ErrorCode:
        request = EndTxnRequest(
            transactional_id=ID, producer_id=self.id, producer_epoch=self.epoch, committed=commit
        )
        return ErrorCode((await self.raw.ask(3, request)).error_code)


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


async def offset_of(raw: Raw, *, stable: bool = True) -> tuple[int, int]:
    """Return the group's committed offset and its error."""
    group = OffsetFetchRequestGroup(
        group_id="g", topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    )
    answer = await raw.ask(8, OffsetFetchRequest(groups=[group], require_stable=stable))
    if answer.groups[0].error_code:
        return -2, answer.groups[0].error_code
    (found,) = answer.groups[0].topics[0].partitions
    return found.committed_offset, found.error_code


def story(play: Callable[[Machine, Raw], Awaitable[None]], seed: int = 1) -> None:
    async def whole() -> None:
        machine = Machine(World(seed), SETTINGS)
        client = await machine.restart()
        await client.create_topics([NewTopic("t", 3)])
        await play(machine, await Raw.connect(machine.world.network))
        await machine.stop()

    run(whole())


def test_readers_see_a_transaction_at_its_commit_and_never_an_aborted_one() -> None:
    async def play(_machine: Machine, raw: Raw) -> None:
        producer = Producer(raw)
        assert await producer.begin() is ErrorCode.none
        for number, commit in enumerate((False, True, False, True)):
            assert await producer.add(0, 1) is ErrorCode.none
            for partition in (0, 1):
                assert await producer.write(partition, b"%d" % number) is ErrorCode.none
            before = [b"1"] if number > 1 else []
            assert await committed(raw) == await committed(raw, 1) == before
            assert await producer.end(commit=commit) is ErrorCode.none
            await eventually(lambda: committed(raw), before + [b"%d" % number] * commit)
            await eventually(lambda: committed(raw, 1), before + [b"%d" % number] * commit)
            # Its markers are written, its state follows.
            while await producer.add(0) is ErrorCode.concurrent_transactions:
                await asyncio.sleep(0.01)
        answer = await raw.ask(4, replace(list_offsets_body("t", -1), isolation_level=1))
        assert answer.topics[0].partitions[0].offset == 8, "the last stable offset"

    story(play)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_a_decided_end_outlives_the_coordinator(seed: int, commit: bool) -> None:
    async def play(machine: Machine, raw: Raw) -> None:
        producer = Producer(raw)
        await producer.begin()
        await producer.add(0, 1, 2)
        for partition in range(3):
            await producer.write(partition, b"x")
        assert await producer.end(commit=commit) is ErrorCode.none
        await machine.kill()
        await machine.restart()
        raw = await Raw.connect(machine.world.network)
        for partition in range(3):
            await eventually(partial(committed, raw, partition), [b"x"] * commit)
        producer.raw = raw
        await eventually(lambda: producer.end(commit=commit), ErrorCode.none)

    story(play, seed)


def test_an_open_transaction_outlives_the_coordinator() -> None:
    async def play(machine: Machine, raw: Raw) -> None:
        producer = Producer(raw)
        await producer.begin()
        await producer.add(0)
        await producer.write(0, b"x")
        await machine.kill()
        await machine.restart()
        producer.raw = await Raw.connect(machine.world.network)
        assert await committed(producer.raw) == []
        assert await producer.write(0, b"y") is ErrorCode.none
        await eventually(lambda: producer.end(commit=True), ErrorCode.none)
        await eventually(lambda: committed(producer.raw), [b"x", b"y"])

    story(play)


def test_a_new_producer_aborts_what_the_old_one_left_open() -> None:
    async def play(_machine: Machine, raw: Raw) -> None:
        old, new = Producer(raw), Producer(raw)
        await old.begin()
        await old.add(0)
        await old.write(0, b"old")
        assert await new.begin() is ErrorCode.concurrent_transactions
        await eventually(new.begin, ErrorCode.none)
        assert await old.write(0, b"late") is ErrorCode.invalid_producer_epoch
        assert await old.end(commit=True) is ErrorCode.producer_fenced
        await new.add(0)
        await new.write(0, b"new")
        await new.end(commit=True)
        await eventually(lambda: committed(raw), [b"new"])

    story(play)


def test_time_ends_a_transaction_that_its_producer_left() -> None:
    async def play(_machine: Machine, raw: Raw) -> None:
        producer = Producer(raw)
        await producer.begin(timeout_ms=5_000)
        await producer.add(0)
        await producer.write(0, b"x")
        await raw.ask(9, produce_body("t", build_batch([Record(0, START_MS, None, b"behind")])))
        assert await committed(raw) == []
        await eventually(lambda: committed(raw), [b"behind"])
        assert await producer.end(commit=True) is ErrorCode.producer_fenced

    story(play)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("killed", [True, False])
def test_offsets_count_with_their_transaction(commit: bool, killed: bool) -> None:
    async def play(machine: Machine, raw: Raw) -> None:
        producer = Producer(raw)
        await producer.begin()
        await raw.ask(4, FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
        await eventually(producer.add_offsets, ErrorCode.none)
        await eventually(lambda: producer.commit_offset(5), ErrorCode.none)
        await producer.end(commit=True)
        await eventually(lambda: offset_of(raw), (5, 0))
        await eventually(producer.add_offsets, ErrorCode.none)
        assert await producer.commit_offset(9) is ErrorCode.none
        if killed:
            await machine.kill()
            await machine.restart()
            producer.raw = raw = await Raw.connect(machine.world.network)
            await eventually(lambda: offset_of(raw, stable=False), (5, 0))
        assert await offset_of(raw, stable=False) == (5, 0)
        assert await offset_of(raw) == (-1, ErrorCode.unstable_offset_commit)
        await eventually(lambda: producer.end(commit=commit), ErrorCode.none)
        await eventually(lambda: offset_of(raw), (9 if commit else 5, 0))
        await machine.kill()
        await machine.restart()
        again = await Raw.connect(machine.world.network)
        await eventually(lambda: offset_of(again), (9 if commit else 5, 0))

    story(play)


def test_offsets_of_a_fenced_member_or_producer_are_refused() -> None:
    async def play(_machine: Machine, raw: Raw) -> None:
        old, new = Producer(raw), Producer(raw)
        await old.begin()
        await raw.ask(4, FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
        await eventually(old.add_offsets, ErrorCode.none)
        late = await old.commit_offset(5, generation_id=3)
        assert late is ErrorCode.illegal_generation
        assert await old.commit_offset(5) is ErrorCode.none
        await eventually(new.begin, ErrorCode.none)
        assert await old.commit_offset(6) is ErrorCode.invalid_producer_epoch
        assert await old.add_offsets() is ErrorCode.producer_fenced
        assert await offset_of(raw) == (-1, 0)

    story(play)


def test_bad_requests_get_kafkas_errors() -> None:
    async def play(_machine: Machine, raw: Raw) -> None:
        producer = Producer(raw)
        too_long = await producer.begin(timeout_ms=900_001)
        assert too_long is ErrorCode.invalid_transaction_timeout
        await producer.begin()
        assert await producer.add(7) is ErrorCode.unknown_topic_or_partition
        assert await producer.write(0, b"x", version=12) is ErrorCode.invalid_txn_state
        assert await producer.write(0, b"x", transactional_id=None) is ErrorCode.invalid_record
        assert await producer.end(commit=True) is ErrorCode.invalid_txn_state
        producer.id += 1
        assert await producer.add(0) is ErrorCode.invalid_producer_id_mapping

    story(play)
