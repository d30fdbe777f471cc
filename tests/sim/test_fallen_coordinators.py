"""Goal: a coordinator that falls, by its log's refusal or a bug, serves again without a new leader.

Method: the real node under a virtual clock; a log, or a state machine, fails a number of times.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import pytest
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw
from tests.sim.test_coordinator_failover import commit
from tests.sim.test_transactions import offset_of
from tests.sim.transactional import Producer, committed, eventually
from tests.sim.world import World

from stratalog.broker.coordination.groups import OFFSETS_TOPIC
from stratalog.broker.coordination.transactions import TRANSACTIONS_TOPIC
from stratalog.broker.partitions.partition import HostedPartition
from stratalog.client.calls import NewTopic
from stratalog.coordinators.groups import GroupShard
from stratalog.coordinators.transactions import TransactionShard
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.messages.find_coordinator import FindCoordinatorRequest

SETTINGS = {"transaction.state.log.num.partitions": "1", "offsets.topic.num.partitions": "1"}
PAUSES_S = (1, 2, 4)


def story(play: Callable[[Machine, Raw], Awaitable[None]]) -> None:
    async def whole() -> None:
        machine = Machine(World(1), SETTINGS)
        client = await machine.restart()
        await client.create_topics([NewTopic("t", 1)])
        await play(machine, await Raw.connect(machine.world.network))
        assert not machine.broken_tasks
        await machine.stop()

    run(whole())


def failing(kind: str, topic: str, times: int) -> AbstractContextManager[Any]:
    """Fail the next calls: of the log's append, or of the state machine's `replay`."""
    left = times
    if kind == "refusal":
        owner: Any = HostedPartition
        name = "append"
    else:
        owner = GroupShard if topic == OFFSETS_TOPIC else TransactionShard
        name = "replay"
    real = getattr(owner, name)

    def fail(self: Any, *args: Any, **options: Any) -> Any:
        nonlocal left
        concerned = kind == "bug" or self.name.topic == topic
        is_loading = kind == "bug" and getattr(self, "_loading", None) is not None
        if not concerned or is_loading or not left:
            return real(self, *args, **options)
        left -= 1
        if kind == "bug":
            raise ZeroDivisionError("planted")
        raise Rejected(ErrorCode.kafka_storage_error, "planted")

    return patch.object(owner, name, fail)


@pytest.mark.parametrize("kind", ["refusal", "bug"])
def test_groups_are_coordinated_again_after_each_fall(kind: str) -> None:
    async def play(machine: Machine, raw: Raw) -> None:
        loop = asyncio.get_running_loop()
        await raw.ask(4, FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
        await eventually(lambda: commit(raw, 5), ErrorCode.none)
        epoch = machine.partition(OFFSETS_TOPIC).replica.leader_epoch
        for number, pause_s in enumerate(PAUSES_S):
            with failing(kind, OFFSETS_TOPIC, 1):
                code = await commit(raw, 6 + number)
            wanted = ErrorCode.not_coordinator if kind == "refusal" else None
            assert code is not ErrorCode.none
            assert wanted in (None, code)
            began = loop.time()
            assert await commit(raw, 90) is ErrorCode.coordinator_load_in_progress
            assert (await offset_of(raw))[1] == ErrorCode.coordinator_load_in_progress
            await eventually(lambda: offset_of(raw), (5, 0))
            assert loop.time() - began == pytest.approx(pause_s, abs=0.2)
        await eventually(lambda: commit(raw, 9), ErrorCode.none)
        assert await offset_of(raw) == (9, 0)
        assert machine.partition(OFFSETS_TOPIC).replica.leader_epoch == epoch
        assert not machine.broker.groups.not_loaded

    story(play)


@pytest.mark.parametrize("kind", ["refusal", "bug"])
def test_transactions_are_coordinated_again_after_a_fall(kind: str) -> None:
    async def play(machine: Machine, raw: Raw) -> None:
        producer = Producer(raw)
        await eventually(producer.begin, ErrorCode.none)
        assert await producer.add(0) is ErrorCode.none
        assert await producer.write(0, b"x") is ErrorCode.none
        with failing(kind, TRANSACTIONS_TOPIC, 1):
            ending = asyncio.ensure_future(producer.end(commit=True))
            await asyncio.wait((ending,))
        if ending.cancelled():  # a bug closes its connection
            producer.raw = raw = await Raw.connect(machine.world.network)
        else:
            assert ending.result() is ErrorCode.not_coordinator
        assert await producer.end(commit=True) is ErrorCode.coordinator_load_in_progress
        await eventually(lambda: producer.end(commit=True), ErrorCode.none)
        await eventually(lambda: committed(raw), [b"x"])

    story(play)


def test_a_fallen_coordinator_that_resigns_is_not_loaded_again() -> None:
    async def play(machine: Machine, raw: Raw) -> None:
        await raw.ask(4, FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
        await eventually(lambda: commit(raw, 5), ErrorCode.none)
        with failing("refusal", OFFSETS_TOPIC, 1):
            assert await commit(raw, 6) is ErrorCode.not_coordinator
        groups, hosted = machine.broker.groups, machine.partition(OFFSETS_TOPIC)
        loading = [groups.is_loading]
        groups.resign(hosted)
        loading.append(groups.is_loading)
        assert loading == [True, False]
        await asyncio.sleep(60)
        assert not groups.coordinated
        await groups.lead(hosted)
        assert await offset_of(raw) == (5, 0)

    story(play)


def test_a_log_that_cannot_be_read_for_now_is_read_later() -> None:
    async def play(machine: Machine, raw: Raw) -> None:
        await raw.ask(4, FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
        await eventually(lambda: commit(raw, 5), ErrorCode.none)
        groups, hosted = machine.broker.groups, machine.partition(OFFSETS_TOPIC)
        groups.resign(hosted)
        gone = Rejected(ErrorCode.kafka_storage_error, "planted")
        with patch.object(HostedPartition, "read", side_effect=gone):
            await groups.lead(hosted)
            assert groups.not_loaded
            await asyncio.sleep(10)
            assert groups.not_loaded
        await eventually(lambda: offset_of(raw), (5, 0))
        assert not groups.not_loaded

    story(play)
