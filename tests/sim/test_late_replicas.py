"""A broker that learns late of a replica of its own serves it.

Method: real nodes in one world; the broker is cut off from the controller meanwhile.
"""

import asyncio

from tests.sim.cluster import Cluster, host_of
from tests.sim.records import batch
from tests.sim.test_moves import until
from tests.sim.test_replication import create, partition, story
from tests.sim.world import START_MS

from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.metadata.image import NO_LEADER


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
