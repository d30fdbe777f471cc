"""A broker that stops with permission costs each client at most one answer that it must repeat."""

import asyncio
import random

import pytest
from tests.sim.cluster import Cluster, host_of
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.records import batch
from tests.sim.test_cluster_brokers import in_sync
from tests.sim.world import START_MS, World

from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode, Rejected, Unavailable

PARTITIONS = 3


class Writer:
    """A client that writes to one partition all the time, and looks for its leader again after each failure."""

    def __init__(self, partition: int) -> None:
        self.failures: list[str] = []
        self._partition = partition

    async def write(self, cluster: Cluster) -> None:
        addresses = ",".join(f"{host_of(node)}:9092" for node in cluster.machines)
        async with await Client.connect(cluster.world.network, addresses) as client:
            while True:
                try:
                    await client.produce("t", self._partition, batch([b"x"], START_MS))
                except (Rejected, Unavailable) as error:
                    self.failures.append(str(error))
                await asyncio.sleep(0.02)


@pytest.mark.parametrize("seed", [1, 2])
def test_each_client_repeats_at_most_one_request(seed: int) -> None:
    async def story() -> None:
        cluster = Cluster(World(seed))
        await cluster.start()
        client = await cluster.machines[1].connect()
        topic = NewTopic("t", PARTITIONS, 3, {"min.insync.replicas": "2"})
        (created,) = await client.create_topics([topic])
        assert created.error is ErrorCode.none
        await cluster.until(lambda: in_sync(cluster, 1), "replicas in sync")
        for node in (1, 2, 3):
            writers = [Writer(partition) for partition in range(PARTITIONS)]
            async with asyncio.TaskGroup() as group:
                writing = [group.create_task(one.write(cluster)) for one in writers]
                await asyncio.sleep(1)
                assert not any(one.failures for one in writers)
                await cluster.machines[node].stop()
                await asyncio.sleep(2)
                for task in writing:
                    task.cancel()
            assert any(one.failures for one in writers), "the broker led no partition"
            assert all(len(one.failures) <= 1 for one in writers), [one.failures for one in writers]
            await cluster.machines[node].start()
            other = node % 3 + 1
            await cluster.until(lambda other=other: in_sync(cluster, other), "all in sync", 120)  # type: ignore[misc]
        await cluster.stop()

    run(story())


@pytest.mark.parametrize("seed", [7, 10, 20, 26])
def test_a_cluster_that_stops_as_a_whole_always_names_a_broker(seed: int) -> None:
    """librdkafka 2.16 forgets every broker that an answer lacks. After an empty answer it never connects again."""
    chance = random.Random(seed)
    named: list[int] = []

    async def ask(cluster: Cluster, node: int) -> None:
        async with await Client.connect(cluster.world.network, f"{host_of(node)}:9092") as client:
            while True:
                named.append(len((await client.metadata([])).brokers))
                await asyncio.sleep(0.003)

    async def stop(machine: Machine, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await machine.stop()

    async def story() -> None:
        cluster = Cluster(World(seed))
        await cluster.start()
        asking = [asyncio.create_task(ask(cluster, node)) for node in cluster.machines]
        await asyncio.sleep(1)
        delays = [chance.uniform(0, 0.02) for _ in cluster.machines]
        await asyncio.gather(*map(stop, cluster.machines.values(), delays))
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    run(story())
    assert named
    assert min(named) > 0


def test_the_only_broker_is_fenced_once_it_has_stopped() -> None:
    """Apache Kafka's controller would refuse its next incarnation for the time of a session otherwise."""

    async def story() -> None:
        machine = Machine(World(3))
        client = await machine.restart()
        (created,) = await client.create_topics([NewTopic("t", 2)])
        assert created.error is ErrorCode.none
        broker = machine.node.broker
        assert broker is not None
        assert broker.metadata.image.brokers[1].is_active
        await machine.stop()
        stopped = broker.metadata.image
        assert stopped.brokers[1].fenced
        topic = stopped.topic("t")
        assert topic is not None
        assert [one.leader for one in topic.partitions.values()] == [-1, -1]
        client = await machine.restart()
        assert (await client.metadata(["t"])).brokers
        await machine.stop()

    run(story())
