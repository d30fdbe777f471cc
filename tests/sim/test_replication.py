"""Brokers that follow: acknowledged records are on every in-sync replica, and all logs end as the leader's.

Method: real nodes in one world. A ledger has every record that a story acknowledges with acks=all.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from unittest.mock import patch

import pytest
from tests.sim.cluster import Cluster, host_of
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw, fetch_body, list_offsets_body
from tests.sim.records import batch, values_in
from tests.sim.test_moves import until
from tests.sim.test_replicated_cluster import log_bytes
from tests.sim.test_roles import change
from tests.sim.world import START_MS, World

from stratalog.broker.fetching.gathering import Gathering
from stratalog.broker.partitions.partition import HostedPartition
from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode, Rejected, Unavailable
from stratalog.log.reading import Slices
from stratalog.metadata.image import Partition
from stratalog.ports import SocketBuffers
from stratalog.quorum.reassignment import Reassignment
from stratalog.wire.ids import TopicPartition
from stratalog.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

Tell = Callable[[Cluster, Client], Coroutine[Any, Any, None]]


def story(tell: Tell, seed: int = 1, count: int = 3, **more: str) -> None:
    """The first node alone is a controller too, and never ends."""

    async def whole() -> None:
        settings = {"replica.lag.time.max.ms": "3000"}
        settings |= {name.replace("__", "."): value for name, value in more.items()}
        others = dict.fromkeys(range(2, count + 1), "broker")
        cluster = Cluster(World(seed), count, settings, others)
        await cluster.start()
        client = await cluster.machines[1].connect()
        async with asyncio.timeout(3600):
            await tell(cluster, client)
        for machine in cluster.machines.values():
            assert machine.broken_tasks == []
        for number in range(count, 0, -1):
            await cluster.machines[number].stop()

    run(whole())


async def create(client: Client, replicas: list[int], **configs: str) -> None:
    named = {key.replace("_", "."): text for key, text in configs.items()}
    (created,) = await client.create_topics(
        [NewTopic("t", assignments={0: replicas}, configs=named)]
    )
    assert created.error is ErrorCode.none, created


def partition(cluster: Cluster) -> Partition:
    """Return the partition as the controller's node knows it."""
    topic = cluster.machines[1].broker.metadata.image.topic("t")
    assert topic is not None
    return topic.partitions[0]


async def equal(cluster: Cluster) -> None:
    def same() -> bool:
        hosted = [machine.partition("t") for machine in cluster.machines.values()]
        ends = {one.log.log_end_offset for one in hosted} | {one.high_watermark for one in hosted}
        return len(ends) == 1

    await until(same)
    first, *others = [log_bytes(machine) for machine in cluster.machines.values()]
    assert all(one == first for one in others)


def test_followers_have_what_is_acknowledged() -> None:
    async def tell(cluster: Cluster, client: Client) -> None:
        await create(client, [1, 2, 3], min_insync_replicas="2")
        for number in range(20):
            await client.produce("t", 0, batch([b"%d" % number], START_MS), acks=-1)
            held = [
                machine.partition("t").log.log_end_offset for machine in cluster.machines.values()
            ]
            assert held == [number + 1] * 3
        await equal(cluster)

    story(tell)


def test_followers_fetch_over_sockets_of_the_size_that_was_set() -> None:
    async def tell(cluster: Cluster, client: Client) -> None:
        await create(client, [1, 2, 3])
        await client.produce("t", 0, batch([b"x"], START_MS), acks=-1)
        assert cluster.world.network.buffers_of_clients == [SocketBuffers(receive=70_000)] * 2

    story(tell, replica__socket__receive__buffer__bytes="70000")


class Ledger:
    """The acknowledged records: offset -> value. Each attempt writes a value of its own."""

    def __init__(self, cluster: Cluster, client: Client, size: int = 0) -> None:
        self._network = cluster.world.network
        self._padding = b"." * size
        self.acknowledged: dict[int, bytes] = {}
        self.attempts = 0
        self._client = client
        self._writing: asyncio.Task[None] | None = None

    async def write(self, timeout_s: float = 2.0) -> bool:
        """Return whether one more record is acknowledged."""
        self.attempts += 1
        value = b"value %d" % self.attempts + self._padding
        try:
            async with asyncio.timeout(timeout_s):
                produced = await self._client.produce("t", 0, batch([value], START_MS), acks=-1)
        except (Rejected, Unavailable, TimeoutError):
            await self._learn()
            return False
        assert produced.base_offset not in self.acknowledged, "two records at one offset"
        self.acknowledged[produced.base_offset] = value
        return True

    async def _learn(self) -> None:
        """Ask again which broker leads, in a client of its own: the first machine is always there."""
        await self._client.close()
        self._client = await Client.connect(self._network, f"{host_of(1)}:9092")

    async def grow(self, count: int) -> None:
        """Write until so many more are acknowledged."""
        wanted = len(self.acknowledged) + count
        async with asyncio.timeout(600):
            while len(self.acknowledged) < wanted:
                if not await self.write():
                    await asyncio.sleep(0.05)

    def begin(self) -> None:
        """Write until `end`."""

        async def write_on() -> None:
            while True:
                await self.write()
                await asyncio.sleep(0.01)

        self._writing = asyncio.create_task(write_on())

    async def end(self) -> None:
        assert self._writing is not None
        self._writing.cancel()
        await asyncio.wait((self._writing,))
        await self._learn()

    def check(self, machine: Machine) -> None:
        held = dict(values_in(log_bytes(machine)))
        for offset, value in self.acknowledged.items():
            assert held.get(offset) == value, f"{machine.address} lacks {value!r} at {offset}"
        assert len(set(held.values())) == len(held), "a record is there twice"


async def whole_again(cluster: Cluster, ledger: Ledger) -> None:
    """Wait until all logs are the same, in one ISR; check them."""
    await until(lambda: len(partition(cluster).isr) == len(cluster.machines))
    await ledger.grow(1)
    await equal(cluster)
    for machine in cluster.machines.values():
        ledger.check(machine)


def cut_off(cluster: Cluster, number: int) -> None:
    """Cut one machine from the others, both ways."""
    network = cluster.world.network
    for other in {1, 2, 3} - {number}:
        network.cut(host_of(number), host_of(other))
        network.cut(host_of(other), host_of(number))


def join_again(cluster: Cluster, number: int) -> None:
    network = cluster.world.network
    for other in {1, 2, 3} - {number}:
        network.heal(host_of(number), host_of(other))
        network.heal(host_of(other), host_of(number))


def test_the_isr_shrinks_to_those_that_keep_up_and_expands_again() -> None:
    async def tell(cluster: Cluster, client: Client) -> None:
        await create(client, [1, 2, 3], min_insync_replicas="2")
        ledger = Ledger(cluster, client)
        await ledger.grow(5)
        cut_off(cluster, 3)
        assert not await ledger.write(), "the third is in sync, and does not have it"
        await until(lambda: partition(cluster).isr == (1, 2))
        await until(lambda: cluster.machines[2].partition("t").replica.isr == (1, 2))
        await ledger.grow(5)
        assert cluster.machines[1].partition("t").high_watermark == 11
        join_again(cluster, 3)
        await whole_again(cluster, ledger)
        proposals = cluster.machines[1].broker.replication.proposals
        assert (proposals.shrinks, proposals.expansions) == (1, 1)

    story(tell)


def test_below_min_isr_acks_all_is_refused_and_nothing_is_committed() -> None:
    async def tell(cluster: Cluster, client: Client) -> None:
        await create(client, [1, 2, 3], min_insync_replicas="2")
        ledger = Ledger(cluster, client)
        await ledger.grow(5)
        for number in (2, 3):
            cut_off(cluster, number)
        raw = await Raw.connect(cluster.world.network, host_of(1))
        (late,) = (await raw.ask(9, produce_body(1000))).responses[0].partition_responses
        assert late.error_code == ErrorCode.request_timed_out
        await until(lambda: partition(cluster).isr == (1,))
        (few,) = (await raw.ask(9, produce_body(1000))).responses[0].partition_responses
        assert few.error_code == ErrorCode.not_enough_replicas
        (alone,) = (await raw.ask(9, produce_body(1000, acks=1))).responses[0].partition_responses
        assert (alone.error_code, alone.base_offset) == (ErrorCode.none, 6)
        assert cluster.machines[1].partition("t").high_watermark == 5
        latest = await raw.ask(11, list_offsets_body("t", -3))
        assert latest.topics[0].partitions[0].offset == -1, "the latest record is uncommitted"
        for number in (2, 3):
            join_again(cluster, number)
        await until(lambda: len(partition(cluster).isr) == 3)
        assert cluster.machines[1].partition("t").high_watermark == 7
        await equal(cluster)

    story(tell)


def produce_body(timeout_ms: int, acks: int = -1) -> ProduceRequest:
    data = PartitionProduceData(index=0, records=memoryview(batch([b"value"], START_MS + 60_000)))
    topic = TopicProduceData(name="t", partition_data=[data])
    return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=[topic])


@pytest.mark.parametrize("ending", ["kill", "lose_power", "stop"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_leader_that_dies_takes_nothing_with_it(ending: str, seed: int) -> None:
    async def tell(cluster: Cluster, client: Client) -> None:
        await create(client, [2, 1, 3], min_insync_replicas="2")
        ledger = Ledger(cluster, client)
        await ledger.grow(3)
        for _ in range(3):
            ledger.begin()
            await asyncio.sleep(cluster.world.chance.uniform(0.1, 1))
            await getattr(cluster.machines[2], ending)()
            await until(lambda: partition(cluster).leader in (1, 3))
            await asyncio.sleep(1)
            await ledger.end()
            await cluster.machines[2].start()
            await whole_again(cluster, ledger)
            await change(cluster.machines[1], "t", leader=2)
            await until(lambda: cluster.machines[2].partition("t").replica.leads)
            await whole_again(cluster, ledger)

    story(tell, seed)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_leader_that_sleeps_wakes_up_as_a_follower(seed: int) -> None:
    async def tell(cluster: Cluster, client: Client) -> None:
        await create(client, [2, 1, 3], min_insync_replicas="2")
        ledger = Ledger(cluster, client)
        ledger.begin()
        await asyncio.sleep(1)
        cluster.machines[2].pause()
        await until(lambda: partition(cluster).leader in (1, 3))
        await asyncio.sleep(5)
        cluster.machines[2].resume()
        await asyncio.sleep(2)
        await ledger.end()
        await whole_again(cluster, ledger)

    story(tell, seed)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_leader_behind_a_cut_acknowledges_nothing_and_truncates(seed: int) -> None:
    async def tell(cluster: Cluster, client: Client) -> None:
        await create(client, [2, 1, 3], min_insync_replicas="2")
        ledger = Ledger(cluster, client)
        await ledger.grow(5)
        cut_off(cluster, 2)
        raw = await Raw.connect(cluster.world.network, host_of(2))
        lonely = [raw.ask(9, produce_body(100_000)) for _ in range(3)]
        await until(lambda: partition(cluster).leader in (1, 3))
        await ledger.grow(5)
        old = cluster.machines[2].partition("t")
        assert old.replica.leads
        assert old.high_watermark == 5
        assert old.log.log_end_offset >= 8
        join_again(cluster, 2)
        for answer in lonely:
            (refused,) = (await answer).responses[0].partition_responses
            assert refused.error_code == ErrorCode.not_leader_or_follower
        await whole_again(cluster, ledger)

    story(tell, seed)


def test_a_follower_that_missed_what_the_leader_deleted_begins_anew() -> None:
    async def tell(cluster: Cluster, client: Client) -> None:
        await create(client, [1, 2, 3], min_insync_replicas="2", segment_bytes="1048576")
        ledger = Ledger(cluster, client, 400_000)
        await ledger.grow(10)
        await cluster.machines[3].kill()
        await until(lambda: partition(cluster).isr == (1, 2))
        await ledger.grow(10)
        leader = cluster.machines[1].partition("t")
        leader.log.raise_log_start(15)
        await asyncio.sleep(3)
        assert leader.log.segments[0].base_offset > 10
        await cluster.machines[3].start()
        follower = cluster.machines[3].partition("t")
        assert follower.log.log_end_offset == 10
        await until(lambda: follower.log.log_end_offset == 20)
        assert follower.log.log_start_offset == 15
        await until(lambda: len(partition(cluster).isr) == 3)
        await cluster.machines[3].lose_power()
        await asyncio.sleep(10)  # its session ends
        await cluster.machines[3].start()
        follower = cluster.machines[3].partition("t")
        await until(lambda: follower.log.log_end_offset == 20)
        assert (
            log_bytes(cluster.machines[3])
            == log_bytes(cluster.machines[1])[-len(log_bytes(cluster.machines[3])) :]
        )

    story(tell)


def test_damaged_bytes_from_a_leader_stop_one_replica_and_no_other() -> None:
    async def tell(cluster: Cluster, client: Client) -> None:
        await create(client, [1, 2])
        other = [NewTopic("other", assignments={0: [1, 2]})]
        await client.create_topics(other)
        reads = cluster.machines[1].broker.reads
        sound = reads.read

        def flip(hosted: HostedPartition, *args: Any, **kwargs: Any) -> Any:
            found = sound(hosted, *args, **kwargs)
            if hosted.name.topic != "t":
                return found
            assert isinstance(found, Slices)
            data = bytearray(b"".join(bytes(piece) for piece in found.buffers))
            data[-1] ^= 1
            return Slices([memoryview(data)], found.first_offset, found.next_offset)

        reads.read = flip  # type: ignore[method-assign]
        await client.produce("t", 0, batch([b"x" * 100], START_MS), acks=1)
        await client.produce("other", 0, batch([b"y"], START_MS), acks=1)
        follower = cluster.machines[2].partition("t")
        await until(lambda: cluster.machines[2].partition("other").log.log_end_offset == 1)
        await until(lambda: follower.metrics.corrupt_fetches > 1)
        assert follower.log.log_end_offset == 0
        reads.read = sound  # type: ignore[method-assign]
        await until(lambda: follower.log.log_end_offset == 1)

    story(tell, count=2)


def test_only_the_leader_serves_clients_that_know_no_other_replica() -> None:
    async def tell(cluster: Cluster, client: Client) -> None:
        await create(client, [1, 2])
        await client.produce("t", 0, batch([b"x"], START_MS), acks=-1)
        raw = await Raw.connect(cluster.world.network, host_of(2))
        (produced,) = (await raw.ask(9, produce_body(1000))).responses[0].partition_responses
        (fetched,) = (await raw.ask(10, fetch_body([("t", 0, 0)]))).responses[0].partitions
        (listed,) = (await raw.ask(7, list_offsets_body("t", -1))).topics[0].partitions
        for answer in (produced, fetched, listed):
            assert answer.error_code == ErrorCode.not_leader_or_follower

    story(tell, count=2)


def test_a_replica_that_moves_away_is_deleted_and_the_new_one_catches_up() -> None:
    async def tell(cluster: Cluster, client: Client) -> None:
        await create(client, [1, 2], min_insync_replicas="1")
        ledger = Ledger(cluster, client)
        await ledger.grow(20)
        ledger.begin()
        moved = [Reassignment(TopicPartition("t", 0), (1, 3))]
        controller = cluster.machines[1].broker.local_controller
        await controller.alter_reassignments(moved, may_change_factor=True)
        await until(lambda: partition(cluster).replicas == (1, 3))
        await ledger.end()
        await until(lambda: cluster.machines[2].broker.hosting.find("t", 0) is None)
        await ledger.grow(1)
        assert log_bytes(cluster.machines[3]) == log_bytes(cluster.machines[1])
        ledger.check(cluster.machines[3])

    story(tell)


def test_a_replica_that_is_added_while_no_broker_leads_catches_up_later() -> None:
    async def tell(cluster: Cluster, client: Client) -> None:
        await create(client, [2])
        await client.produce("t", 0, batch([b"first"], START_MS), acks=-1)
        await cluster.machines[2].kill()
        await until(lambda: partition(cluster).leader < 0)
        moved = [Reassignment(TopicPartition("t", 0), (2, 3))]
        controller = cluster.machines[1].broker.local_controller
        await controller.alter_reassignments(moved, may_change_factor=True)
        assert set(partition(cluster).replicas) == {2, 3}
        await cluster.machines[2].start()
        await until(lambda: set(partition(cluster).isr) == {2, 3}, 60)
        assert log_bytes(cluster.machines[3]) == log_bytes(cluster.machines[2])

    story(tell)


def test_a_new_leader_with_a_high_watermark_behind_refuses_to_list_later_offsets() -> None:
    """The former leader may have shown consumers more than the new one knows to be committed (KIP-207)."""

    async def tell(cluster: Cluster, client: Client) -> None:
        network = cluster.world.network
        await create(client, [2, 3, 4])
        await client.produce("t", 0, batch([b"old"], START_MS), acks=-1)
        new = cluster.machines[3]
        await until(lambda: new.partition("t").high_watermark == 1)
        for other in (2, 3):  # node 4 stays in sync for 3 s, and fetches nothing
            network.cut(host_of(4), host_of(other))
        await client.produce("t", 0, batch([b"new"], START_MS + 10), acks=1)
        await until(lambda: new.partition("t").log.log_end_offset == 2)
        await cluster.machines[2].kill()
        assert new.partition("t").high_watermark == 1
        raw = await Raw.connect(network, host_of(3))

        async def listed(version: int, timestamp: int) -> tuple[int, int]:
            answer = await raw.ask(version, list_offsets_body("t", timestamp))
            (found,) = answer.topics[0].partitions
            return found.error_code, found.offset

        await until(lambda: new.partition("t").replica.leads)
        for latest in (-1, START_MS + 10):  # the end, and a record behind the high watermark
            assert await listed(7, latest) == (ErrorCode.offset_not_available, -1)
            assert await listed(4, latest) == (ErrorCode.leader_not_available, -1)
        for earliest in (-2, START_MS):
            assert await listed(7, earliest) == (ErrorCode.none, 0)
        assert await listed(7, START_MS + 11) == (ErrorCode.none, -1)

        await until(lambda: new.partition("t").high_watermark == 2)  # without node 4 in the ISR
        assert await listed(7, -1) == (ErrorCode.none, 2)
        assert await listed(7, START_MS + 10) == (ErrorCode.none, 1)
        for other in (2, 3):
            network.heal(host_of(4), host_of(other))
        await cluster.machines[2].restart()

    story(tell, count=4)


def test_a_followers_fetch_looks_only_at_partitions_that_changed() -> None:
    async def tell(cluster: Cluster, client: Client) -> None:
        wide = NewTopic("t", assignments={index: [1, 2] for index in range(300)})
        (created,) = await client.create_topics([wide])
        assert created.error is ErrorCode.none, created
        follower = cluster.machines[2]
        await until(lambda: len(follower.broker.hosting.by_id) == 300)
        await asyncio.sleep(2)
        looked: list[int] = []
        real = Gathering._look

        def look(self: Any, topic: Any, index: int, wanted: Any) -> Any:
            looked.append(index)
            return real(self, topic, index, wanted)

        with patch.object(Gathering, "_look", look):
            await asyncio.sleep(2)
            assert looked == [], "idle"
            await client.produce("t", 7, batch([b"x"], START_MS), acks=-1)
            await asyncio.sleep(2)
        assert set(looked) == {7}
        assert len(looked) < 10
        assert follower.broker.hosting.get("t", 7).high_watermark == 1

    story(tell)
