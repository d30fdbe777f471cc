"""Consumers read from the replica of their rack (KIP-392).

Method: three real nodes in one world, each in a rack of its own. Node 1 leads the only partition; raw requests name a
rack, as a consumer with `client.rack` does.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

import pytest
from tests.sim.cluster import Cluster, host_of
from tests.sim.loop import run
from tests.sim.raw import Raw, fetch_body, list_offsets_body, records_of
from tests.sim.records import batch, values_in
from tests.sim.test_moves import until
from tests.sim.test_replicated_cluster import partition
from tests.sim.world import START_MS, World

from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode
from stratalog.wire.apis import FETCH
from stratalog.wire.messages.fetch import PartitionData

SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
RECORDS = 5
NEWEST = 18


class Tale:
    """A cluster, a client that writes, and raw connections to each node."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.client: Client
        self.topic_id = UUID(int=0)
        self._raws: dict[int, Raw] = {}

    async def begin(self) -> None:
        self.client = await self.cluster.machines[1].connect()
        topic = NewTopic("t", assignments={0: [1, 2, 3]}, configs={"min.insync.replicas": "2"})
        (created,) = await self.client.create_topics([topic])
        assert created.error is ErrorCode.none, created
        self.topic_id = (await self.client.metadata(["t"])).topics["t"].topic_id
        await self.write(RECORDS)

    async def write(self, count: int) -> None:
        for _ in range(count):
            await self.client.produce("t", 0, batch([b"value"], START_MS), acks=-1)
        await self.until_known()

    async def until_known(self) -> None:
        """Wait until the followers know that all is committed."""
        hosted = [one.partition("t") for one in self.cluster.machines.values() if one.is_up]
        await until(lambda: len({one.high_watermark for one in hosted}) == 1)

    async def fetch(
        self, node: int, offset: int, version: int = NEWEST, **more: Any
    ) -> PartitionData:
        if node not in self._raws:
            self._raws[node] = await Raw.connect(self.cluster.world.network, host_of(node))
        topic = self.topic_id if version >= 13 else "t"
        answer = await self._raws[node].ask(version, fetch_body([(topic, 0, offset)], **more))
        (found,) = answer.responses[0].partitions
        return found

    def cut(self, node: int, *others: int) -> None:
        network = self.cluster.world.network
        for other in others:
            network.cut(host_of(node), host_of(other))
            network.cut(host_of(other), host_of(node))

    def heal(self, node: int, *others: int) -> None:
        network = self.cluster.world.network
        for other in others:
            network.heal(host_of(node), host_of(other))
            network.heal(host_of(other), host_of(node))


def story(tell: Callable[[Tale], Coroutine[Any, Any, None]], selector: str = SELECTOR) -> None:
    async def whole() -> None:
        settings = {"replica.lag.time.max.ms": "3000"}
        cluster = Cluster(
            World(5), 3, settings | ({"replica.selector.class": selector} if selector else {})
        )
        for node, machine in cluster.machines.items():
            machine.settings["broker.rack"] = f"rack-{node}"
        async with asyncio.timeout(600):
            await cluster.start()
            tale = Tale(cluster)
            await tale.begin()
            await tell(tale)
            await cluster.stop()
        assert [one.broken_tasks for one in cluster.machines.values()] == [[], [], []]

    run(whole())


def answered(found: PartitionData) -> tuple[int, int, int]:
    """Return (error code, preferred replica, records)."""
    return found.error_code, found.preferred_read_replica, len(list(values_in(records_of(found))))


@pytest.mark.parametrize("version", [11, 12, NEWEST])
def test_the_leader_names_the_follower_in_the_consumers_rack(version: int) -> None:
    async def tell(tale: Tale) -> None:
        for node in (2, 3):
            found = await tale.fetch(
                1, 0, version, rack=f"rack-{node}", max_wait_ms=60_000, min_bytes=1 << 20
            )
            assert answered(found) == (0, node, 0)
            assert found.high_watermark == RECORDS
            assert answered(await tale.fetch(node, 0, version, rack=f"rack-{node}")) == (
                0,
                -1,
                RECORDS,
            )
        for rack in ("rack-1", "rack-9", ""):
            assert answered(await tale.fetch(1, 0, version, rack=rack)) == (0, -1, RECORDS)

    story(tell)


def test_without_a_selector_the_leader_serves_every_rack() -> None:
    async def tell(tale: Tale) -> None:
        assert answered(await tale.fetch(1, 0, rack="rack-2")) == (0, -1, RECORDS)
        # As in Kafka, a consumer may ask a follower all the same.
        assert answered(await tale.fetch(2, 0)) == (0, -1, RECORDS)

    story(tell, selector="")


def test_a_follower_refuses_what_only_a_leader_may_answer() -> None:
    async def tell(tale: Tale) -> None:
        epoch = partition(tale.cluster).leader_epoch
        raw = await Raw.connect(tale.cluster.world.network, host_of(2))
        assert (await tale.fetch(2, 0, 10)).error_code == ErrorCode.not_leader_or_follower
        (listed,) = (await raw.ask(7, list_offsets_body("t", -1))).topics[0].partitions
        assert listed.error_code == ErrorCode.not_leader_or_follower
        for named, code in (
            (epoch, ErrorCode.none),
            (epoch + 1, ErrorCode.unknown_leader_epoch),
        ):
            assert (await tale.fetch(2, 0, leader_epoch=named)).error_code == code
        found = await tale.fetch(2, RECORDS + 1)
        assert found.error_code == ErrorCode.offset_out_of_range

    story(tell)


def test_a_follower_serves_what_it_knows_to_be_committed_and_wakes_for_more() -> None:
    async def tell(tale: Tale) -> None:
        tale.cut(3, 1)
        writing = asyncio.create_task(
            tale.client.produce("t", 0, batch([b"late"], START_MS), acks=-1)
        )
        follower = tale.cluster.machines[2].partition("t")
        await until(lambda: follower.log.log_end_offset == RECORDS + 1)
        assert follower.high_watermark == RECORDS, "node 3 is in sync, and lacks the record"
        assert answered(await tale.fetch(2, 0)) == (0, -1, RECORDS)
        assert answered(await tale.fetch(2, RECORDS)) == (0, -1, 0)
        loop = asyncio.get_running_loop()
        waiting = asyncio.create_task(tale.fetch(2, RECORDS, max_wait_ms=60_000))
        await writing  # the ISR is smaller now
        committed = loop.time()
        assert answered(await waiting) == (0, -1, 1)
        assert loop.time() - committed < 1, "the new high watermark wakes the fetch"
        tale.heal(3, 1)

    story(tell)


def test_a_waiting_consumer_of_a_follower_learns_of_another_leader() -> None:
    async def tell(tale: Tale) -> None:
        epoch = partition(tale.cluster).leader_epoch
        loop = asyncio.get_running_loop()
        waiting = asyncio.create_task(
            tale.fetch(3, RECORDS, leader_epoch=epoch, max_wait_ms=60_000)
        )
        await asyncio.sleep(0.1)
        begun = loop.time()
        await tale.client.close()
        await tale.cluster.machines[1].stop()
        assert (await waiting).error_code == ErrorCode.fenced_leader_epoch
        assert loop.time() - begun < 30
        await tale.cluster.machines[1].start()

    story(tell)


def test_a_follower_that_is_not_in_sync_is_not_named() -> None:
    async def tell(tale: Tale) -> None:
        assert answered(await tale.fetch(1, 0, rack="rack-3"))[1] == 3
        tale.cut(3, 1)
        # As in Kafka, a silent follower that lacks no record stays in the ISR: this one lacks one.
        await tale.client.produce("t", 0, batch([b"late"], START_MS), acks=1)
        await until(lambda: 3 not in partition(tale.cluster).isr)
        assert answered(await tale.fetch(1, 0, rack="rack-3")) == (0, -1, RECORDS + 1)
        tale.heal(3, 1)
        await until(lambda: 3 in partition(tale.cluster).isr)
        assert answered(await tale.fetch(1, 0, rack="rack-3"))[1] == 3

    story(tell)


def test_a_high_watermark_takes_no_fetch_of_its_own() -> None:
    async def tell(tale: Tale) -> None:
        loop = asyncio.get_running_loop()
        served = tale.cluster.machines[1].broker.metrics.requests.durations[FETCH].counts
        before, begun = sum(served), loop.time()
        for _ in range(20):
            await tale.client.produce("t", 0, batch([b"value"], START_MS), acks=-1)
        assert loop.time() - begun < 0.25, "no fetch came to the end of its wait"
        assert sum(served) - before <= 42, "each append takes one fetch of each follower"
        await tale.until_known()
        assert loop.time() - begun < 1, "the end of a wait brings it"

    story(tell)
