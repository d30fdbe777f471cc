"""DescribeQuorum answers from the metadata log's quorum, not from the broker's own settings."""

from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw
from tests.sim.world import World

from stratalog.errors import ErrorCode
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
    raw = await Raw.connect(machine.world.network)
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
