"""The state of a cluster of three brokers in the bucket: the offsets of every coordinator, and every partition's end.

Method: groups on all three coordinators commit offsets. Stories read the newest state past the brokers, also after a
coordinator died.
"""

import asyncio

from tests.sim.cluster import CLUSTER_ID, Cluster, host_of
from tests.sim.loop import run
from tests.sim.world import World

from stratalog.client.admin import commit_offsets, find_coordinator
from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode, Rejected, Unavailable
from stratalog.tier.bucket.cluster_state import ClusterState, newest_state
from stratalog.wire.ids import TopicPartition

URL = "memory://bucket"
SETTINGS = {"tier.url": URL, "offsets.topic.num.partitions": "6"}
GROUPS = [f"group-{number}" for number in range(12)]
INTERVAL_S = 30


def uploaded(cluster: Cluster) -> ClusterState:
    state, damaged = newest_state(cluster.world.store(URL), CLUSTER_ID, 0)
    assert state is not None
    assert not damaged
    return state


def offsets(cluster: Cluster) -> dict[str, int]:
    return {group: kept[0].offset for group, kept in uploaded(cluster).groups.items()}


async def commit(cluster: Cluster, group: str, offset: int) -> None:
    """Commit an offset, through whichever broker coordinates the group by now."""
    up = ",".join(f"{host_of(one)}:9092" for one, m in cluster.machines.items() if m.is_up)
    for _ in range(200):
        try:
            client = await Client.connect(cluster.world.network, up)
            await client.on_any(find_coordinator(group))
            call = commit_offsets(group, {TopicPartition("t", 0): offset})
            await client.on_coordinator(group, call)
        except (Rejected, Unavailable):
            await asyncio.sleep(0.5)
        else:
            await client.close()
            return
    raise AssertionError(f"{group} has no coordinator")


def test_the_bucket_has_the_offsets_of_every_coordinator_also_after_one_died() -> None:
    async def story() -> None:
        cluster = Cluster(World(1), 3, SETTINGS)
        await cluster.start()
        client = await Client.connect(cluster.world.network, f"{host_of(1)}:9092")
        (created,) = await client.create_topics([NewTopic("t", 6, 3)])
        assert created.error is ErrorCode.none
        await client.close()
        for number, group in enumerate(GROUPS):
            await commit(cluster, group, number)
        await asyncio.sleep(3 * INTERVAL_S)
        assert offsets(cluster) == {group: number for number, group in enumerate(GROUPS)}
        coordinators = {
            one for one, m in cluster.machines.items() if any(m.broker.groups.committed())
        }
        assert coordinators == {1, 2, 3}, "one upload alone would do"
        ends = {one.end_offset for topic in uploaded(cluster).topics for one in topic.partitions}
        assert min(ends) >= 0, "each partition's leader uploads its end"
        await cluster.machines[2].kill()
        await asyncio.sleep(30)
        for number, group in enumerate(GROUPS):
            await commit(cluster, group, 100 + number)
        await asyncio.sleep(3 * INTERVAL_S)
        assert offsets(cluster) == {group: 100 + number for number, group in enumerate(GROUPS)}
        await cluster.machines[2].start()
        await asyncio.sleep(3 * INTERVAL_S)
        assert offsets(cluster) == {group: 100 + number for number, group in enumerate(GROUPS)}
        await cluster.stop()
        assert [one.broken_tasks for one in cluster.machines.values()] == [[], [], []]

    run(story())
