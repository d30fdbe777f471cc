"""Goal: a transaction is seen whole or never, whatever ends it: its producer, another one, time, or a crash.

Method: the real node under a virtual clock, requests as clients of both of Kafka's protocols send them.
"""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
from msgspec.structs import replace
from tests.produce import produce_body
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw, fetch_body, list_offsets_body
from tests.sim.transactional import Producer, committed, eventually
from tests.sim.world import START_MS, World

from stratalog.broker.coordination.markers import Markers
from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode, Rejected
from stratalog.quorum.features import UpgradeType
from stratalog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from stratalog.wire.messages.find_coordinator import FindCoordinatorRequest
from stratalog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from stratalog.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from stratalog.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from stratalog.wire.records import Record, build_batch

SETTINGS = {"transaction.state.log.num.partitions": "2"}


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


@pytest.mark.parametrize("raises", [False, True])
def test_readers_see_a_transaction_at_its_commit_and_never_an_aborted_one(raises: bool) -> None:
    async def play(_machine: Machine, raw: Raw) -> None:
        producer = Producer(raw, raises=raises)
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


def test_a_coordinator_that_starts_has_the_newest_state_of_each_id_and_no_expired_one() -> None:
    settings = SETTINGS | {
        "transactional.id.expiration.ms": "60000",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "1000",
    }

    async def whole() -> None:
        machine = Machine(World(1), settings)
        await machine.restart()
        producers = [Producer(await Raw.connect(machine.world.network), f"tx{n}") for n in range(4)]
        for one in producers:
            await one.begin()
        gone = producers[:2]
        for _ in range(3):
            await asyncio.sleep(30)
            for one in producers[2:]:
                await one.begin()
        before = [(one.id, one.epoch) for one in producers]
        await machine.kill()
        await machine.restart()
        for one, (producer_id, epoch) in zip(producers, before, strict=True):
            one.raw = await Raw.connect(machine.world.network)
            await eventually(one.begin, ErrorCode.none)
            is_new = one.id != producer_id
            assert is_new == (one in gone)
            assert one.epoch == (0 if is_new else epoch + 1)
        assert before[2][1] == 3
        await machine.stop()

    run(whole())


@pytest.mark.parametrize("raises", [False, True])
def test_an_open_transaction_outlives_the_coordinator(raises: bool) -> None:
    async def play(machine: Machine, raw: Raw) -> None:
        producer = Producer(raw, raises=raises)
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


@pytest.mark.parametrize("raises", [False, True])
def test_a_new_producer_aborts_what_the_old_one_left_open(raises: bool) -> None:
    async def play(_machine: Machine, raw: Raw) -> None:
        old, new = Producer(raw, raises=raises), Producer(raw, raises=raises)
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


@pytest.mark.parametrize("raises", [False, True])
def test_time_ends_a_transaction_that_its_producer_left(raises: bool) -> None:
    async def play(_machine: Machine, raw: Raw) -> None:
        producer = Producer(raw, raises=raises)
        await producer.begin(timeout_ms=5_000)
        await producer.add(0)
        await producer.write(0, b"x")
        await raw.ask(9, produce_body("t", build_batch([Record(0, START_MS, None, b"behind")])))
        assert await committed(raw) == []
        await eventually(lambda: committed(raw), [b"behind"])
        too_late = ErrorCode.invalid_txn_state if raises else ErrorCode.producer_fenced
        assert await producer.end(commit=True) is too_late

    story(play)


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("killed", [True, False])
def test_offsets_count_with_their_transaction(commit: bool, killed: bool, raises: bool) -> None:
    async def play(machine: Machine, raw: Raw) -> None:
        producer = Producer(raw, raises=raises)
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


@pytest.mark.parametrize("killed", ["never", "before the ends", "between", "after"])
def test_the_newest_offset_of_two_transactions_counts_whichever_ends_last(killed: str) -> None:
    """Kafka: `OffsetMetadataManager.replayEndTransactionMarker`."""

    async def play(machine: Machine, raw: Raw) -> None:
        older, newer = (Producer(raw, name, raises=True) for name in ("older", "newer"))
        await raw.ask(4, FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))

        async def restarted(now: str) -> None:
            if killed == now:
                await machine.kill()
                await machine.restart()
                older.raw = newer.raw = await Raw.connect(machine.world.network)

        for one, offset in ((older, 9), (newer, 5)):
            await eventually(one.begin, ErrorCode.none)
            await eventually(partial(one.commit_offset, offset), ErrorCode.none)
        await restarted("before the ends")
        await eventually(lambda: newer.end(commit=True), ErrorCode.none)
        await eventually(lambda: offset_of(newer.raw, stable=False), (5, 0))
        await restarted("between")
        await eventually(lambda: offset_of(newer.raw), (-1, ErrorCode.unstable_offset_commit))
        await eventually(lambda: older.end(commit=True), ErrorCode.none)
        await eventually(lambda: offset_of(newer.raw), (5, 0))
        await restarted("after")
        await eventually(lambda: offset_of(newer.raw), (5, 0))

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
        assert (
            await producer.write(0, b"x", named=False)
            is ErrorCode.transactional_id_authorization_failed
        )
        assert await producer.end(commit=True) is ErrorCode.invalid_txn_state
        producer.id += 1
        assert await producer.add(0) is ErrorCode.invalid_producer_id_mapping

    story(play)


def test_each_end_raises_the_epoch_and_a_repeat_gets_the_same_answer() -> None:
    async def play(machine: Machine, raw: Raw) -> None:
        producer = Producer(raw, raises=True)
        await producer.begin()
        first = (producer.id, producer.epoch)
        for number in range(3):
            first = (producer.id, producer.epoch)
            assert await producer.write(0, b"%d" % number) is ErrorCode.none
            assert await producer.end(commit=True) is ErrorCode.none
            renewed = (producer.id, producer.epoch)
            assert renewed == (first[0], first[1] + 1)
            producer.id, producer.epoch = first
            if number == 1:
                await machine.kill()
                await machine.restart()
                producer.raw = await Raw.connect(machine.world.network)
            await eventually(lambda: producer.end(commit=True), ErrorCode.none)
            assert (producer.id, producer.epoch) == renewed
        producer.id, producer.epoch = first
        assert await producer.end(commit=False) is ErrorCode.invalid_txn_state
        assert await producer.write(0, b"late") is ErrorCode.invalid_producer_epoch
        assert await committed(producer.raw) == [b"0", b"1", b"2"]

    story(play)


def test_a_late_marker_does_not_end_the_transaction_after_its_own() -> None:
    async def play(_machine: Machine, raw: Raw) -> None:
        producer = Producer(raw, raises=True)
        await producer.begin()
        await producer.write(0, b"one")
        await producer.end(commit=True)
        await eventually(lambda: producer.write(0, b"two"), ErrorCode.none)
        late = WritableTxnMarker(
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            transaction_result=True,
            topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[0])],
            coordinator_epoch=1,
            transaction_version=2,
        )
        answer = await raw.ask(2, WriteTxnMarkersRequest(markers=[late]))
        (topic,) = answer.markers[0].topics
        assert topic.partitions[0].error_code == ErrorCode.invalid_producer_epoch
        assert await committed(raw) == [b"one"]
        await producer.end(commit=False)
        assert await committed(raw) == [b"one"]

    story(play)


def test_the_next_transaction_begins_while_the_markers_of_the_last_one_come() -> None:
    """The leader asks the coordinator before it has the marker, and gets the answer after it."""
    real = Markers.write

    async def late(self: Markers, *words: Any) -> Any:
        await asyncio.sleep(0.05)
        return await real(self, *words)

    async def play(_machine: Machine, raw: Raw) -> None:
        producer = Producer(raw, raises=True)
        await producer.begin()
        for number in range(3):
            assert await producer.write(0, b"%d" % number) is ErrorCode.none
            assert await producer.end(commit=True) is ErrorCode.none
        await eventually(lambda: committed(raw), [b"0", b"1", b"2"])

    with patch.object(Markers, "write", late):
        story(play)


def test_the_last_stable_offset_is_never_below_the_logs_start() -> None:
    """A reader of committed records would ask for an offset that is gone until the transaction ends."""

    async def play(_machine: Machine, raw: Raw) -> None:
        producer = Producer(raw)
        await producer.begin()
        await producer.add(0)
        for value in (b"x", b"y"):
            assert await producer.write(0, value) is ErrorCode.none
        row = DeleteRecordsPartition(partition_index=0, offset=1)
        topics = [DeleteRecordsTopic(name="t", partitions=[row])]
        await raw.ask(2, DeleteRecordsRequest(topics=topics, timeout_ms=1000))
        answer = await raw.ask(4, replace(list_offsets_body("t", -1), isolation_level=1))
        assert answer.topics[0].partitions[0].offset == 1
        found = await raw.ask(11, fetch_body([("t", 0, 1)], isolation_level=1, max_wait_ms=0))
        assert found.responses[0].partitions[0].last_stable_offset == 1

    story(play)


def test_ended_transactions_that_are_not_read_take_no_memory() -> None:
    async def play(machine: Machine, raw: Raw) -> None:
        producer = Producer(raw, raises=True)
        await producer.begin()
        for _ in range(20):
            await eventually(lambda: producer.write(0, b"x"), ErrorCode.none)
            assert await producer.end(commit=True) is ErrorCode.none
        assert len(machine.partition("t").log.producers._ending) <= 1

    story(play)


def test_both_protocols_work_on_one_cluster_and_the_second_one_needs_its_level() -> None:
    async def play(_machine: Machine, raw: Raw) -> None:
        old, new = Producer(raw, "old"), Producer(raw, "new", raises=True)
        for one in (old, new):
            await one.begin()
            await one.add(0)
            assert await one.write(0, one.name.encode()) is ErrorCode.none
            assert await one.end(commit=True) is ErrorCode.none
        await eventually(lambda: committed(raw), [b"old", b"new"])
        await eventually(lambda: old.add(0), ErrorCode.none)
        assert old.epoch == 0
        assert await old.end(commit=False) is ErrorCode.none
        lower = FeatureUpdateKey(
            feature="transaction.version",
            max_version_level=0,
            upgrade_type=UpgradeType.SAFE_DOWNGRADE,
        )
        answer = await raw.ask(2, UpdateFeaturesRequest(feature_updates=[lower]))
        assert answer.error_code == ErrorCode.none
        assert await new.write(0, b"x") is ErrorCode.invalid_txn_state

    story(play)


def test_the_refusal_of_a_commit_whose_client_has_gone_is_no_bug() -> None:
    async def play(machine: Machine, raw: Raw) -> None:
        loop = asyncio.get_running_loop()
        producer = Producer(raw, raises=True)
        await producer.begin()
        requests: list[asyncio.Task[None]] = []
        commits: list[asyncio.Future[None]] = []

        def begin() -> asyncio.Future[None]:
            loop.call_soon(requests[0].cancel)  # the client disconnects in the turn of the commit
            commits.append(loop.create_future())
            return commits[0]

        commit = machine.broker.verification.run(
            machine.partition("t"),
            producer.name,
            (producer.id, producer.epoch),
            begin,
            abortable=True,
            adds=True,
        )
        requests.append(machine.process.run(commit))
        await asyncio.wait(requests)
        assert requests.pop().cancelled()
        commits.pop().set_exception(Rejected(ErrorCode.not_coordinator, "it is stopping"))
        await asyncio.sleep(0)
        gc.collect()  # now asyncio reports a failure that no code has looked at

    story(play)


def test_a_broker_that_coordinates_itself_answers_from_its_state() -> None:
    """Only what is open, of this producer, and committed: everything else takes the question."""

    async def play(machine: Machine, raw: Raw) -> None:
        broker = machine.broker
        one, two = broker.hosting.get("t", 0), broker.hosting.get("t", 1)
        producer = Producer(raw)
        await producer.begin()

        def is_answered(hosted: Any, epoch: int = 0, name: str = producer.name) -> bool:
            return broker.verification.is_answered(hosted, name, (producer.id, epoch))

        assert not is_answered(one), "nothing is open"
        await producer.add(0)
        assert is_answered(one)
        assert not is_answered(two), "it is not added"
        assert not is_answered(one, epoch=1), "another producer"
        assert not is_answered(one, name="other")
        shard = broker.transactions._shard(producer.name)
        added = shard.ask(
            lambda state, now: state.add_partitions(
                producer.name, (producer.id, 0), frozenset({two.name}), now
            )
        )
        assert not is_answered(two), "the decision is not committed"
        await added
        assert is_answered(two)
        assert await producer.end(commit=True) is ErrorCode.none
        assert not is_answered(one), "it has ended"

    story(play)
