"""Goal: no group keeps offsets of a deleted topic, at whatever moment the broker died.

Method: a group commits offsets of two topics, a client deletes one, and the machine ends at once. The topic's deletion
is on disk; the deletion of its offsets may not be. The test reads the restarted broker's offsets, also after a topic of
the same name was created.
"""

import pytest
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw
from tests.sim.world import World

from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode
from stratalog.wire.messages.find_coordinator import FindCoordinatorRequest
from stratalog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from stratalog.wire.messages.offset_fetch import OffsetFetchRequest

GROUP = "readers"


async def commit(asker: Raw, topic: str) -> None:
    partition = OffsetCommitRequestPartition(
        partition_index=0,
        committed_offset=5,
        committed_leader_epoch=-1,
        committed_metadata="",
    )
    body = OffsetCommitRequest(
        group_id=GROUP,
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=[OffsetCommitRequestTopic(name=topic, partitions=[partition])],
    )
    answer = await asker.ask(8, body)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.none


async def coordinated(asker: Raw) -> None:
    """Wait until the group has a coordinator."""
    body = FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP])
    answer = await asker.ask(4, body)
    assert answer.coordinators[0].error_code == ErrorCode.none


async def committed(asker: Raw) -> set[str]:
    """Return the topics that the group has offsets of; repeat the request until the group is loaded."""
    body = OffsetFetchRequest(group_id=GROUP, topics=None, require_stable=False)
    for _ in range(1000):
        answer = await asker.ask(7, body)
        if answer.error_code == ErrorCode.none:
            return {topic.name for topic in answer.topics}
        assert answer.error_code == ErrorCode.coordinator_load_in_progress
    raise AssertionError("never loaded")


@pytest.mark.parametrize("again", [False, True], ids=["gone", "made again"])
@pytest.mark.parametrize("seed", range(6))
def test_offsets_of_a_deleted_topic_end_after_a_crash(seed: int, *, again: bool) -> None:
    async def story() -> None:
        machine = Machine(World(seed))
        await machine.start()
        client = await machine.connect()
        await client.create_topics([NewTopic("kept", 1), NewTopic("gone", 1)])
        asker = await Raw.connect(machine.world.network)
        await coordinated(asker)
        for topic in ("kept", "gone"):
            await commit(asker, topic)
        assert await committed(asker) == {"kept", "gone"}
        await client.delete_topics(["gone"])
        await (machine.kill if seed % 2 else machine.lose_power)()
        client = await machine.restart()
        if again:
            await client.create_topics([NewTopic("gone", 1)])
        asker = await Raw.connect(machine.world.network)
        found = await committed(asker)
        assert found == {"kept"} or (found == set() and seed % 2 == 0), (
            "power cut: both may be lost"
        )
        # The log agrees with the answer: a replay finds no offsets either.
        await machine.stop()
        await machine.start()
        asker = await Raw.connect(machine.world.network)
        assert await committed(asker) == found
        assert machine.broken_tasks == []
        await machine.stop()

    run(story())
