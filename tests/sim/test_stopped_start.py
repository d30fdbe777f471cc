"""A node that is stopped while it starts stops within about a second, whatever it waits for; the next start succeeds.

Method: `Node.abandon`, which the server calls on SIGTERM, at many moments of the start of one node of three.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.sim.cluster import Cluster
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.world import World

from stratalog.errors import Unavailable

BOUND_S = 1.5
"""A leader that resigns waits a second for the others; virtual time passes in drives too."""


def with_cluster(story: Callable[[Cluster], Coroutine[Any, Any, None]], **how: Any) -> None:
    async def whole() -> None:
        cluster = Cluster(World(1), **how)
        async with asyncio.timeout(3600):
            await story(cluster)
            await cluster.stop()
        for machine in cluster.machines.values():
            assert (machine.broken_tasks, machine.reasons_to_stop) == ([], [])

    run(whole())


async def stop_starting(machine: Machine, after_s: float) -> bool:
    """Start a node, and stop it after that time; return whether the stop ended the start."""
    loop = asyncio.get_running_loop()
    starting = asyncio.create_task(machine.start())
    await asyncio.sleep(after_s)
    began = loop.time()
    machine.node.abandon()
    machine.node.abandon()  # a second signal changes nothing
    try:
        await starting
    except Unavailable as error:
        assert "stopped before it was ready" in str(error)
        was_ended = True
        machine.is_up = False
    else:
        was_ended = False
        await machine.stop()
    assert loop.time() - began < BOUND_S
    return was_ended


@pytest.mark.parametrize("after_s", [0, 0.1, 30])
def test_a_start_without_a_quorum_is_stopped_in_time(after_s: float) -> None:
    async def story(cluster: Cluster) -> None:
        assert await stop_starting(cluster.machines[1], after_s)
        await cluster.start()

    with_cluster(story)


@pytest.mark.parametrize("after_s", [0, 0.02, 0.1, 0.5, 2, 5])
def test_a_start_during_the_earlier_session_is_stopped_in_time(after_s: float) -> None:
    """The controller refuses the registration of a killed broker until its session has ended."""

    async def story(cluster: Cluster) -> None:
        await cluster.start()
        leader = await cluster.until_active()
        killed = cluster.machines[leader % 3 + 1]
        await killed.kill()
        await cluster.until_active()
        assert await stop_starting(killed, after_s)
        await killed.start()
        await cluster.until_equal()

    with_cluster(story)


@pytest.mark.parametrize("after_s", [1, 5, 20])
def test_a_start_without_a_controller_is_stopped_in_time(after_s: float) -> None:
    """The broker knows the quorum, and both controllers die before its registration."""

    async def story(cluster: Cluster) -> None:
        voters = [cluster.machines[one] for one in (1, 2)]
        broker = cluster.machines[3]
        await cluster.start()
        await broker.kill()
        starting = asyncio.create_task(broker.start())
        await asyncio.sleep(0)  # the new process begins
        await cluster.until(lambda: broker.node.broker is not None, "the quorum is found")
        for voter in voters:
            await voter.kill()
        await asyncio.sleep(after_s)
        assert not starting.done()
        began = asyncio.get_running_loop().time()
        broker.node.abandon()
        with pytest.raises(Unavailable, match="stopped before it was ready"):
            await starting
        broker.is_up = False
        assert asyncio.get_running_loop().time() - began < BOUND_S
        await cluster.start()

    with_cluster(story, roles={1: "controller", 2: "controller", 3: "broker"})


@pytest.mark.parametrize("after_s", [0, 0.01, 0.03, 0.1, 0.3, 1, 3])
def test_the_start_of_a_cluster_is_stopped_in_time_at_any_moment(after_s: float) -> None:
    async def story(cluster: Cluster) -> None:
        others = [asyncio.create_task(cluster.machines[one].start()) for one in (2, 3)]
        await stop_starting(cluster.machines[1], after_s)
        await cluster.machines[1].start()
        await asyncio.gather(*others)

    with_cluster(story)
