"""Preferred leaders come back by themselves, and the metrics of moves are right.

Method: three real nodes in one world, each broker and controller, under a virtual clock.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.sim.cluster import Cluster, host_of
from tests.sim.loop import run
from tests.sim.records import batch
from tests.sim.world import START_MS, World

from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode
from stratalog.metadata.image import Partition
from stratalog.monitor.replicas import ReplicaCounts
from stratalog.quorum.reassignment import Reassignment
from stratalog.wire.ids import TopicPartition

Tell = Callable[[Cluster, Client, list[int]], Coroutine[Any, Any, None]]


def partition(cluster: Cluster) -> Partition:
    """Return the partition as a running node knows it."""
    found = next(one.image.image for one in cluster.quorums().values()).topic("t")
    assert found is not None
    return found.partitions[0]


def story(tell: Tell, factor: int, **settings: str) -> None:
    """Tell a story of one partition; the first of `nodes`, which leads, has the active controller, too."""

    async def whole() -> None:
        named = {key.replace("_", "."): value for key, value in settings.items()}
        cluster = Cluster(World(3), 3, named)
        async with asyncio.timeout(3600):
            await cluster.start()
            active = await cluster.until_active()
            nodes = sorted(cluster.machines, key=lambda one: (one != active, one))
            client = await cluster.machines[active].connect()
            topic = NewTopic("t", assignments={0: nodes[:factor]})
            (created,) = await client.create_topics([topic])
            assert created.error is ErrorCode.none, created
            await tell(cluster, client, nodes)
            await cluster.stop()
        assert [one.broken_tasks for one in cluster.machines.values()] == [[], [], []]

    run(whole())


async def leader_after_its_return(cluster: Cluster, first: int) -> int:
    await cluster.machines[first].kill()
    await cluster.until(lambda: partition(cluster).leader not in (first, -1), "another leader")
    await cluster.machines[first].start()
    await cluster.until(lambda: len(partition(cluster).isr) == 3, "a whole ISR", 60)
    await asyncio.sleep(15)
    return partition(cluster).leader


def test_a_killed_leader_leads_again_once_it_has_caught_up() -> None:
    async def tell(cluster: Cluster, _client: Client, nodes: list[int]) -> None:
        assert await leader_after_its_return(cluster, nodes[0]) == nodes[0]

    story(tell, 3, leader_imbalance_check_interval_seconds="10")


def test_without_the_setting_the_second_replica_goes_on_leading() -> None:
    async def tell(cluster: Cluster, _client: Client, nodes: list[int]) -> None:
        assert await leader_after_its_return(cluster, nodes[0]) == nodes[1]

    off = {"auto_leader_rebalance_enable": "false"}
    story(tell, 3, leader_imbalance_check_interval_seconds="10", **off)


def test_a_move_counts_the_bytes_that_the_new_replica_lacks() -> None:
    async def tell(cluster: Cluster, client: Client, nodes: list[int]) -> None:
        network = cluster.world.network
        leader, _, new = nodes

        def counts() -> ReplicaCounts:
            broker = cluster.machines[leader].broker
            found = ReplicaCounts(broker.metadata.image, now_ms=0, late_ms=0)
            for hosted in broker.hosting.all():
                found.add(hosted)
            return found

        for _ in range(10):
            await client.produce("t", 0, batch([b"x" * 1000], START_MS), acks=-1)
        log = cluster.machines[leader].partition("t").log
        assert (counts().reassigning, counts().bytes_to_reassign) == (0, 0)
        network.cut(host_of(new), host_of(leader))
        controller = cluster.quorum(leader).active
        assert controller is not None
        move = Reassignment(TopicPartition("t", 0), (leader, new))
        await controller.submit(lambda one: one.alter_reassignments([move], may_change_factor=True))
        await cluster.until(lambda: counts().reassigning == 1, "a move")
        assert counts().bytes_to_reassign == log.size > 10_000
        assert counts().under_replicated == 0, "the old replicas are in sync"
        network.heal(host_of(new), host_of(leader))
        await cluster.until(lambda: not counts().reassigning, "the end of the move", 60)
        assert counts().bytes_to_reassign == 0

    story(tell, 2)
