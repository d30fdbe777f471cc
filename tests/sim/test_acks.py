"""An answer to a produce request waits for the replicas that `acks` names, and no longer than its timeout.

Method: a topic has a second replica that never fetches, so nothing is committed until it leaves the in-sync replicas.
"""

import asyncio

import pytest
from tests.produce import produce_body
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw
from tests.sim.records import batch
from tests.sim.test_roles import change, start
from tests.sim.world import START_MS, World

from stratalog.errors import ErrorCode
from stratalog.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
)

ALL, LEADER = -1, 1
TIMEOUT_MS = 5000
LONG_S = 600


def request(acks: int, timeout_ms: int = TIMEOUT_MS) -> ProduceRequest:
    return produce_body("t", batch([b"value"], START_MS), acks=acks, timeout_ms=timeout_ms)


def partition_of(answer: ProduceResponse) -> PartitionProduceResponse:
    (topic,) = answer.responses
    (partition,) = topic.partition_responses
    return partition


def offsets(machine: Machine) -> tuple[int, int]:
    hosted = machine.partition("t")
    return hosted.high_watermark, hosted.log.log_end_offset


def test_acks_of_the_leader_alone_wait_for_its_append_and_no_replica() -> None:
    async def story() -> None:
        machine, _client = await start(World(1))
        raw = await Raw.connect(machine.world.network)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for number in range(3):
            partition = partition_of(await raw.ask(9, request(LEADER)))
            assert (partition.error_code, partition.base_offset) == (0, number)
        assert loop.time() - begun < 1
        assert offsets(machine) == (0, 3), "the second replica must have no record"
        await machine.stop()

    run(asyncio.wait_for(story(), LONG_S))


@pytest.mark.parametrize("timeout_ms", [0, TIMEOUT_MS])
def test_acks_of_all_replicas_time_out_and_the_batch_stays(timeout_ms: int) -> None:
    async def story() -> None:
        machine, _client = await start(World(1))
        raw = await Raw.connect(machine.world.network)
        loop = asyncio.get_running_loop()
        for number in range(2):
            begun = loop.time()
            partition = partition_of(await raw.ask(9, request(ALL, timeout_ms)))
            assert partition.error_code == ErrorCode.request_timed_out
            assert partition.base_offset == number
            assert timeout_ms / 1000 <= loop.time() - begun < timeout_ms / 1000 + 1
        assert offsets(machine) == (0, 2)
        waiting = raw.ask(9, request(ALL))
        await asyncio.sleep(1)
        assert not waiting.done()
        await change(machine, "t", isr=(1,))
        partition = partition_of(await waiting)
        assert (partition.error_code, partition.base_offset) == (0, 2)
        assert offsets(machine) == (3, 3)
        assert partition_of(await raw.ask(9, request(ALL, 0))).error_code == 0
        assert machine.broken_tasks == []
        await machine.stop()

    run(asyncio.wait_for(story(), LONG_S))


def test_the_timeout_does_not_include_a_slow_drive() -> None:
    """The time counts from the leader's append on, as in Kafka."""

    async def story() -> None:
        machine, _client = await start(World(1))
        await change(machine, "t", isr=(1,))
        raw = await Raw.connect(machine.world.network)
        machine.take_ms(1000)
        body = produce_body("t", batch([b"v" * 20_000], START_MS), timeout_ms=10)
        assert partition_of(await raw.ask(9, body)).error_code == 0
        machine.take_ms(0)
        await machine.stop()

    run(asyncio.wait_for(story(), LONG_S))
