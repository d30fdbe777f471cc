"""A quorum of three nodes, in virtual time: elections, replication, and the log after faults.

Method: three controllers on three machines. The active one writes records; every node must have them in its image, and
no acknowledged one may be lost.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.sim.cluster import Cluster, host_of
from tests.sim.loop import run
from tests.sim.raw import Raw
from tests.sim.world import World

from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode, Rejected, UserError
from stratalog.statemachine import Decision
from stratalog.wire.internal.metadata_records import ConfigRecord
from stratalog.wire.messages.vote import VoteRequest

Tell = Callable[[Cluster], Coroutine[Any, Any, None]]


def on_three(tell: Tell, seed: int = 1, **how: Any) -> None:
    async def whole() -> None:
        cluster = Cluster(World(seed), **{"roles": dict.fromkeys((1, 2, 3), "controller"), **how})
        async with asyncio.timeout(3600):
            await cluster.start()
            await tell(cluster)
            await cluster.stop()
        assert [m.broken_tasks for m in cluster.machines.values()] == [[]] * len(cluster.machines)
        assert [m.reasons_to_stop for m in cluster.machines.values()] == [[]] * len(
            cluster.machines
        )

    run(whole())


async def write(cluster: Cluster, name: str, on: int | None = None) -> None:
    """Have the active controller, or that of node `on`, write a record; raises Rejected where it leads no more."""
    node_id = on or cluster.active()
    assert node_id is not None
    active = cluster.quorum(node_id).active
    assert active is not None
    record = ConfigRecord(resource_type=4, resource_name="", name=name, value="1")
    await cluster.machines[node_id].process.run(
        active.submit(lambda _controller: Decision([record], None))
    )


def written(cluster: Cluster, node_id: int) -> set[str]:
    settings = set(cluster.quorum(node_id).image.image.configs.get((4, ""), {}))
    return settings - {"min.insync.replicas"}  # every new cluster has that one


@pytest.mark.parametrize("seed", range(3))
def test_three_elect_one_leader_and_share_one_image(seed: int) -> None:
    async def tell(cluster: Cluster) -> None:
        leader = await cluster.until_active()
        await write(cluster, "t")
        await cluster.until_equal()
        for node_id, quorum in cluster.quorums().items():
            assert quorum.leader_id == leader
            assert (quorum.active is not None) == (node_id == leader)
            assert quorum.leader_address() == (host_of(leader), 9093)
            assert written(cluster, node_id) == {"t"}

    on_three(tell, seed)


@pytest.mark.parametrize("seed", range(3))
def test_the_leader_dies_and_another_one_goes_on(seed: int) -> None:
    async def tell(cluster: Cluster) -> None:
        leader = await cluster.until_active()
        await write(cluster, "before")
        await cluster.machines[leader].kill()
        heir = await cluster.until_active(but=leader)
        assert "before" in written(cluster, heir)
        await write(cluster, "after")
        await cluster.machines[leader].start()
        await cluster.until_equal()
        assert written(cluster, leader) == {"before", "after"}

    on_three(tell, seed)


@pytest.mark.parametrize("seed", range(3))
def test_a_leader_without_a_majority_commits_nothing_and_resigns(seed: int) -> None:
    async def tell(cluster: Cluster) -> None:
        leader = await cluster.until_active()
        await write(cluster, "before")
        cut(cluster, leader)
        lost = asyncio.create_task(write(cluster, "lost", on=leader))
        heir = await cluster.until_active(but=leader)
        await write(cluster, "after", on=heir)
        with pytest.raises(Rejected) as refused:
            await lost
        assert refused.value.code is ErrorCode.not_controller
        assert written(cluster, leader) == {"before"}
        cut(cluster, leader, heal=True)
        await cluster.until_equal()
        assert written(cluster, leader) == {"before", "after"}

    on_three(tell, seed)


def cut(cluster: Cluster, node_id: int, *, heal: bool = False) -> None:
    """Separate a node from the others, in both directions; or end that."""
    network = cluster.world.network
    for other in cluster.machines:
        if other != node_id:
            for ends in ((host_of(node_id), host_of(other)), (host_of(other), host_of(node_id))):
                (network.heal if heal else network.cut)(*ends)


@pytest.mark.parametrize("seed", range(3))
def test_a_paused_leader_wakes_up_as_a_follower(seed: int) -> None:
    async def tell(cluster: Cluster) -> None:
        leader = await cluster.until_active()
        await write(cluster, "before")
        cluster.machines[leader].pause()
        # The process that is paused still believes that it leads.
        await cluster.until(
            lambda: cluster.active() not in (None, leader), "another leader", within_s=30
        )
        await write(cluster, "after")
        cluster.machines[leader].resume()
        await cluster.until_equal()
        assert cluster.quorum(leader).active is None
        assert written(cluster, leader) == {"before", "after"}

    on_three(tell, seed)


@pytest.mark.parametrize("seed", range(3))
def test_what_was_acknowledged_outlives_a_power_cut_of_all(seed: int) -> None:
    async def tell(cluster: Cluster) -> None:
        await cluster.until_active()
        for number in range(3):
            await write(cluster, f"setting-{number}")
        for machine in cluster.machines.values():
            await machine.lose_power()
        await cluster.start()
        await cluster.until_active()
        await cluster.until_equal()
        assert written(cluster, 1) == {"setting-0", "setting-1", "setting-2"}

    on_three(tell, seed)


@pytest.mark.parametrize("seed", range(3))
def test_a_node_that_lags_loads_a_snapshot(seed: int) -> None:
    async def tell(cluster: Cluster) -> None:
        leader = await cluster.until_active()
        late = next(one for one in cluster.machines if one != leader)
        await write(cluster, "first")
        await cluster.machines[late].kill()
        for number in range(40):
            await write(cluster, f"setting-{number}")
        quorum = cluster.quorum(leader)
        await cluster.until(lambda: quorum.log.snapshot is not None, "a snapshot")
        assert quorum.log.start_offset > 5
        await cluster.machines[late].start()
        await cluster.until_equal()
        assert len(written(cluster, late)) == 41
        assert cluster.quorum(late).log.start_offset > 5
        await cluster.machines[late].lose_power()
        await cluster.machines[late].start()
        await cluster.until_equal()

    on_three(tell, seed, settings={"metadata.log.max.record.bytes.between.snapshots": "2000"})


def test_a_snapshot_ends_where_a_batch_ends() -> None:
    """Decisions of one turn are one batch. A node that loads the snapshot fetches whole batches from its end on."""

    async def tell(cluster: Cluster) -> None:
        leader = await cluster.until_active()
        late = next(one for one in cluster.machines if one != leader)
        await cluster.machines[late].kill()
        quorum = cluster.quorum(leader)
        number = 0
        while quorum.log.snapshot is None or quorum.log.snapshot.end_offset < 20:
            names = [f"setting-{number}-{one}" for one in range(5)]
            await asyncio.gather(*(write(cluster, name) for name in names))
            number += 1
            assert number < 200, "no snapshot"
        await cluster.machines[late].start()
        await cluster.until_equal()
        assert len(written(cluster, late)) == 5 * number

    on_three(tell, settings={"metadata.log.max.record.bytes.between.snapshots": "2000"})


def test_a_clean_stop_of_the_leader_names_its_heir_at_once() -> None:
    async def tell(cluster: Cluster) -> None:
        leader = await cluster.until_active()
        loop = asyncio.get_running_loop()
        began = loop.time()
        await cluster.machines[leader].stop()
        await cluster.until_active(but=leader)
        assert loop.time() - began < 2, "no fetch timeout passed"
        await write(cluster, "after")

    on_three(tell)


def test_a_quorum_of_other_members_of_the_cluster_is_refused() -> None:
    """Requests of another cluster's nodes change nothing."""

    async def tell(cluster: Cluster) -> None:
        leader = await cluster.until_active()
        request = VoteRequest(cluster_id="another-cluster-000000", topics=[])
        raw = await Raw.connect(cluster.world.network, host_of(leader), 9093)
        answer = await raw.ask(2, request)
        assert answer.error_code == ErrorCode.inconsistent_cluster_id
        answer = await raw.ask(2, VoteRequest(cluster_id=None, topics=[]))
        assert answer.error_code == ErrorCode.invalid_request

    on_three(tell)


@pytest.mark.parametrize("role", ["broker", "broker,controller"])
def test_a_node_of_another_cluster_ends_with_one_line(
    role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most voters refuse its cluster id, so it cannot join a quorum: waiting would have no end."""

    async def tell(cluster: Cluster) -> None:
        leader = await cluster.until_active()
        epoch = cluster.quorum(leader).leader_epoch
        other = cluster.machines[4]
        other.host.disks.clear()
        monkeypatch.setattr("tests.sim.cluster.CLUSTER_ID", "another-cluster-000000")
        cluster._format(other, 4)
        with pytest.raises(UserError) as refused:
            await other.start()
        line = str(refused.value)
        assert line.startswith("controller.quorum.voters: 10.0.0.")
        assert "belong to another cluster, log.dirs to another-cluster-000000" in line
        assert "\n" not in line
        assert cluster.quorum(leader).leader_epoch == epoch

    async def story() -> None:
        cluster = Cluster(World(1), 4, roles={4: role})
        others = [cluster.machines[one].start() for one in (1, 2, 3)]
        await asyncio.gather(*others)
        await tell(cluster)
        await cluster.stop()

    run(story())


@pytest.mark.parametrize("seed", range(3))
def test_three_nodes_with_both_roles(seed: int) -> None:
    """Brokers register with the leader, and a topic's partitions lie on all three."""

    async def tell(cluster: Cluster) -> None:
        leader = await cluster.until_active()
        await cluster.until(lambda: len(active_brokers(cluster)) == 3, "three brokers")
        client = await cluster.machines[leader].connect()
        await client.create_topics([NewTopic("t", partitions=6, replication_factor=1)])
        await cluster.until_equal()
        leaders = set()
        for node_id in cluster.machines:
            topic = cluster.quorum(node_id).image.topic("t")
            assert topic is not None
            leaders = {one.leader for one in topic.partitions.values()}
        assert leaders == {1, 2, 3}
        await cluster.machines[leader].kill()
        await cluster.until_active(but=leader)
        await cluster.until(lambda: len(active_brokers(cluster)) == 2, "the dead one is fenced")
        await cluster.machines[leader].start()
        await cluster.until(lambda: len(active_brokers(cluster)) == 3, "the dead one is back")
        await cluster.until_equal()

    on_three(tell, seed, roles={})


def active_brokers(cluster: Cluster) -> set[int]:
    """Return the brokers that lead, as the node with the latest epoch sees them."""
    newest = max(cluster.quorums().values(), key=lambda one: one.leader_epoch)
    return {one.id for one in newest.image.image.brokers.values() if one.is_active}


@pytest.mark.parametrize("first", [2, 3])
def test_two_lost_disks_of_three_come_back_one_by_one(first: int) -> None:
    """As `docs/cluster.md` says: beside the survivor one empty node is a majority, and the survivor leads it."""

    async def tell(cluster: Cluster) -> None:
        await cluster.until_active()
        await write(cluster, "t")
        await cluster.until_equal()
        for node in (2, 3):
            await cluster.machines[node].kill()
            cluster.format_anew(node)
        for node in (first, 5 - first):
            await cluster.machines[node].start()
            await cluster.until(lambda: written(cluster, node) == {"t"}, f"{node} has the log")  # noqa: B023
        await cluster.until_equal()
        await write(cluster, "more")

    on_three(tell)


def test_a_broker_alone_is_an_observer() -> None:
    async def tell(cluster: Cluster) -> None:
        await cluster.until_active()
        await cluster.until(lambda: active_brokers(cluster) == {3}, "the broker registered")
        assert cluster.quorum(3).voters.ids == (1, 2)
        assert cluster.machines[3].node.broker is not None
        assert cluster.machines[1].node.broker is None

    on_three(tell, roles={1: "controller", 2: "controller", 3: "broker"})


@pytest.mark.parametrize("node", [2, 3])
def test_a_member_does_not_go_on_alone_with_a_log_of_its_own(node: int) -> None:
    async def tell(cluster: Cluster) -> None:
        await cluster.until_active()
        await cluster.until_equal()
        machine = cluster.machines[node]
        await machine.stop()
        before = machine.settings
        (disk,) = machine.host.disks.values()
        size = disk.bytes_written
        machine.settings = before | {
            "process.roles": "broker,controller",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{host_of(node)}:9092,CONTROLLER://{host_of(node)}:9093",
            "controller.quorum.voters": f"{node}@{host_of(node)}:9093",
        }
        with pytest.raises(
            UserError, match=rf"node {node} is configured to be the only voter"
        ) as refused:
            await machine.start()
        others = sorted({1, 2} - {node})
        assert f"is of a quorum with node {', '.join(map(str, others))};" in str(refused.value)
        assert disk.bytes_written == size
        machine.settings = before
        await machine.start()
        await cluster.until_equal()

    on_three(tell, roles={1: "controller", 2: "controller,broker", 3: "broker"})
