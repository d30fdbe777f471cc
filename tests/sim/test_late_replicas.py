"""A broker that learns late of a replica of its own, or has lost its log, serves it, but in no epoch of the past.

Method: real nodes in one world; the broker is cut off from the controller meanwhile. Where only the order of a start
matters, its partitions alone.
"""

import asyncio
from typing import Any
from uuid import UUID

from msgspec.structs import replace
from tests.sim.cluster import Cluster, host_of
from tests.sim.loop import run
from tests.sim.machine import QUICK
from tests.sim.records import batch
from tests.sim.test_moves import until
from tests.sim.test_replication import create, partition, story
from tests.sim.world import START_MS, World

from stratalog.broker.partitions.hosting import Hosting
from stratalog.broker.storage.directory import LogDirectory
from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.config import BrokerConfig
from stratalog.metadata.delta import Delta
from stratalog.metadata.image import EMPTY, NO_LEADER, Image
from stratalog.replication.partition import NO_EPOCH
from stratalog.wire.internal.metadata_records import (
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
)


def test_a_broker_leads_a_replica_that_it_learned_of_while_no_broker_led() -> None:
    async def tell(cluster: Cluster, client: Client) -> None:
        network = cluster.world.network
        for pair in ((host_of(1), host_of(3)), (host_of(3), host_of(1))):
            network.cut(*pair)
        await create(client, [2, 3], min_insync_replicas="2")
        await until(lambda: not cluster.machines[1].broker.metadata.image.brokers[3].is_active)
        await cluster.machines[2].kill()
        await until(lambda: partition(cluster).leader == NO_LEADER)
        assert 3 in partition(cluster).eligible_leader_replicas
        # So that node 3 needs a snapshot, which has nothing of the time before.
        for number in range(20):
            await client.create_topics([NewTopic(f"other-{number}", assignments={0: [1]})])
        for pair in ((host_of(1), host_of(3)), (host_of(3), host_of(1))):
            network.heal(*pair)
        await until(lambda: partition(cluster).leader == 3)
        await asyncio.sleep(1)
        assert cluster.machines[3].partition("t").replica.leads
        await cluster.machines[2].restart()
        await until(lambda: len(partition(cluster).isr) == 2)
        await client.produce("t", 0, batch([b"x"], START_MS), acks=-1)

    story(
        tell,
        metadata__log__max__record__bytes__between__snapshots="500",
        metadata__max__retention__bytes="500",
    )


def test_a_replica_that_a_start_creates_does_not_lead_its_earlier_epoch() -> None:
    """The directory is gone: an earlier life of the broker may have led in the epoch of the metadata."""

    async def tell() -> None:
        world = World(1)
        directory = LogDirectory("/data", world.disk("/data"), world.outside.workers)
        config = BrokerConfig.load(QUICK)[0]
        hosting = Hosting(config, 1, [directory], world.clock, world.outside.entropy)
        topic_id = UUID(int=1000)
        image = after(
            EMPTY,
            TopicRecord(name="t", topic_id=topic_id),
            PartitionRecord(
                partition_id=0,
                topic_id=topic_id,
                replicas=(1, 2),
                isr=(1, 2),
                removing_replicas=(),
                adding_replicas=(),
                leader=1,
                leader_epoch=5,
                partition_epoch=5,
            ),
        ).image()
        await hosting.start(image, ())
        change = PartitionChangeRecord(partition_id=0, topic_id=topic_id)
        for leads, changed in (
            (False, replace(change, isr=(1,))),
            (True, replace(change, leader=1)),
        ):
            delta = after(image, changed)
            image = delta.image()
            hosting.apply(image, delta)
            assert hosting.get("t", 0).replica.leads == leads
        assert hosting.get("t", 0).replica.leader_epoch == 6
        await hosting.close(NO_EPOCH)
        await directory.close()

    run(tell())


def after(image: Image, *records: Any) -> Delta:
    """Return what the records change."""
    delta = Delta(image)
    for offset, record in enumerate(records, image.offset + 1):
        delta.replay(offset, record)
    return delta
