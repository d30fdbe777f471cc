"""A client that produces learns of a new leader from a failed produce, without another connection of its own.

Method: three real nodes in one world; the one that leads the partition dies.
"""

import asyncio

import pytest
from tests.sim.cluster import Cluster
from tests.sim.loop import run
from tests.sim.records import batch
from tests.sim.world import START_MS, World

from stratalog.client.calls import NewTopic
from stratalog.errors import Rejected, Unavailable


@pytest.mark.parametrize("ending", ["kill", "stop"])
def test_a_producer_goes_on_at_the_new_leader(ending: str) -> None:
    async def story() -> None:
        cluster = Cluster(World(4), 3)
        await cluster.start()
        client = await cluster.machines[2].connect()
        await client.create_topics([NewTopic("t", assignments={0: [1, 2, 3]})])
        first = await client.produce("t", 0, batch([b"a"], START_MS), acks=-1)
        await getattr(cluster.machines[1], ending)()
        failures, second = 0, None
        async with asyncio.timeout(60):
            while second is None:
                try:
                    second = await client.produce("t", 0, batch([b"b"], START_MS), acks=-1)
                except (Rejected, Unavailable):
                    failures += 1
                    await asyncio.sleep(0.1)
        assert failures > 0, "the old leader was tried first"
        assert second.base_offset > first.base_offset
        await cluster.stop()

    run(story())
