"""Goal: no group keeps offsets of a deleted topic, at whatever moment the broker died.

Method: a group commits offsets of two topics, a client deletes one, and the machine ends at once. The topic's deletion
is on disk; the deletion of its offsets may not be. The test reads the restarted broker's offsets, also after a topic of
the same name was created.
"""

import asyncio
from contextlib import nullcontext
from unittest.mock import patch

import pytest
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw
from tests.sim.transactional import Producer, eventually
from tests.sim.world import World

from stratalog.broker.coordination.groups import Groups
from stratalog.client.calls import NewTopic
from stratalog.coordinators.messages import CommitPartition, CommitTopic, OffsetCommit
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.messages.find_coordinator import FindCoordinatorRequest
from stratalog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from stratalog.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup

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


async def stable_offsets(asker: Raw) -> list[tuple[str, int]] | None:
    """Return topic and offset of all that the group has; None while it loads, or one is unstable."""
    group = OffsetFetchRequestGroup(group_id="g", topics=None)
    answer = await asker.ask(8, OffsetFetchRequest(groups=[group], require_stable=True))
    (found,) = answer.groups
    parts = [(topic.name, one) for topic in found.topics for one in topic.partitions]
    if found.error_code or any(one.error_code for _, one in parts):
        return None
    return [(name, one.committed_offset) for name, one in parts]


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("crash", ["never", "before the deletion", "after it", "instead of it"])
def test_an_offset_that_a_transaction_holds_goes_with_its_topic(
    crash: str, *, raises: bool
) -> None:
    """As in Apache Kafka: a topic that is made again under the name meets no old offset."""

    late = crash == "instead of it"

    async def story() -> None:
        machine = Machine(World(1))
        client = await machine.restart()
        await client.create_topics([NewTopic("t", 1)])
        producer = Producer(await Raw.connect(machine.world.network), raises=raises)
        await coordinated(producer.raw)
        await producer.begin()
        await eventually(producer.add_offsets, ErrorCode.none)
        await eventually(lambda: producer.commit_offset(20), ErrorCode.none)

        async def restart() -> None:
            nonlocal client
            await machine.kill()
            client = await machine.restart()
            producer.raw = await Raw.connect(machine.world.network)

        if crash == "before the deletion":
            await restart()
        with patch.object(Groups, "forget_topics", forget_nothing) if late else nullcontext():
            await client.delete_topics(["t"])
            await asyncio.sleep(1)
        if late:
            await restart()
        if crash == "after it":
            await restart()
        await eventually(lambda: producer.end(commit=True), ErrorCode.none)
        await asyncio.sleep(1)
        await eventually(lambda: stable_offsets(producer.raw), [])
        await client.create_topics([NewTopic("t", 1)])
        await restart()
        await eventually(lambda: stable_offsets(producer.raw), [])
        assert machine.broken_tasks == []
        await machine.stop()

    run(story())


async def forget_nothing(*_: object) -> None:
    """Do nothing: the crash comes first."""


def test_no_offset_is_staged_for_a_topic_that_goes_while_the_coordinator_is_asked() -> None:
    async def story() -> None:
        machine = Machine(World(1))
        client = await machine.restart()
        await client.create_topics([NewTopic("t", 1)])
        producer = Producer(await Raw.connect(machine.world.network))
        await coordinated(producer.raw)
        topic = machine.broker.metadata.image.topic_ids_by_name["t"]
        await client.delete_topics(["t"])
        await client.create_topics([NewTopic("t", 1)])
        request = OffsetCommit(GROUP, (CommitTopic("t", (CommitPartition(0, 20),), topic),))
        with pytest.raises(Rejected) as caught:
            await machine.broker.groups.commit_in_transaction(request, (7, 0))
        assert caught.value.code is ErrorCode.unknown_topic_or_partition


def test_each_refusal_of_a_deleted_partition_is_an_exception_of_its_own() -> None:
    """One object raised again and again would keep the frames of all its raises."""

    async def story() -> None:
        machine = Machine(World(1))
        await machine.start()
        client = await machine.connect()
        await client.create_topics([NewTopic("gone", 1)])
        gone = machine.partition("gone")
        await client.delete_topics(["gone"])
        refusals = []
        for _ in range(3):
            with pytest.raises(Rejected, match="gone-0 was deleted") as refusal:
                gone.check_hosted()
            refusals.append(refusal)
        assert len({id(one.value) for one in refusals}) == 3
        assert len({len(one.traceback) for one in refusals}) == 1
        await client.close()
        await machine.stop()

    run(story())
