"""Producers that share a door lose nothing and write nothing twice, while the broker dies and its drive is slow."""

import asyncio

import pytest
from tests.produce import produce_body
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw
from tests.sim.records import values_in
from tests.sim.test_roles import ELSEWHERE, OTHER, change
from tests.sim.world import START_MS, World

from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode
from stratalog.wire.apis import PRODUCE
from stratalog.wire.envelope import encode_request
from stratalog.wire.messages.produce import PartitionProduceResponse, ProduceResponse
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
    partition = partition_of(answer)
    assert partition.error_code == ErrorCode.none, (producer, number, partition)
    assert partition.base_offset not in acknowledged
    acknowledged[partition.base_offset] = b"%d-%d" % (producer, number)


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_each_record_is_there_once_at_its_offset(seed: int, killed: bool) -> None:
    async def story() -> None:
        machine = Machine(World(seed))
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


async def lent(machine: Machine, acks: int = -1) -> Raw:
    """Return a connection of which requests become rows."""
    raw = await Raw.connect(machine.world.network)
    (door,) = machine.world.doors
    while not door._borrowed:
        await raw.ask(
            9, produce_body("t", build_batch([Record(0, START_MS, None, b"")]), acks=acks)
        )
        await asyncio.sleep(0.01)
    return raw


def partition_of(answer: ProduceResponse) -> PartitionProduceResponse:
    (topic,) = answer.responses
    (partition,) = topic.partition_responses
    return partition


def test_a_row_that_is_written_while_a_replica_joins_waits_for_it() -> None:
    """The answer with acks=all must not leave for the leader's append alone, though it was enough at first."""

    async def story(before_s: float) -> bool:
        """Return whether the replica joined while the row was written."""
        world = World(1)
        world.quickness = 1.0
        machine = Machine(world)
        client = await machine.restart()
        await client.create_topics([NewTopic("t", 1, 1)])
        raw = await lent(machine)
        both, hosted = (1, OTHER), machine.partition("t")
        world.quickness = 0.0
        machine.take_ms(1000)
        directories = (hosted.directory.id, ELSEWHERE)
        joins = asyncio.create_task(
            change(machine, "t", replicas=both, isr=both, directories=directories)
        )
        await asyncio.sleep(before_s)
        was_alone = not hosted.replica.followers
        asked = raw.ask(9, produce_body("t", build_batch([Record(0, START_MS, None, b"waits")])))
        is_first = False
        for _ in range(100):
            await asyncio.sleep(0.05)
            is_written = hosted.log.log_end_offset == hosted.log.next_offset
            is_first |= bool(hosted.replica.followers) and not is_written
        await joins
        end = hosted.log.log_end_offset
        assert hosted.replica.followers
        assert asked.done() == (hosted.high_watermark == end)
        await change(machine, "t", isr=(1,))
        partition = partition_of(await asked)
        assert (partition.error_code, partition.base_offset) == (0, end - 1)
        machine.take_ms(0)
        assert machine.broken_tasks == []
        await machine.stop()
        return was_alone and is_first

    tried = [run(asyncio.wait_for(story(at / 4), TIMEOUT_S)) for at in range(13)]
    assert any(tried)
    assert not all(tried)


def test_a_large_request_on_a_lent_connection_has_its_time_to_arrive() -> None:
    """A connection that returns from the door begins to receive its request then, however long it was lent."""

    async def story() -> None:
        world = World(1)
        world.quickness = 1.0
        machine = Machine(world, {"queued.max.request.bytes": "30000"})
        client = await machine.restart()
        await client.create_topics([NewTopic("t", 1, 1)])
        raw = await lent(machine)
        await asyncio.sleep(60)
        made = build_batch([Record(0, START_MS, None, bytes(60_000))])
        frame = b"".join(bytes(one) for one in encode_request(9, 7, "raw", produce_body("t", made)))
        raw.send(frame[:50_000])
        memory = machine.node._connections.memory
        async with asyncio.timeout(5):
            while not memory.is_short:
                await asyncio.sleep(0.01)
        await asyncio.sleep(2.5)
        assert not raw.closed.done()
        answer = raw.expect(PRODUCE, 9)
        raw.send(frame[50_000:])
        assert partition_of(await answer).error_code == ErrorCode.none
        await machine.stop()

    run(asyncio.wait_for(story(), TIMEOUT_S))
