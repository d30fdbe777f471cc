"""Three nodes, each broker and controller: acknowledged records outlive any one of them.

Method: real nodes in one world write with acks=all to three replicas, with `min.insync.replicas` of 2. A ledger holds
each acknowledged record. The machine that leads the partition may have the active controller, too.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from tests.produce import produce_body
from tests.sim.cluster import Cluster, host_of
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw
from tests.sim.records import batch, values_in
from tests.sim.world import START_MS, World

from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode, Rejected, Unavailable
from stratalog.metadata.image import Partition

Tell = Callable[[Cluster, "Ledger"], Coroutine[Any, Any, None]]


class Ledger:
    """Acknowledged values by offset. Each attempt writes a value of its own."""

    def __init__(self, cluster: Cluster) -> None:
        self.acknowledged: dict[int, bytes] = {}
        self._attempts = 0
        self._cluster = cluster
        self._client: Client | None = None

    async def _connected(self) -> Client:
        if self._client is None:
            up = [one for one, machine in self._cluster.machines.items() if machine.is_up]
            host = host_of(up[self._attempts % len(up)])
            self._client = await Client.connect(self._cluster.world.network, f"{host}:9092")
        return self._client

    async def create(self) -> None:
        client = await self._connected()
        topic = NewTopic("t", 1, 3, {"min.insync.replicas": "2"})
        (created,) = await client.create_topics([topic])
        assert created.error is ErrorCode.none, created
        await self.close()

    async def write(self) -> None:
        """Try to write one record."""
        self._attempts += 1
        value = b"value %d" % self._attempts
        try:
            async with asyncio.timeout(2):
                client = await self._connected()
                produced = await client.produce("t", 0, batch([value], START_MS), acks=-1)
        except (Rejected, Unavailable, TimeoutError, OSError):
            await self.close()
            await asyncio.sleep(0.05)
        else:
            assert produced.base_offset not in self.acknowledged, "two records at one offset"
            self.acknowledged[produced.base_offset] = value

    async def grow(self, count: int) -> None:
        """Write until so many more are acknowledged."""
        wanted = len(self.acknowledged) + count
        async with asyncio.timeout(120):
            while len(self.acknowledged) < wanted:
                await self.write()

    @asynccontextmanager
    async def growing(self) -> AsyncIterator[None]:
        """Write all the time, and with a new connection afterwards."""

        async def write_on() -> None:
            while True:
                await self.write()
                await asyncio.sleep(0.01)

        writing = asyncio.create_task(write_on())
        try:
            yield
        finally:
            writing.cancel()
            with suppress(asyncio.CancelledError):
                await writing
            await self.close()

    async def close(self) -> None:
        """Close the connection; the next write opens another."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()


def partition(cluster: Cluster) -> Partition:
    """Return the partition as a running node knows it."""
    image = next(one.image.image for one in cluster.quorums().values())
    topic = image.topic("t")
    assert topic is not None
    return topic.partitions[0]


def log_bytes(machine: Machine) -> bytes:
    log, disk = machine.partition("t").log, machine.host.disk("/data")
    return b"".join(bytes(disk.read(one.path, 0, one.size)) for one in log.segments)


async def whole_again(cluster: Cluster, ledger: Ledger) -> None:
    """Wait until all three are in sync and have the same log; check each of them."""
    await ledger.grow(1)
    await cluster.until(lambda: len(partition(cluster).isr) == 3, "a whole ISR", 120)

    def same() -> bool:
        hosted = [machine.partition("t") for machine in cluster.machines.values()]
        ends = {one.log.log_end_offset for one in hosted} | {one.high_watermark for one in hosted}
        return len(ends) == 1

    await cluster.until(same, "the same end everywhere", 120)
    first, *others = [log_bytes(machine) for machine in cluster.machines.values()]
    assert all(one == first for one in others)
    held = dict(values_in(first))
    for offset, value in ledger.acknowledged.items():
        assert held.get(offset) == value, f"{value!r} is not at {offset}"
    assert len(set(held.values())) == len(held), "a record is there twice"


def story(tell: Tell, seed: int = 1) -> None:
    async def whole() -> None:
        cluster = Cluster(World(seed), 3, {"replica.lag.time.max.ms": "3000"})
        async with asyncio.timeout(3600):
            await cluster.start()
            ledger = Ledger(cluster)
            await ledger.create()
            await ledger.grow(5)
            await tell(cluster, ledger)
            await whole_again(cluster, ledger)
            await ledger.close()
            await cluster.stop()
        assert [one.broken_tasks for one in cluster.machines.values()] == [[], [], []]

    run(whole())


@pytest.mark.parametrize("ending", ["kill", "lose_power", "stop"])
def test_writes_go_on_once_a_dead_follower_is_fenced(ending: str) -> None:
    """Not after `replica.lag.time.max.ms`, which is longer than a broker's session."""

    async def whole() -> float:
        cluster = Cluster(World(1), 3, {"replica.lag.time.max.ms": "30000"})
        await cluster.start()
        ledger = Ledger(cluster)
        await ledger.create()
        await ledger.grow(5)
        leader = partition(cluster).leader
        dead = next(one for one in cluster.machines if one != leader)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await getattr(cluster.machines[dead], ending)()
        await ledger.close()
        await ledger.grow(1)
        took = loop.time() - began
        await ledger.close()
        await cluster.stop()
        return took

    assert run(whole()) < 15


def test_writes_go_on_once_a_follower_that_was_about_to_join_is_fenced() -> None:
    """Not after `replica.lag.time.max.ms`: the leader looks at the follower again once its broker is fenced."""

    async def whole() -> float:
        cluster = Cluster(World(1), 3, {"replica.lag.time.max.ms": "30000"})
        await cluster.start()
        ledger = Ledger(cluster)
        await ledger.create()
        await ledger.grow(5)
        leader = partition(cluster).leader
        dead = next(one for one in cluster.machines if one != leader)
        await cluster.machines[dead].kill()
        await cluster.until(lambda: dead not in partition(cluster).isr, "fewer in the ISR", 20)
        await ledger.close()
        await ledger.grow(5)
        replica = cluster.machines[leader].partition("t").replica
        async with ledger.growing():
            await cluster.machines[dead].start()
            async with asyncio.timeout(20):
                while not replica.followers[dead].is_near:
                    await asyncio.sleep(0.0001)
            assert dead not in replica.isr
            assert replica.proposed is None
            await cluster.machines[dead].kill()
        loop = asyncio.get_running_loop()
        began = loop.time()
        await ledger.grow(1)
        took = loop.time() - began
        await ledger.close()
        await cluster.stop()
        return took

    assert run(whole()) < 15


@pytest.mark.parametrize("ending", ["kill", "lose_power", "stop"])
@pytest.mark.parametrize("seed", [1, 2])
def test_acknowledged_records_outlive_the_leaders_death(ending: str, seed: int) -> None:
    async def tell(cluster: Cluster, ledger: Ledger) -> None:
        leader = partition(cluster).leader
        await ledger.grow(1)  # from here on the leader's death loses no record
        async with ledger.growing():
            await getattr(cluster.machines[leader], ending)()
            await asyncio.sleep(cluster.world.chance.uniform(0, 15))
        await ledger.grow(5)
        await cluster.until(lambda: partition(cluster).leader != leader, "another leader")
        await cluster.machines[leader].start()

    story(tell, seed)


def test_acknowledged_records_outlive_a_paused_leader() -> None:
    async def tell(cluster: Cluster, ledger: Ledger) -> None:
        leader = cluster.machines[partition(cluster).leader]
        async with ledger.growing():
            await asyncio.sleep(0.2)
            leader.pause()
            await asyncio.sleep(15)
            leader.resume()
            await asyncio.sleep(2)

    story(tell)


@pytest.mark.parametrize("both_ways", [True, False])
def test_acknowledged_records_outlive_a_leader_that_is_cut_off(both_ways: bool) -> None:
    async def tell(cluster: Cluster, ledger: Ledger) -> None:
        leader = partition(cluster).leader
        network = cluster.world.network
        others = [host_of(one) for one in cluster.machines if one != leader]
        async with ledger.growing():
            await asyncio.sleep(0.2)
            for other in others:
                network.cut(host_of(leader), other)
                if both_ways:
                    network.cut(other, host_of(leader))
            await asyncio.sleep(20)
            for other in others:
                network.heal(host_of(leader), other)
                network.heal(other, host_of(leader))
            await asyncio.sleep(2)

    story(tell)


def test_a_replica_that_began_beside_a_lonely_leader_sends_producers_to_the_leader() -> None:
    """librdkafka repeats a request after NOT_ENOUGH_REPLICAS at the same broker, and does not ask for the leader."""

    async def tell() -> None:
        roles = {1: "controller", 2: "broker", 3: "broker", 4: "broker"}
        cluster = Cluster(World(1), 4, {"replica.lag.time.max.ms": "3000"}, roles)
        await cluster.start()
        async with await cluster.machines[2].connect() as client:
            wanted = NewTopic("t", assignments={0: [2, 3, 4]}, configs={"min.insync.replicas": "2"})
            (created,) = await client.create_topics([wanted])
            assert created.error is ErrorCode.none
        for node in (3, 4):
            await cluster.machines[node].kill()
        await cluster.until(lambda: partition(cluster).isr == (2,), "a lonely leader", 60)
        await cluster.machines[3].start()
        raw = await Raw.connect(cluster.world.network, host_of(3))
        for _ in range(2):
            answer = await raw.ask(9, produce_body("t", batch([b"value"], START_MS), acks=-1))
            (refused,) = answer.responses[0].partition_responses
            assert ErrorCode(refused.error_code) is ErrorCode.not_leader_or_follower
            await cluster.until(lambda: len(partition(cluster).isr) == 2, "a second in sync", 60)
        await cluster.stop()

    run(tell())
