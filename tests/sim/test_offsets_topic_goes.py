"""Goal: FindCoordinator gets COORDINATOR_NOT_AVAILABLE while the offsets topic is deleted, and succeeds afterwards.

Method: another connection deletes the topic at each moment of the request that creates it.
"""

import asyncio
from typing import Any

import pytest
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw
from tests.sim.world import World

from stratalog.errors import ErrorCode
from stratalog.wire.messages.delete_topics import DeleteTopicsRequest
from stratalog.wire.messages.find_coordinator import FindCoordinatorRequest

FIND_COORDINATOR, DELETE_TOPICS = 10, 20
MOMENTS = 12


def find(key: str) -> Any:
    return FindCoordinatorRequest(key_type=0, coordinator_keys=(key,))


def delete(name: str) -> Any:
    return DeleteTopicsRequest(topic_names=(name,), timeout_ms=1000)


@pytest.mark.parametrize("turns", range(MOMENTS))
def test_find_coordinator_survives_the_deletion_of_the_offsets_topic(turns: int) -> None:
    async def story() -> None:
        machine = Machine(World(2))
        await machine.restart()
        raws = [await Raw.connect(machine.world.network) for _ in range(3)]
        async with asyncio.timeout(60):
            await raws[0].ask(4, find("first"))
            first = raws[0].ask(5, delete("__consumer_offsets"))
            asked = raws[1].ask(4, find("group"))
            for _ in range(turns):
                await asyncio.sleep(0)
            again = raws[2].ask(5, delete("__consumer_offsets"))
            answer = await asked
            await asyncio.gather(first, again)
            (found,) = answer.coordinators
            assert found.error_code in (ErrorCode.none, ErrorCode.coordinator_not_available)
            (found,) = (await raws[1].ask(4, find("group"))).coordinators
            assert found.error_code == ErrorCode.none
        assert machine.broken_tasks == []
        await machine.stop()

    run(story())
