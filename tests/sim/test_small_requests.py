"""Producers that share a door lose nothing and write nothing twice, while the broker dies and its drive is slow."""

import asyncio

import pytest
from tests.produce import produce_body
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw
from tests.sim.records import values_in
from tests.sim.world import START_MS, World

from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode
from stratalog.wire.messages.produce import ProduceResponse
from stratalog.wire.records import Record, build_batch

PRODUCERS, COUNT, IN_FLIGHT = 5, 60, 5
TIMEOUT_S = 3600


def values(machine: Machine) -> list[bytes]:
    (path,) = machine.world.disks
    files = [segment.path for segment in machine.partition("t").log.segments]
    disk = machine.world.disks[path]
    data = b"".join(bytes(disk.read(one, 0, 1 << 30)) for one in files)
    return [value for _offset, value in values_in(data)]


async def produce(machine: Machine, producer: int, acknowledged: dict[int, bytes]) -> None:
    """Send COUNT records in order; send those without an answer again, over a new connection."""
    first = 0
    while first < COUNT:
        try:
            raw = await Raw.connect(machine.world.network)
        except OSError:
            await asyncio.sleep(0.1)
            continue
        waiting: dict[int, asyncio.Future[ProduceResponse]] = {}
        try:
            for number in range(first, COUNT):
                value = b"%d-%d" % (producer, number)
                made = build_batch(
                    [Record(0, START_MS, None, value)],
                    producer_id=producer,
                    producer_epoch=0,
                    base_sequence=number,
                )
                answer = raw.ask(9, produce_body("t", made, acks=1))
                waiting[number] = answer
                if len(waiting) == IN_FLIGHT:
                    oldest = min(waiting)
                    note(await waiting.pop(oldest), producer, oldest, acknowledged)
                    first = oldest + 1
            for number in list(waiting):
                note(await waiting.pop(number), producer, number, acknowledged)
                first = number + 1
        except asyncio.CancelledError:
            await asyncio.sleep(0.1)
        raw.close()


def note(
    answer: ProduceResponse, producer: int, number: int, acknowledged: dict[int, bytes]
) -> None:
    (topic,) = answer.responses
    (partition,) = topic.partition_responses
    assert partition.error_code == ErrorCode.none, (producer, number, partition)
    assert partition.base_offset not in acknowledged
    acknowledged[partition.base_offset] = b"%d-%d" % (producer, number)


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_each_record_is_there_once_at_its_offset(seed: int, killed: bool) -> None:
    async def story() -> None:
        machine = Machine(World(seed, has_door=True))
        await machine.start()
        client = await machine.connect()
        (created,) = await client.create_topics([NewTopic("t", 1, 1)])
        assert created.error is ErrorCode.none
        acknowledged: dict[int, bytes] = {}
        async with asyncio.TaskGroup() as group:
            for producer in range(PRODUCERS):
                group.create_task(produce(machine, producer, acknowledged))
            if killed:
                while len(acknowledged) < PRODUCERS * COUNT // 2:
                    await asyncio.sleep(0.001)
                await machine.kill()
                await machine.start()
        stored = values(machine)
        assert sorted(stored) == sorted(acknowledged.values()), "each record is there once"
        assert all(stored[offset] == value for offset, value in acknowledged.items())
        rows = sum(door.rows for door in machine.world.doors)
        quickness = machine.world.quickness
        # A drive that takes no append on the event loop makes each answer wait, and no connection is lent.
        assert rows > COUNT if quickness == 1 else rows == 0 or quickness > 0
        assert machine.broken_tasks == []
        await machine.stop()

    run(asyncio.wait_for(story(), TIMEOUT_S))
