"""Goal: voters come and go while the cluster works, and nothing acknowledged is lost.

Method: real nodes in one world, formatted as `strata storage format` does; requests as Kafka's tools send them.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

import pytest
from tests.sim.cluster import CLUSTER_ID, CONTROLLER_PORT, Cluster, host_of
from tests.sim.loop import run
from tests.sim.raw import Raw
from tests.sim.world import World

from stratalog.broker.storage.first_voters import Begin
from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode
from stratalog.wire.messages.add_raft_voter import AddRaftVoterRequest, Listener
from stratalog.wire.messages.remove_raft_voter import RemoveRaftVoterRequest

SETTINGS = {"metadata.log.max.record.bytes.between.snapshots": "2000"}
STANDALONE = {1: Begin(standalone=True)}


def story(
    tell: Callable[[Cluster], Coroutine[Any, Any, None]], seed: int = 1, **settings: str
) -> None:
    async def whole() -> None:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        cluster = Cluster(World(seed), 3, SETTINGS | named, begins=STANDALONE)
        await cluster.start()
        await cluster.until_active()
        await cluster.until_equal()
        await tell(cluster)
        for machine in cluster.machines.values():
            assert machine.broken_tasks == []
        await cluster.stop()

    run(whole())


def directory_of(cluster: Cluster, node_id: int) -> UUID:
    return cluster.quorum(node_id).log.directory.id


async def ask(cluster: Cluster, request: Any) -> ErrorCode:
    """Ask the active controller; return the error."""
    active = await cluster.until_active()
    raw = await Raw.connect(cluster.world.network, host_of(active), CONTROLLER_PORT)
    answer = await raw.ask(0, request)
    raw.close()
    return ErrorCode(answer.error_code)


async def add(cluster: Cluster, node_id: int, **changed: Any) -> ErrorCode:
    listener = Listener(name="CONTROLLER", host=host_of(node_id), port=CONTROLLER_PORT)
    fields = {
        "cluster_id": CLUSTER_ID,
        "timeout_ms": 5000,
        "voter_id": node_id,
        "voter_directory_id": directory_of(cluster, node_id),
        "listeners": [listener],
        **changed,
    }
    return await ask(cluster, AddRaftVoterRequest(**fields))


async def remove(cluster: Cluster, node_id: int, directory: UUID, **changed: Any) -> ErrorCode:
    fields = {
        "cluster_id": CLUSTER_ID,
        "voter_id": node_id,
        "voter_directory_id": directory,
        **changed,
    }
    return await ask(cluster, RemoveRaftVoterRequest(**fields))


def voters(cluster: Cluster) -> set[tuple[int, ...]]:
    return {one.voters.ids for one in cluster.quorums().values()}


@pytest.mark.parametrize("seed", range(3))
def test_one_controller_becomes_three_and_any_of_them_may_die(seed: int) -> None:
    async def tell(cluster: Cluster) -> None:
        assert voters(cluster) == {(1,)}
        for node_id in (2, 3):
            assert await add(cluster, node_id) is ErrorCode.none
        await cluster.until(lambda: voters(cluster) == {(1, 2, 3)}, "three voters everywhere")
        client = await cluster.machines[2].connect()
        await client.create_topics([NewTopic("before", 1, 1)])
        await cluster.machines[1].kill()
        await cluster.until_active(but=1)
        await client.create_topics([NewTopic("after", 1, 1)])
        await cluster.machines[1].start()
        await cluster.until_equal()
        for quorum in cluster.quorums().values():
            assert {"before", "after"} <= quorum.image.image.topic_ids_by_name.keys()
        await client.close()

    story(tell, seed)


def test_a_leader_that_is_removed_hands_over_and_all_may_restart() -> None:
    async def tell(cluster: Cluster) -> None:
        for node_id in (2, 3):
            assert await add(cluster, node_id) is ErrorCode.none
        leader = await cluster.until_active()
        assert await remove(cluster, leader, directory_of(cluster, leader)) is ErrorCode.none
        others = tuple(one for one in (1, 2, 3) if one != leader)
        await cluster.until_active(but=leader)
        await cluster.until(lambda: voters(cluster) == {others}, "two voters everywhere")
        await cluster.stop()
        await cluster.start()
        await cluster.until_active(but=leader)
        await cluster.until_equal()
        assert voters(cluster) == {others}, "the log has the voters"

    story(tell)


def test_refusals_change_nothing() -> None:
    async def tell(cluster: Cluster) -> None:
        first = directory_of(cluster, 1)
        other = UUID(int=7)
        assert await remove(cluster, 1, first) is ErrorCode.voter_not_found, "the last voter"
        assert await remove(cluster, 1, other) is ErrorCode.voter_not_found
        assert await remove(cluster, 2, directory_of(cluster, 2)) is ErrorCode.voter_not_found
        wrong = await remove(cluster, 1, first, cluster_id="another")
        assert wrong is ErrorCode.inconsistent_cluster_id
        assert await add(cluster, 2, cluster_id="another") is ErrorCode.inconsistent_cluster_id
        assert await add(cluster, 1) is ErrorCode.duplicate_voter
        assert await add(cluster, 2, voter_directory_id=other) is ErrorCode.request_timed_out
        assert await add(cluster, 2, listeners=[]) is ErrorCode.invalid_request
        unused = Listener(name="CONTROLLER", host="10.0.0.9", port=1)
        assert await add(cluster, 2, listeners=[unused]) is ErrorCode.request_timed_out
        broker = Listener(name="PLAINTEXT", host=host_of(2), port=9092)
        assert await add(cluster, 2, listeners=[broker]) is ErrorCode.invalid_request
        assert voters(cluster) == {(1,)}
        assert await add(cluster, 2) is ErrorCode.none
        assert await add(cluster, 2) is ErrorCode.duplicate_voter

    story(tell)


def test_a_voter_that_lost_its_disk_is_replaced() -> None:
    async def tell(cluster: Cluster) -> None:
        for node_id in (2, 3):
            assert await add(cluster, node_id) is ErrorCode.none
        lost = directory_of(cluster, 3)
        await cluster.machines[3].kill()
        cluster.format_anew(3)
        await cluster.machines[3].start()
        assert await add(cluster, 3) is ErrorCode.duplicate_voter, "the lost directory still votes"
        assert await remove(cluster, 3, lost) is ErrorCode.none
        await asyncio.sleep(1)
        assert await add(cluster, 3) is ErrorCode.none
        await cluster.until(lambda: voters(cluster) == {(1, 2, 3)}, "three voters everywhere")

    story(tell)


def test_snapshots_name_the_voters() -> None:
    async def tell(cluster: Cluster) -> None:
        assert await add(cluster, 2) is ErrorCode.none
        client = await cluster.machines[1].connect()
        for number in range(30):
            await client.create_topics([NewTopic(f"t{number}", 1, 1)])
        await cluster.machines[3].kill()
        cluster.format_anew(3)
        await cluster.machines[3].start()
        await cluster.until_equal()
        snapshot = cluster.quorum(3).log.snapshot
        assert snapshot is not None, "node 3 began with it"
        assert snapshot.end_offset > 0
        assert voters(cluster) == {(1, 2)}
        await client.close()

    story(tell)


@pytest.mark.parametrize("seed", range(2))
def test_controllers_that_join_by_themselves_become_voters_also_with_a_new_disk(seed: int) -> None:
    async def tell(cluster: Cluster) -> None:
        await cluster.until(lambda: voters(cluster) == {(1, 2, 3)}, "three voters everywhere")
        lost = directory_of(cluster, 3)
        await cluster.machines[3].kill()
        cluster.format_anew(3)
        await cluster.machines[3].start()
        mine = directory_of(cluster, 3)
        assert mine != lost

        def is_replaced() -> bool:
            found = [one.voters.voter(3) for one in cluster.quorums().values()]
            return all(one is not None and one.directory_id == mine for one in found)

        await cluster.until(is_replaced, "the new directory votes")
        await asyncio.sleep(10)
        assert is_replaced(), "a voter asks for nothing more"

    story(tell, seed, controller_quorum_auto_join_enable="true")


def move(cluster: Cluster, node_id: int) -> int:
    """Give a node that does not run another port for controllers; return the port."""
    settings, port = cluster.machines[node_id].settings, CONTROLLER_PORT + 1000
    settings["listeners"] = settings["listeners"].replace(f":{CONTROLLER_PORT}", f":{port}")
    return port


def test_a_voter_that_moved_to_another_address_has_the_log_name_it() -> None:
    async def tell(cluster: Cluster) -> None:
        for node_id in (2, 3):
            assert await add(cluster, node_id) is ErrorCode.none
        active = await cluster.until_active()
        moved = next(one for one in (1, 2, 3) if one != active)
        await cluster.machines[moved].stop()
        port = move(cluster, moved)
        await cluster.machines[moved].start()

        def is_named() -> bool:
            found = [one.voters.voter(moved) for one in cluster.quorums().values()]
            return all(one is not None and one.endpoints[0].port == port for one in found)

        await cluster.until(is_named, "the new address on every node")
        assert voters(cluster) == {(1, 2, 3)}
        await cluster.machines[active].kill()
        await cluster.until_active(but=active)
        await cluster.machines[active].start()
        await cluster.until_equal()

    story(tell)


def test_a_leader_that_moved_changes_its_own_address() -> None:
    async def whole() -> None:
        cluster = Cluster(World(1), 1, SETTINGS, begins=STANDALONE)
        await cluster.start()
        await cluster.stop()
        port = move(cluster, 1)
        await cluster.start()

        def is_named() -> bool:
            voter = cluster.quorum(1).voters.voter(1)
            return voter is not None and voter.endpoints[0].port == port

        await cluster.until(is_named, "the new address in the log")
        await cluster.stop()

    run(whole())
