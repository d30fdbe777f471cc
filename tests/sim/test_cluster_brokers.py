"""Goal: three nodes are one cluster for their clients. Method: real nodes, one of which stops or is killed."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.sim.cluster import Cluster, host_of
from tests.sim.loop import run
from tests.sim.raw import Raw
from tests.sim.world import World

from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode
from stratalog.wire.messages.describe_cluster import DescribeClusterRequest
from stratalog.wire.messages.find_coordinator import FindCoordinatorRequest
from stratalog.wire.messages.init_producer_id import InitProducerIdRequest
from stratalog.wire.messages.metadata import MetadataRequest


def story(tell: Callable[[Cluster], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        cluster = Cluster(World(11))
        await cluster.start()
        async with asyncio.timeout(300):
            await tell(cluster)
        await cluster.stop()
        assert [one.broken_tasks for one in cluster.machines.values()] == [[], [], []]

    run(whole())


def in_sync(cluster: Cluster, node: int) -> bool:
    topic = cluster.quorum(node).image.topic("t")
    return topic is not None and all(len(one.isr) == 3 for one in topic.partitions.values())


async def raw_to(cluster: Cluster, node: int) -> Raw:
    return await Raw.connect(cluster.world.network, host_of(node))


async def coordinator(raw: Raw) -> int:
    """Return the node that coordinates a group; wait while there is none."""
    for _ in range(100):
        answer = await raw.ask(4, FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
        (found,) = answer.coordinators
        if not found.error_code:
            return found.node_id
        await asyncio.sleep(0.05)
    raise AssertionError("no coordinator")


def test_every_node_answers_for_the_cluster() -> None:
    async def tell(cluster: Cluster) -> None:
        seen = []
        for node in (1, 2, 3):
            client = await cluster.machines[node].connect()
            (created,) = await client.create_topics([NewTopic(f"t{node}", 3, 3)])
            assert created.error is ErrorCode.none, created
            raw = await raw_to(cluster, node)
            ids = await raw.ask(
                4, InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
            )
            seen.append(ids.producer_id)
        assert len(set(seen)) == 3
        await cluster.until_equal()
        answers = []
        for node in (1, 2, 3):
            raw = await raw_to(cluster, node)
            metadata = await raw.ask(12, MetadataRequest(topics=None))
            described = await raw.ask(
                0, DescribeClusterRequest(include_cluster_authorized_operations=False)
            )
            assert {one.broker_id for one in described.brokers} == {1, 2, 3}
            answers.append(
                (
                    {(one.node_id, one.host, one.port) for one in metadata.brokers},
                    {
                        (topic.name, one.partition_index, one.leader_id, tuple(one.isr_nodes))
                        for topic in metadata.topics
                        for one in topic.partitions
                    },
                )
            )
        assert answers[0] == answers[1] == answers[2]
        coordinators = set()
        for node in (1, 2, 3):
            coordinators.add(await coordinator(await raw_to(cluster, node)))
        assert len(coordinators) == 1
        offsets = cluster.quorum(1).image.topic("__consumer_offsets")
        assert offsets is not None
        assert len(offsets.partitions[0].replicas) == 3

    story(tell)


def test_a_broker_stops_with_permission_and_starts_again_at_once() -> None:
    async def tell(cluster: Cluster) -> None:
        client = await cluster.machines[1].connect()
        (created,) = await client.create_topics([NewTopic("t", 9, 3)])
        assert created.error is ErrorCode.none
        await cluster.until_equal()
        for node in (1, 2, 3):
            loop = asyncio.get_running_loop()
            began = loop.time()
            epoch = cluster.quorum(node).image.image.brokers[node].epoch
            await cluster.machines[node].stop()
            assert loop.time() - began < 5, node
            other = next(one for one in (1, 2, 3) if one != node)
            topic = cluster.quorum(other).image.topic("t")
            assert topic is not None
            assert {one.leader for one in topic.partitions.values()} <= {1, 2, 3} - {node}
            began = loop.time()
            await cluster.machines[node].start()
            assert loop.time() - began < 5, (node, loop.time() - began)
            assert cluster.quorum(node).image.image.brokers[node].epoch > epoch

    story(tell)


def test_the_active_controller_stops_last_and_waits_for_no_voter_that_has_gone() -> None:
    async def tell(cluster: Cluster) -> None:
        last = await cluster.until_active()
        loop = asyncio.get_running_loop()
        for node in (*({1, 2, 3} - {last}), last):
            began = loop.time()
            await cluster.machines[node].stop()
            assert loop.time() - began < 0.5, node

    story(tell)


def test_a_killed_broker_is_fenced_and_comes_back() -> None:
    async def kill_one(cluster: Cluster, node: int) -> None:
        other = cluster.quorum(node % 3 + 1).image

        def is_fenced() -> bool:
            return other.image.brokers[node].fenced

        await cluster.machines[node].kill()
        await cluster.until(is_fenced, "fenced", 20)
        topic = other.topic("t")
        assert topic is not None
        assert {one.leader for one in topic.partitions.values()} <= {1, 2, 3} - {node}
        await cluster.machines[node].start()
        await cluster.until(lambda: not is_fenced(), "unfenced")
        await cluster.until(lambda: in_sync(cluster, node % 3 + 1), "every replica in sync", 60)

    async def tell(cluster: Cluster) -> None:
        client = await cluster.machines[1].connect()
        (created,) = await client.create_topics([NewTopic("t", 9, 3)])
        assert created.error is ErrorCode.none, created
        await cluster.until_equal()
        for node in (1, 2, 3):
            await kill_one(cluster, node)

    story(tell)


def test_the_session_of_a_killed_controller_began_when_its_connections_broke() -> None:
    """The other brokers get a new session from the new controller, the killed one does not."""

    async def tell(cluster: Cluster) -> None:
        for _ in range(3):
            await asyncio.sleep(20)
            killed = await cluster.until_active()
            witness = killed % 3 + 1
            began = asyncio.get_running_loop().time()
            await cluster.machines[killed].kill()
            await cluster.until_active(but=killed)
            brokers = cluster.quorum(witness).image
            await cluster.until(lambda: brokers.image.brokers[killed].fenced, "fenced", 20)  # noqa: B023
            assert 9 < asyncio.get_running_loop().time() - began < 9.5
            assert not any(
                one.fenced for id_, one in brokers.image.brokers.items() if id_ != killed
            )
            await cluster.machines[killed].start()
            await cluster.until(lambda: not brokers.image.brokers[killed].fenced, "unfenced")  # noqa: B023

    story(tell)


def test_a_broker_serves_clients_once_its_image_has_it_unfenced() -> None:
    """librdkafka gives up every broker that an answer lacks: one without brokers left it with none."""

    async def tell(cluster: Cluster) -> None:
        await cluster.until_equal()
        for node in (1, 2, 3):
            await cluster.machines[node].stop()
        starting = [asyncio.create_task(cluster.machines[node].start()) for node in (1, 2, 3)]
        refused = 0
        named: set[int] = set()
        while not named:
            await asyncio.sleep(0.001)
            try:
                raw = await raw_to(cluster, 1)
            except ConnectionRefusedError:
                refused += 1
            else:
                metadata = await raw.ask(12, MetadataRequest(topics=None))
                named = {one.node_id for one in metadata.brokers}
                assert 1 in named
        assert refused > 0, "the broker was unfenced at once"
        await asyncio.gather(*starting)

    story(tell)
