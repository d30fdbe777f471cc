"""Two machines of one world: each affects the other only through the network between them.

Method: two nodes, each its own cluster, and connections from a process of one to the node of the other. Everything is
drawn from the seed, so a story replays in another process, also under another hash seed.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.sim.lives import Story, look, write_for_a_while
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.records import batch
from tests.sim.world import START_MS, World

from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.errors import Unavailable

TOP = Path(__file__).parents[2]
TOPIC = "t"
ONE, OTHER = "10.0.0.1", "10.0.0.2"
Tell = Callable[[Machine, Machine], Coroutine[Any, Any, None]]


def on_two_machines(tell: Tell, seed: int = 1) -> None:
    async def whole() -> None:
        world = World(seed)
        machines = [
            Machine(world, {"listeners": f"PLAINTEXT://{host}:9092"}) for host in (ONE, OTHER)
        ]
        for machine in machines:
            client = await machine.restart()
            await client.create_topics([NewTopic(TOPIC, partitions=1)])
        async with asyncio.timeout(600):
            await tell(machines[0], machines[1])
        for machine in machines:
            await machine.stop()

    run(whole())


async def end_offset(machine: Machine) -> int:
    await (await machine.connect()).produce(TOPIC, 0, batch([b"x"], START_MS))
    return machine.partition(TOPIC).log.log_end_offset


@pytest.mark.parametrize("ending", [Machine.kill, Machine.lose_power], ids=["kill", "power"])
def test_one_machine_dies_alone(ending: Callable[[Machine], Coroutine[Any, Any, None]]) -> None:
    async def tell(one: Machine, other: Machine) -> None:
        node, disk = other.node, other.host.disk("/data")
        await ending(one)
        assert other.node is node
        assert not disk.lock(), "the other process still has its directory"
        assert await end_offset(other) == 1
        await one.start()
        assert await end_offset(one) == 1
        assert one.host.disk("/data") is not disk

    on_two_machines(tell)


def test_a_paused_machine_goes_on_where_it_was() -> None:
    async def tell(one: Machine, other: Machine) -> None:
        client = await one.connect()
        one.pause()
        produced = asyncio.create_task(client.produce(TOPIC, 0, batch([b"x"], START_MS)))
        assert await end_offset(other) == 1
        await asyncio.sleep(10)
        assert one.partition(TOPIC).log.log_end_offset == 0, "nothing of the process runs"
        assert not produced.done()
        one.resume()
        assert (await produced).base_offset == 0

    on_two_machines(tell)


def test_one_machines_clock_is_set_alone() -> None:
    async def tell(one: Machine, other: Machine) -> None:
        one.host.clock.step_ms = 3_600_000
        assert one.host.clock.now_ms() - other.host.clock.now_ms() == 3_600_000
        assert one.host.clock.steady_ms() == other.host.clock.steady_ms()

    on_two_machines(tell)


def test_bytes_held_by_a_cut_arrive_in_order_once_it_heals() -> None:
    async def tell(one: Machine, other: Machine) -> None:
        async def write() -> list[int]:
            client = await Client.connect(one.world.network, other.address)
            first = await client.produce(TOPIC, 0, batch([b"0"], START_MS))
            one.world.network.cut(ONE, OTHER)
            sent = [
                asyncio.create_task(client.produce(TOPIC, 0, batch([b"%d" % number], START_MS)))
                for number in range(1, 4)
            ]
            await asyncio.sleep(5)
            assert not any(task.done() for task in sent)
            assert other.partition(TOPIC).log.log_end_offset == 1
            one.world.network.heal(ONE, OTHER)
            offsets = [first.base_offset, *[(await task).base_offset for task in sent]]
            await client.close()
            return offsets

        assert await one.process.run(write()) == [0, 1, 2, 3]

    on_two_machines(tell)


@pytest.mark.parametrize("silent", [False, True])
def test_bytes_held_by_a_cut_are_lost_where_their_sender_loses_power(silent: bool) -> None:
    async def tell(one: Machine, other: Machine) -> None:
        async def write() -> None:
            network = one.world.network
            client = await Client.connect(network, other.address, timeout_s=5)
            await client.produce(TOPIC, 0, batch([b"arrived"], START_MS))
            network.cut(ONE, OTHER)
            with suppress(Unavailable):
                await client.produce(TOPIC, 0, batch([b"held"], START_MS))

        writing = one.process.run(write())
        await asyncio.sleep(1)
        await one.lose_power(silent=silent)
        await asyncio.wait((writing,))
        await one.start()
        one.world.network.heal(ONE, OTHER)
        await asyncio.sleep(60)
        assert other.partition(TOPIC).log.log_end_offset == 1

    on_two_machines(tell)


def test_a_cut_of_answers_alone_leaves_the_record_and_not_the_answer() -> None:
    async def tell(one: Machine, other: Machine) -> None:
        async def write() -> None:
            network = one.world.network
            client = await Client.connect(network, other.address, timeout_s=5)
            await client.produce(TOPIC, 0, batch([b"answered"], START_MS))
            network.cut(OTHER, ONE)
            with pytest.raises(Unavailable):
                await client.produce(TOPIC, 0, batch([b"x"], START_MS))
            network.heal(OTHER, ONE)
            await client.close()

        await one.process.run(write())
        assert other.partition(TOPIC).log.log_end_offset >= 2

    on_two_machines(tell)


def test_a_connection_to_a_machine_without_power_is_silent_and_then_reset() -> None:
    async def tell(one: Machine, other: Machine) -> None:
        async def write() -> float:
            loop = asyncio.get_running_loop()
            closed: asyncio.Future[float] = loop.create_future()

            class Watcher(asyncio.Protocol):
                def connection_lost(self, exc: Exception | None) -> None:
                    closed.set_result(loop.time())

            transport, _ = await one.world.network.connect(OTHER, 9092, Watcher)
            assert isinstance(transport, asyncio.WriteTransport)
            await other.lose_power(silent=True)
            transport.write(b"x")
            await asyncio.sleep(60)
            assert not closed.done(), "nothing tells that the machine is gone"
            await other.start()
            transport.write(b"y")
            return await closed

        await one.process.run(write())

    on_two_machines(tell)


async def two_lives(seed: int) -> list[tuple[Any, ...]]:
    """Two machines that are written to; each dies, is paused or has its clock set, alone."""
    world = World(seed)
    stories, machines, numbers = [], [], [0]
    for host in (ONE, OTHER):
        machine = Machine(world, {"listeners": f"PLAINTEXT://{host}:9092"})
        machine.slowness = world.chance.choice((0.0, 0.1))
        client = await machine.restart()
        await client.create_topics(
            [NewTopic(TOPIC, partitions=1, configs={"flush.messages": "1", "segment.ms": "300"})]
        )
        machines.append(machine)
        stories.append(Story(TOPIC, synced=True))
    for _life in range(4):
        writing = [
            asyncio.create_task(write_for_a_while(machine, await machine.connect(), story, numbers))
            for machine, story in zip(machines, stories, strict=True)
        ]
        await asyncio.sleep(world.chance.uniform(0.1, 2))
        victim = world.chance.randrange(2)
        machine, story = machines[victim], stories[victim]
        machine.host.clock.step_ms = world.chance.choice((0, -5000, 5000))
        machine.pause()
        await asyncio.sleep(world.chance.uniform(0, 1))
        machine.resume()
        for one, its_story in zip(machines, stories, strict=True):
            its_story.note_durable(one)
        lost_power = world.chance.random() < 0.5
        await (machine.lose_power() if lost_power else machine.kill())
        await writing[victim]
        await look(machine, await machine.restart(), story, lost_power=lost_power)
        await machines[1 - victim].stop()
        await writing[1 - victim]
        await machines[1 - victim].start()
    for machine, story in zip(machines, stories, strict=True):
        await look(machine, await machine.connect(), story, lost_power=False)
        assert not machine.broken_tasks
        await machine.stop()
    return world.trace


@pytest.mark.parametrize("seed", range(4))
def test_each_machine_keeps_its_own_promises(seed: int) -> None:
    assert len(run(two_lives(seed))) > 200


DIGEST = """
import hashlib
from tests.sim.loop import run
from tests.sim.test_machines import two_lives
print(hashlib.sha256(repr(run(two_lives(1))).encode()).hexdigest())
"""


def test_a_seed_replays_in_another_process_under_another_hash_seed() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGEST],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(TOP)},
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        ).stdout.splitlines()[-1]
        for hash_seed in ("1", "2")
    }
    assert len(digests) == 1, "something looks at the real world, or at the order of a set"
