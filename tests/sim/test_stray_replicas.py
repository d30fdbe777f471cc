"""Replicas that moved to another broker while theirs was down go once it has caught up with the metadata."""

import pytest
from tests.sim.cluster import Cluster
from tests.sim.loop import run
from tests.sim.records import batch
from tests.sim.world import START_MS, World

from stratalog.client.calls import NewTopic
from stratalog.client.cluster_admin import alter_reassignments
from stratalog.errors import ErrorCode
from stratalog.wire.ids import TopicPartition

NAME = TopicPartition("t", 0)


def names(cluster: Cluster, node_id: int) -> list[str]:
    """Return the directories of the topic's partitions on a node, deleted ones too."""
    return [
        one.name
        for one in cluster.machines[node_id].host.disk("/data").list("")
        if one.name.startswith("t-")
    ]


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_a_replica_that_moved_while_its_broker_was_down_is_deleted(ending: str) -> None:
    async def story() -> None:
        cluster = Cluster(World(3), 4, {"broker.session.timeout.ms": "3000"})
        await cluster.start()
        client = await cluster.machines[1].connect()
        (created,) = await client.create_topics([NewTopic("t", 1, 3)])
        assert created.error is ErrorCode.none, created
        await cluster.until_equal()
        produced = await client.produce("t", 0, batch([b"x"], START_MS), acks=-1)
        assert produced.base_offset == 0
        replicas = replicas_of(cluster)
        away = replicas[-1]
        (new,) = set(cluster.machines) - set(replicas)
        await getattr(cluster.machines[away], ending)()
        client = await cluster.machines[replicas[0]].connect()
        call = alter_reassignments({NAME: (*replicas[:-1], new)})
        (begun,) = await client.on_controller(call)
        assert begun.error is ErrorCode.none, begun
        await cluster.until(lambda: away not in replicas_of(cluster), "the end of the move")
        assert names(cluster, away) == ["t-0"]
        await cluster.machines[away].start()
        await cluster.until(lambda: not names(cluster, away), "a deleted replica", 120)
        assert NAME not in [one.name for one in cluster.machines[away].broker.hosting.all()]
        await cluster.stop()

    run(story())


def replicas_of(cluster: Cluster) -> tuple[int, ...]:
    image = next(iter(cluster.quorums().values())).image
    topic = image.topic("t")
    assert topic is not None
    return topic.partitions[0].replicas
