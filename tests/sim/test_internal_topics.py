"""A node that began alone gives its internal topics more replicas as brokers join it."""

import asyncio

from tests.sim.cluster import Cluster
from tests.sim.loop import run
from tests.sim.test_cluster_brokers import coordinator, raw_to
from tests.sim.world import World

from stratalog.wire.messages.find_coordinator import FindCoordinatorRequest

ROLES = {1: "broker,controller", 2: "broker", 3: "broker"}
OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"


def factors(cluster: Cluster, topic: str) -> set[tuple[int, int]]:
    """Return the numbers of replicas and of in-sync replicas of a topic's partitions."""
    found = cluster.quorum(1).image.topic(topic)
    assert found is not None
    return {(len(one.replicas), len(one.isr)) for one in found.partitions.values()}


def test_internal_topics_grow_with_the_brokers_and_go_on_working() -> None:
    async def story() -> None:
        cluster = Cluster(World(5), 3, {"transaction.state.log.num.partitions": "2"}, ROLES)
        await cluster.machines[1].start()
        raw = await raw_to(cluster, 1)
        assert await coordinator(raw) == 1
        await raw.ask(4, FindCoordinatorRequest(key_type=1, coordinator_keys=["tx"]))
        for topic in (OFFSETS, TRANSACTIONS):
            assert factors(cluster, topic) == {(1, 1)}
        for node in (2, 3):
            await cluster.machines[node].start()
            for topic in (OFFSETS, TRANSACTIONS):
                await cluster.until(
                    lambda topic=topic, node=node: factors(cluster, topic) == {(node, node)},  # type: ignore[misc]
                    f"{node} replicas of {topic}",
                )
        await cluster.machines[1].stop()
        other = await raw_to(cluster, 2)
        assert await coordinator(other) in {2, 3}
        await cluster.machines[1].start()
        await cluster.stop()
        assert [one.broken_tasks for one in cluster.machines.values()] == [[], [], []]

    run(story())


def test_a_factor_that_was_set_to_one_stays() -> None:
    async def story() -> None:
        settings = {"offsets.topic.replication.factor": "1"}
        cluster = Cluster(World(5), 2, settings, ROLES)
        await cluster.machines[1].start()
        assert await coordinator(await raw_to(cluster, 1)) == 1
        await cluster.machines[2].start()
        await asyncio.sleep(60)
        assert factors(cluster, OFFSETS) == {(1, 1)}
        await cluster.stop()

    run(story())
