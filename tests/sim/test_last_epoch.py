"""Goal: a transaction at the last producer epochs ends like any other, and a reader of committed records goes on.

Method: the real node under a virtual clock. The coordinator's state is set to an epoch that takes a client 32,766
transactions; the next record of the id carries it into the log.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from unittest.mock import patch

import pytest
from msgspec.structs import replace
from tests.sim.cluster import Cluster, host_of
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw
from tests.sim.test_replication import story as cluster_story
from tests.sim.transactional import Producer, committed, eventually
from tests.sim.world import World

from stratalog.broker.coordination.transactions import TRANSACTIONS_TOPIC, Transactions
from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.coordinators.transaction import EPOCH_LAST, EPOCH_MAX, State
from stratalog.errors import ErrorCode, Rejected
from stratalog.statemachine import Decision

SETTINGS = {
    "transaction.state.log.num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
TIMEOUT_MS = 2_000


def story(play: Callable[[Machine, Raw], Awaitable[None]]) -> None:
    async def whole() -> None:
        machine = Machine(World(1), SETTINGS)
        client = await machine.restart()
        await client.create_topics([NewTopic("t", 3)])
        await play(machine, await Raw.connect(machine.world.network))
        assert not machine.broken_tasks
        await machine.stop()

    run(whole())


async def begin_at(machine: Machine, producer: Producer, epoch: int) -> None:
    """Begin as a producer of this epoch."""
    await eventually(lambda: producer.begin(timeout_ms=TIMEOUT_MS), ErrorCode.none)
    assert producer.raise_to(machine, epoch)


async def reborn(machine: Machine, producer: Producer) -> Raw:
    await machine.kill()
    await machine.restart()
    producer.raw = await Raw.connect(machine.world.network)
    return producer.raw


def is_stable(machine: Machine) -> bool:
    hosted = machine.partition("t", 0)
    return hosted.last_stable_offset == hosted.log.log_end_offset


async def until_ended(machine: Machine, producer: Producer) -> None:
    """Wait until no transaction of the producer is open, nor lacks a marker."""
    states: list[State] = []

    async def is_ended() -> bool:
        states.append((await machine.broker.transactions.describe(producer.name)).state)
        return states[-1] in (State.COMPLETE_ABORT, State.COMPLETE_COMMIT)

    await eventually(is_ended, wanted=True)


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("epoch", [EPOCH_LAST - 1, EPOCH_LAST, EPOCH_MAX])
def test_a_time_out_at_each_of_the_last_epochs_ends_the_transaction(
    epoch: int, is_killed: bool, raises: bool
) -> None:
    """EPOCH_MAX: a release before this one gave it to clients."""

    async def play(machine: Machine, raw: Raw) -> None:
        producer = Producer(raw, raises=raises)
        await begin_at(machine, producer, epoch)
        assert await producer.add(0) is ErrorCode.none
        assert await producer.write(0, b"left") is ErrorCode.none
        assert not is_stable(machine)
        if is_killed:
            raw = await reborn(machine, producer)
        await until_ended(machine, producer)
        assert is_stable(machine)
        before = producer.id
        if raises and epoch == EPOCH_LAST:
            assert await producer.end(commit=False) is ErrorCode.none, "the late end"
            assert (producer.id != before, producer.epoch) == (True, 0)
        elif epoch < EPOCH_MAX:
            assert await producer.begin_again(timeout_ms=TIMEOUT_MS) is ErrorCode.none
            is_last = epoch == EPOCH_LAST
            assert (producer.id != before, producer.epoch) == (
                is_last,
                0 if is_last else EPOCH_LAST,
            )
        else:
            await eventually(lambda: producer.begin(timeout_ms=TIMEOUT_MS), ErrorCode.none)
            assert producer.id != before
        producer.sequences = {}
        assert await producer.add(0) is ErrorCode.none
        assert await producer.write(0, b"after") is ErrorCode.none
        assert await producer.end(commit=True) is ErrorCode.none
        await eventually(lambda: committed(raw), [b"after"])
        await until_ended(machine, producer)
        assert is_stable(machine)

    story(play)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_newer_producer_ends_what_an_older_one_left_at_the_last_epoch(is_killed: bool) -> None:
    async def play(machine: Machine, raw: Raw) -> None:
        old, new = Producer(raw, raises=True), Producer(raw, raises=True)
        await begin_at(machine, old, EPOCH_LAST)
        assert await old.write(0, b"left") is ErrorCode.none
        assert await new.begin() is ErrorCode.concurrent_transactions
        if is_killed:
            new.raw = old.raw = raw = await reborn(machine, old)
        await eventually(new.begin, ErrorCode.none)
        assert new.id != old.id
        assert is_stable(machine)
        assert await old.write(0, b"late") is not ErrorCode.none
        assert await new.write(0, b"new") is ErrorCode.none
        assert await new.end(commit=True) is ErrorCode.none
        await eventually(lambda: committed(raw), [b"new"])

    story(play)


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_at_the_last_epoch_gives_the_producer_another_id(commit: bool) -> None:
    async def play(machine: Machine, raw: Raw) -> None:
        producer = Producer(raw, raises=True)
        await begin_at(machine, producer, EPOCH_LAST)
        before = producer.id
        assert await producer.write(0, b"x") is ErrorCode.none
        assert await producer.end(commit=commit) is ErrorCode.none
        assert (producer.id != before, producer.epoch) == (True, 0)
        await eventually(lambda: committed(raw), [b"x"] * commit)
        await until_ended(machine, producer)
        assert is_stable(machine)

    story(play)


async def left_behind(machine: Machine, producer: Producer, state: State) -> None:
    """Write a record of the id as a release before this one has left it."""
    shard = machine.broker.transactions._shard(producer.name)
    found = shard.machine.describe(producer.name).answer
    is_new = state is State.EMPTY
    left = replace(
        found,
        state=state,
        producer_id=found.producer_id + 500 if is_new else found.producer_id,
        producer_epoch=0 if is_new else EPOCH_MAX,
        partitions=frozenset() if state is not State.PREPARE_ABORT else found.partitions,
        version=0 if is_new else 2,
    )
    await shard._runtime.submit(lambda _now: Decision(((producer.name, left),), None))


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("state", [State.PREPARE_ABORT, State.COMPLETE_ABORT, State.EMPTY])
def test_what_a_release_before_left_open_for_ever_ends(state: State, is_killed: bool) -> None:
    """Its coordinator took the transaction for ended, and its markers were refused."""

    async def play(machine: Machine, raw: Raw) -> None:
        producer = Producer(raw, raises=True)
        await begin_at(machine, producer, EPOCH_MAX)
        assert await producer.write(0, b"left") is ErrorCode.none
        await left_behind(machine, producer, state)
        if is_killed:
            raw = await reborn(machine, producer)
        async with asyncio.timeout(300):
            while not is_stable(machine):
                await asyncio.sleep(1)
        assert await committed(raw) == []
        await eventually(lambda: producer.begin(timeout_ms=TIMEOUT_MS), ErrorCode.none)
        assert await producer.write(0, b"after") is ErrorCode.none
        assert await producer.end(commit=True) is ErrorCode.none
        await eventually(lambda: committed(raw), [b"after"])

    story(play)


@pytest.mark.parametrize("doubt", ["it is open", "no answer"])
def test_a_transaction_at_the_last_epoch_that_a_coordinator_may_hold_stays(doubt: str) -> None:
    async def play(machine: Machine, raw: Raw) -> None:
        producer = Producer(raw)
        await eventually(lambda: producer.begin(timeout_ms=600_000), ErrorCode.none)
        assert producer.raise_to(machine, EPOCH_MAX)
        assert await producer.add(0) is ErrorCode.none
        assert await producer.write(0, b"x") is ErrorCode.none
        refused = Rejected(ErrorCode.coordinator_load_in_progress, "planted")
        with (
            nullcontext()
            if doubt == "it is open"
            else patch.object(Transactions, "listed", side_effect=refused)
        ):
            await asyncio.sleep(400)
        assert not is_stable(machine)
        assert await producer.end(commit=True) is ErrorCode.none
        await eventually(lambda: committed(raw), [b"x"])

    story(play)


@pytest.mark.parametrize("is_held", [False, True])
def test_the_coordinator_on_another_node_is_asked(is_held: bool) -> None:
    async def tell(cluster: Cluster, client: Client) -> None:
        await client.create_topics(
            [
                NewTopic("t", assignments={0: [1]}),
                NewTopic(TRANSACTIONS_TOPIC, assignments={0: [2]}),
            ]
        )
        network = cluster.world.network
        data, coordinator = [await Raw.connect(network, host_of(node)) for node in (1, 2)]
        producer = Producer(coordinator)
        await eventually(lambda: producer.begin(timeout_ms=600_000), ErrorCode.none)
        assert producer.raise_to(cluster.machines[2], EPOCH_MAX)
        assert await producer.add(0) is ErrorCode.none
        producer.raw = data
        assert await producer.write(0, b"x") is ErrorCode.none
        if not is_held:
            await left_behind(cluster.machines[2], producer, State.COMPLETE_ABORT)
        await asyncio.sleep(200)
        assert is_stable(cluster.machines[1]) != is_held

    cluster_story(tell, count=2)
