"""Nodes whose `controller.quorum.voters` disagree: the majority goes on, the node that differs stops with one line.

Method: three nodes with both roles, of which the third one names other voters than the first two; or a fourth one,
which is a broker alone.
"""

import asyncio

import pytest
from tests.sim.cluster import CONTROLLER_PORT, Cluster, host_of
from tests.sim.loop import run
from tests.sim.test_quorum import write, written
from tests.sim.world import World

from stratalog.errors import UserError

ODD_LEADS_FIRST = 1
"""A seed with which node 3 wins the first election, unless nodes 1 and 2 are no voters of its own."""


def named(*voters: int) -> str:
    return ",".join(f"{one}@{host_of(one)}:{CONTROLLER_PORT}" for one in voters)


def assert_names(line: str, voters: tuple[int, ...]) -> None:
    mine = ", ".join(map(str, voters))
    assert line.startswith(f"controller.quorum.voters: this node names the voters {mine}, but ")
    assert (
        "of the metadata log, committed with the voters 1, 2, 3; accepted: the same voters on every node"
        in line
    )


@pytest.mark.parametrize("seed", [ODD_LEADS_FIRST, 2])
@pytest.mark.parametrize("voters", [(1, 3), (2, 3), (1, 2, 3, 4), (2, 3, 4), (3, 4, 5)])
def test_the_node_that_differs_stops_and_the_others_go_on(
    voters: tuple[int, ...], seed: int
) -> None:
    async def whole() -> None:
        cluster = Cluster(World(seed), 3)
        odd = cluster.machines[3]
        right = odd.settings
        odd.settings = right | {"controller.quorum.voters": named(*voters)}
        async with asyncio.timeout(600):
            starts = [asyncio.create_task(one.start()) for one in cluster.machines.values()]
            await asyncio.gather(*starts[:2])
            with pytest.raises(UserError) as refused:
                await starts[2]
            assert_names(str(refused.value), voters)
            is_led_first = seed == ODD_LEADS_FIRST and voters != (3, 4, 5)
            assert cluster.quorum(1).leader_epoch == 1 + is_led_first
            await odd.kill()
            await write(cluster, "t")
            odd.settings = right
            await odd.start()
            await cluster.until(lambda: written(cluster, 3) == {"t"}, "node 3 has the log")
            await cluster.stop()
        assert [one.broken_tasks for one in cluster.machines.values()] == [[], [], []]

    run(whole())


def test_a_node_of_a_running_cluster_restarts_with_other_voters() -> None:
    async def whole() -> None:
        cluster = Cluster(World(1), 3)
        async with asyncio.timeout(600):
            await cluster.start()
            await write(cluster, "before")
            odd = cluster.machines[2]
            right = odd.settings
            await odd.stop()
            odd.settings = right | {"controller.quorum.voters": named(1, 2)}
            with pytest.raises(UserError) as refused:
                await odd.start()
            assert_names(str(refused.value), (1, 2))
            await write(cluster, "t")
            await odd.kill()
            odd.settings = right
            await odd.start()
            await cluster.until(lambda: written(cluster, 2) == {"before", "t"}, "node 2 has both")
            await cluster.stop()

    run(whole())


@pytest.mark.parametrize("voters", [(1, 2), (3,), (1, 2, 3, 5)])
def test_a_broker_alone_that_differs_stops(voters: tuple[int, ...]) -> None:
    """At its first start it has no log; at its second one its log says what the leader counts."""

    async def whole() -> None:
        cluster = Cluster(World(1), 4, roles={4: "broker"})
        odd = cluster.machines[4]
        right = odd.settings
        odd.settings = right | {"controller.quorum.voters": named(*voters)}
        async with asyncio.timeout(600):
            starts = [asyncio.create_task(one.start()) for one in cluster.machines.values()]
            await asyncio.gather(*starts[:3])
            with pytest.raises(UserError) as refused:
                await starts[3]
            assert_names(str(refused.value), voters)
            await odd.kill()
            odd.settings = right
            await odd.start()
            await cluster.until(lambda: 4 in written_brokers(cluster), "node 4 is registered")
            await odd.stop()
            odd.settings = right | {"controller.quorum.voters": named(*voters)}
            with pytest.raises(UserError) as refused:
                await odd.start()
            assert_names(str(refused.value), voters)
            await odd.kill()
            await cluster.stop()
        assert [one.broken_tasks for one in cluster.machines.values()] == [[], [], [], []]

    run(whole())


def written_brokers(cluster: Cluster) -> set[int]:
    """The brokers that node 1 knows."""
    return set(cluster.machines[1].broker.metadata.image.brokers)
