"""Goal: what clients leave in a group when they go is gone with them.

Method: the real node under a virtual clock, requests as clients send them.
"""

import asyncio

from msgspec.structs import replace
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw
from tests.sim.test_coordinator_failover import JOIN
from tests.sim.world import World

from stratalog.wire.messages.describe_groups import DescribeGroupsRequest
from stratalog.wire.messages.find_coordinator import FindCoordinatorRequest


def test_a_client_that_closes_its_connection_while_it_joins_leaves_no_member() -> None:
    async def whole() -> None:
        machine = Machine(World(1), {"group.initial.rebalance.delay.ms": "3000"})
        await machine.restart()
        asker = await Raw.connect(machine.world.network)
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
        while (await asker.ask(4, request)).coordinators[0].error_code:
            await asyncio.sleep(0.1)

        async def members() -> int:
            answer = await asker.ask(5, DescribeGroupsRequest(groups=["g"]))
            return len(answer.groups[0].members)

        join = replace(JOIN, session_timeout_ms=60_000, rebalance_timeout_ms=60_000)
        stays = await Raw.connect(machine.world.network)
        joining = stays.ask(3, join)  # a version whose clients need no member id
        await asyncio.sleep(0.1)
        for _ in range(20):
            raw = await Raw.connect(machine.world.network)
            lost = raw.ask(3, join)
            await asyncio.sleep(0.1)
            raw.close()
            await asyncio.wait((lost,))
        await asyncio.sleep(0.1)
        assert await members() == 1
        assert (await joining).error_code == 0
        assert not machine.broken_tasks
        await machine.stop()

    run(whole())
