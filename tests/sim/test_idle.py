"""A node without clients: it sleeps until something is due."""

import asyncio
from typing import Final

from tests.sim.loop import VirtualLoop, run
from tests.sim.machine import Machine
from tests.sim.world import World

KAFKAS_INTERVALS: Final = {
    "log.flush.offset.checkpoint.interval.ms": "60000",
    "log.retention.check.interval.ms": "300000",
}
START_S: Final = 30
IDLE_S: Final = 600


def test_an_idle_node_wakes_less_than_once_a_second() -> None:
    """Half of that is the heartbeat, every two seconds."""

    async def story() -> int:
        machine = Machine(World(1), KAFKAS_INTERVALS)
        client = await machine.restart()
        await client.close()
        await asyncio.sleep(START_S)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        before = loop.waits
        await asyncio.sleep(IDLE_S)
        waits = loop.waits - before
        await machine.stop()
        return waits

    assert IDLE_S / 2 <= run(story()) < IDLE_S
