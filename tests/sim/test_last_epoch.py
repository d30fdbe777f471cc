"""Goal: a transaction at the last producer epochs ends like any other, and a reader of committed records goes on.

Method: the real node under a virtual clock. The coordinator's state is set to an epoch that takes a client 32,766
transactions; the next record of the id carries it into the log.
"""

from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw
from tests.sim.transactional import Producer, committed, eventually
from tests.sim.world import World

from stratalog.client.calls import NewTopic
from stratalog.coordinators.transaction import EPOCH_LAST, EPOCH_MAX, State
from stratalog.errors import ErrorCode
from stratalog.wire.messages.init_producer_id import InitProducerIdRequest

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
    shard = machine.broker.transactions._shard(producer.name).machine
    shard.replay(producer.name, replace(shard.describe(producer.name).answer, producer_epoch=epoch))
    producer.epoch = epoch


async def reborn(machine: Machine, producer: Producer) -> Raw:
    await machine.kill()
    await machine.restart()
    producer.raw = await Raw.connect(machine.world.network)
    return producer.raw


async def begin_again(producer: Producer) -> tuple[ErrorCode, int, int]:
    """Ask for the next epoch with the present one (KIP-360)."""
    request = InitProducerIdRequest(
        transactional_id=producer.name,
        transaction_timeout_ms=TIMEOUT_MS,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
    )
    found = await producer.raw.ask(5, request)
    return ErrorCode(found.error_code), found.producer_id, found.producer_epoch


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
            code, producer.id, producer.epoch = await begin_again(producer)
            assert code is ErrorCode.none
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
