"""DescribeQuorum answers from the metadata log's quorum, not from the broker's own settings."""

import asyncio

import pytest
from tests.sim.cluster import CONTROLLER_PORT, Cluster, host_of
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw
from tests.sim.world import World

from stratalog.client.calls import NewTopic
from stratalog.client.cluster_admin import describe_quorum
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
)

TOPIC = DescribeQuorumRequestTopicData(
    topic_name="__cluster_metadata",
    partitions=[DescribeQuorumRequestPartitionData(partition_index=0)],
)


async def describe(machine: Machine) -> DescribeQuorumResponse:
    raw = await Raw.connect(machine.world.network, machine.host.name)
    answer: DescribeQuorumResponse = await raw.ask(2, DescribeQuorumRequest(topics=[TOPIC]))
    return answer


def test_the_voter_is_the_directory_of_the_metadata_log() -> None:
    async def story() -> None:
        settings = {"log.dirs": "/data,/more", "metadata.log.dir": "/more"}
        machine = Machine(World(1), settings)
        for epoch in (1, 2):
            await machine.restart()
            answer = await describe(machine)
            (quorum,) = answer.topics[0].partitions
            assert quorum.error_code == ErrorCode.none
            assert (quorum.leader_id, quorum.leader_epoch) == (1, epoch)
            assert quorum.high_watermark == machine.broker.metadata.image.offset + 1
            (voter,) = quorum.current_voters
            second = next(one for one in machine.broker.hosting.directories if one.path == "/more")
            assert (voter.replica_id, voter.replica_directory_id) == (1, second.id)
            assert voter.log_end_offset == quorum.high_watermark
            (node,) = answer.nodes
            assert (node.node_id, len(node.listeners)) == (1, 1)
            await machine.stop()

    run(story())


def test_voters_of_the_configuration_have_their_controllers_addresses() -> None:
    """Not those for clients, which the broker in the same process registers."""

    async def story() -> None:
        cluster = Cluster(World(1))
        await cluster.start()
        await cluster.until(
            lambda: len(cluster.quorum(1).image.image.controllers) == 3, "three controllers"
        )
        answer = await describe(cluster.machines[1])
        assert {
            (node.node_id, one.name, one.host, one.port)
            for node in answer.nodes
            for one in node.listeners
        } == {(one, "CONTROLLER", host_of(one), CONTROLLER_PORT) for one in (1, 2, 3)}
        await cluster.stop()

    run(story())


def test_a_killed_voter_lags_and_every_broker_forwards_the_question() -> None:
    async def story() -> None:
        roles = {1: "controller", 2: "controller", 3: "controller", 4: "broker"}
        cluster = Cluster(World(1), 4, roles=roles)
        await cluster.start()
        leader = await cluster.until_active()
        killed, other = (one for one in (1, 2, 3) if one != leader)
        client = await cluster.machines[4].connect()
        await cluster.until_equal()
        await asyncio.sleep(1)
        before = await client.on_any(describe_quorum())
        assert before.leader_id == leader
        assert [(one.node_id, one.is_voter) for one in before.replicas] == [
            (1, True),
            (2, True),
            (3, True),
            (4, False),
        ]
        assert {one.log_end_offset for one in before.replicas} == {before.high_watermark}
        now_ms = cluster.machines[leader].host.outside.clock.now_ms()
        assert all(0 <= now_ms - one.last_fetch_ms < 2000 for one in before.replicas)
        assert all(0 <= now_ms - one.last_caught_up_ms < 2000 for one in before.replicas)

        await cluster.machines[killed].kill()
        await client.create_topics([NewTopic("t", 3)])
        await asyncio.sleep(10)
        after = await client.on_any(describe_quorum())
        found = {one.node_id: one for one in after.replicas}
        assert found[killed].log_end_offset < after.high_watermark
        assert found[other].log_end_offset == found[leader].log_end_offset == after.high_watermark
        late_ms = found[leader].last_caught_up_ms - found[killed].last_caught_up_ms
        assert 9_000 < late_ms < 13_000
        assert found[killed].last_fetch_ms < found[other].last_fetch_ms
        await cluster.stop()

    run(story())


def test_without_a_quorum_the_question_ends_with_one_error() -> None:
    """A broker waits for the controller once: the client does not repeat the whole wait."""

    async def story() -> None:
        cluster = Cluster(World(1))
        await cluster.start()
        await cluster.until_active()
        client = await cluster.machines[1].connect()
        for node_id in (2, 3):
            await cluster.machines[node_id].kill()
        await asyncio.sleep(15)  # node 1 leads no more
        began = asyncio.get_running_loop().time()
        with pytest.raises(Rejected, match="a majority of the voters must run") as refused:
            await client.on_any(describe_quorum())
        assert refused.value.code is ErrorCode.request_timed_out
        assert (
            asyncio.get_running_loop().time() - began < 150
        )  # killed hosts answer nothing for 30 s
        await cluster.machines[1].kill()

    run(story())


def test_a_controller_that_does_not_lead_refuses() -> None:
    async def story() -> None:
        cluster = Cluster(World(1), roles=dict.fromkeys((1, 2, 3), "controller"))
        await cluster.start()
        leader = await cluster.until_active()
        for node_id in cluster.machines:
            raw = await Raw.connect(cluster.world.network, host_of(node_id), CONTROLLER_PORT)
            answer: DescribeQuorumResponse = await raw.ask(2, DescribeQuorumRequest(topics=[TOPIC]))
            (quorum,) = answer.topics[0].partitions
            refused = ErrorCode.not_leader_or_follower
            assert quorum.error_code == (ErrorCode.none if node_id == leader else refused)
            assert len(quorum.current_voters) == (3 if node_id == leader else 0)
        await cluster.stop()

    run(story())
