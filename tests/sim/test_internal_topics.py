"""A node that began alone gives its internal topics more replicas as brokers join it."""

import asyncio
from random import Random

import pytest
from tests.sim.cluster import Cluster
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw
from tests.sim.test_cluster_brokers import coordinator, raw_to
from tests.sim.world import World

from stratalog.errors import ErrorCode
from stratalog.wire.messages.find_coordinator import FindCoordinatorRequest

ROLES = {1: "broker,controller", 2: "broker", 3: "broker"}
FINDS = [FindCoordinatorRequest(key_type=one, coordinator_keys=["x"]) for one in (0, 1)]
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


def test_a_node_whose_other_brokers_are_away_creates_its_internal_topics() -> None:
    """The directory of the metadata log knows three brokers; one runs."""

    async def story() -> None:
        settings = {"transaction.state.log.num.partitions": "2"}
        cluster = Cluster(World(5), 3, settings, ROLES)
        await cluster.start()
        await cluster.stop()
        await cluster.machines[1].start()
        await asyncio.sleep(30)  # the others' sessions end
        raw = await raw_to(cluster, 1)
        assert await coordinator(raw) == 1
        await raw.ask(4, FindCoordinatorRequest(key_type=1, coordinator_keys=["tx"]))
        for node in (2, 3):
            await cluster.machines[node].start()
        for topic in (OFFSETS, TRANSACTIONS):
            await cluster.until(
                lambda topic=topic: factors(cluster, topic) == {(3, 3)},  # type: ignore[misc]
                f"three replicas of {topic}",
            )
        await cluster.stop()

    run(story())


@pytest.mark.parametrize("brokers", [1, 2])
def test_controllers_alone_count_for_no_replica(brokers: int) -> None:
    """With three of them, and fewer brokers, each creation was refused."""

    async def story() -> None:
        roles = dict.fromkeys((1, 2, 3), "controller") | dict.fromkeys(
            range(4, 4 + brokers), "broker"
        )
        cluster = Cluster(World(5), 3 + brokers, {}, roles)
        await cluster.start()
        assert await coordinator(await raw_to(cluster, 4)) in range(4, 4 + brokers)
        assert factors(cluster, OFFSETS) == {(brokers, brokers)}
        await cluster.stop()

    run(story())


def test_a_voter_that_has_not_started_counts_for_a_replica() -> None:
    async def story() -> None:
        cluster = Cluster(World(5), 3)
        await asyncio.gather(*(cluster.machines[node].start() for node in (1, 2)))
        raw = await raw_to(cluster, 1)
        await asyncio.sleep(5)
        answer = await raw.ask(4, FINDS[0])
        assert answer.coordinators[0].error_code == ErrorCode.coordinator_not_available
        await cluster.machines[3].start()
        assert await coordinator(raw) in (1, 2, 3)
        assert factors(cluster, OFFSETS) == {(3, 3)}
        await cluster.stop()

    run(story())


@pytest.mark.parametrize("seed", range(12))
def test_a_coordinator_is_found_however_the_node_ended_while_the_topics_were_created(
    seed: int,
) -> None:
    async def story() -> None:
        chance = Random(seed)
        machine = Machine(World(seed), {"offsets.topic.num.partitions": chance.choice(("2", "50"))})
        machine.slowness = chance.choice((0, 0.2))
        await machine.restart()
        for _ in range(3):
            raw = await Raw.connect(machine.world.network)
            asks = [raw.ask(4, request) for request in FINDS]
            await asyncio.sleep(chance.choice((0, chance.uniform(0, 0.02), chance.uniform(0, 0.5))))
            await getattr(machine, chance.choice(("kill", "lose_power", "stop")))()
            for one in asks:
                one.cancel()
            await machine.restart()
        raw = await Raw.connect(machine.world.network)
        async with asyncio.timeout(10):
            for request in FINDS:
                while (await raw.ask(4, request)).coordinators[0].error_code:
                    await asyncio.sleep(0.1)
        assert not machine.broken_tasks
        await machine.stop()

    run(story())
