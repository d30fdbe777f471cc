"""Goal: a coordinator that has just begun to lead acts on committed records alone.

Method: real nodes in one world. The new leader has records that one replica in sync lacks: another election could lose
them. Node 1 alone is a controller, and leads the topic of the data; nodes 2 to 4 hold the coordinators' topic.
"""

import asyncio
from functools import partial

import pytest
from tests.sim.cluster import Cluster, host_of
from tests.sim.raw import Raw
from tests.sim.test_moves import until
from tests.sim.test_replication import story
from tests.sim.test_transactions import offset_of
from tests.sim.transactional import Producer, committed, eventually

from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode
from stratalog.wire.messages.heartbeat import HeartbeatRequest
from stratalog.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from stratalog.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from stratalog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from stratalog.wire.messages.sync_group import SyncGroupRequest

STATES, OFFSETS = "__transaction_state", "__consumer_offsets"
JOIN = JoinGroupRequest(
    group_id="g",
    session_timeout_ms=10_000,
    rebalance_timeout_ms=10_000,
    member_id="",
    protocol_type="consumer",
    protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
)
SYNC = SyncGroupRequest(group_id="g", generation_id=1, member_id="m", assignments=[])
LEAVE = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id="m")])
BEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


async def created(client: Client, internal: str) -> None:
    topics = [
        NewTopic("t", assignments={0: [1]}),
        NewTopic(internal, assignments={0: [2, 3, 4]}, configs={"cleanup.policy": "compact"}),
    ]
    for one in await client.create_topics(topics):
        assert one.error is ErrorCode.none, one


async def begun(cluster: Cluster) -> Producer:
    """Return a producer at the coordinator on node 2, once it serves."""
    producer = Producer(await Raw.connect(cluster.world.network, host_of(2)))
    await eventually(producer.begin, ErrorCode.none)
    return producer


async def succeeded(cluster: Cluster, topic: str, request: "asyncio.Task[ErrorCode]") -> None:
    """Let node 3 lead with records that node 4 lacks: `request` waits for their commit at node 2, which dies."""
    new = cluster.machines[3].partition(topic)
    before = new.log.log_end_offset
    await until(lambda: new.log.log_end_offset > before)
    await cluster.machines[2].kill()
    request.cancel()
    await until(lambda: new.replica.leads)
    assert new.high_watermark < new.log.log_end_offset


def cut(cluster: Cluster) -> None:
    """Let node 4, which stays in sync for 3 s, fetch nothing."""
    for other in (2, 3):
        cluster.world.network.cut(host_of(4), host_of(other))


async def restored(cluster: Cluster) -> None:
    for other in (2, 3):
        cluster.world.network.heal(host_of(4), host_of(other))
    await cluster.machines[2].restart()


def test_no_marker_is_written_before_the_decision_is_committed() -> None:
    async def tell(cluster: Cluster, client: Client) -> None:
        await created(client, STATES)
        at_coordinator = (producer := await begun(cluster)).raw
        await producer.add(0)
        data = producer.raw = await Raw.connect(cluster.world.network, host_of(1))
        assert await producer.write(0, b"x") is ErrorCode.none
        new = cluster.machines[3].partition(STATES)
        await until(lambda: new.high_watermark == new.log.log_end_offset)
        cut(cluster)
        producer.raw = at_coordinator
        await succeeded(cluster, STATES, asyncio.create_task(producer.end(commit=True)))
        looks = 0
        while new.high_watermark < new.log.log_end_offset:
            assert await committed(data) == []
            looks += 1
            await asyncio.sleep(0.05)
        assert looks > 3, "there was no time to write a marker"
        await eventually(lambda: committed(data), [b"x"])
        await restored(cluster)

    story(tell, count=4)


def test_no_offset_is_answered_before_it_is_committed() -> None:
    async def tell(cluster: Cluster, client: Client) -> None:
        await created(client, OFFSETS)
        raw = await Raw.connect(cluster.world.network, host_of(2))
        await eventually(lambda: commit(raw, 5), ErrorCode.none)
        new = cluster.machines[3].partition(OFFSETS)
        await until(lambda: new.high_watermark == new.log.log_end_offset)
        cut(cluster)
        await succeeded(cluster, OFFSETS, asyncio.create_task(commit(raw, 9)))
        other = await Raw.connect(cluster.world.network, host_of(3))
        looks = 0
        while new.high_watermark < new.log.log_end_offset:
            assert await offset_of(other) == (-2, ErrorCode.coordinator_load_in_progress)
            looks += 1
            await asyncio.sleep(0.05)
        assert looks > 3, "it was committed at once"
        await eventually(lambda: offset_of(other), (9, 0))
        await restored(cluster)

    story(tell, count=4)


def test_a_follower_forgets_transactions_whose_markers_are_committed() -> None:
    """Nothing reads there, so no fetch makes it forget them."""

    async def tell(cluster: Cluster, client: Client) -> None:
        await client.create_topics([NewTopic("t", assignments={0: [1, 2]})])
        producer = Producer(await Raw.connect(cluster.world.network, host_of(1)), raises=True)
        states = [NewTopic(STATES, assignments={0: [1]}, configs={"cleanup.policy": "compact"})]
        await client.create_topics(states)
        await eventually(producer.begin, ErrorCode.none)
        for _ in range(20):
            await eventually(lambda: producer.write(0, b"x"), ErrorCode.none)
            assert await producer.end(commit=True) is ErrorCode.none
        follower = cluster.machines[2].partition("t")
        await until(lambda: follower.high_watermark == 40)
        assert not follower.log.producers._ending

    story(tell, count=2)


@pytest.mark.parametrize("topic", ["t", OFFSETS])
def test_a_partition_below_its_minimum_holds_up_no_marker_of_another(topic: str) -> None:
    """Brokers serve a connection's requests one by one, and a coordinator has one connection to a leader."""

    async def tell(cluster: Cluster, client: Client) -> None:
        below = {"min.insync.replicas": "2"}
        await client.create_topics(
            [
                NewTopic("t", assignments={0: [2, 3], 1: [2, 1]}, configs=below),
                NewTopic(OFFSETS, assignments={0: [2, 3]}, configs=below),
                NewTopic(STATES, assignments={0: [1]}),
            ]
        )
        network = cluster.world.network
        coordinator = await Raw.connect(network, host_of(1))
        data = await Raw.connect(network, host_of(2))
        held, free = Producer(coordinator, "held"), Producer(coordinator, "free")
        for partition, one in enumerate((held, free)):
            await eventually(one.begin, ErrorCode.none)
            await one.add(partition)
            one.raw = data
            await eventually(partial(one.write, partition, b"x"), ErrorCode.none)
        if topic == OFFSETS:
            held.raw = coordinator
            await eventually(held.add_offsets, ErrorCode.none)
            held.raw = data
            await eventually(partial(held.commit_offset, 5), ErrorCode.none)
        held.raw = free.raw = coordinator
        leader = cluster.machines[2].partition(topic)
        await cluster.machines[3].kill()
        await until(lambda: leader.replica.is_below_min_isr)
        assert await held.end(commit=True) is ErrorCode.none
        await asyncio.sleep(1)
        assert await free.end(commit=True) is ErrorCode.none
        async with asyncio.timeout(5):
            await eventually(lambda: committed(data, 1), [b"x"])
        assert leader.replica.is_below_min_isr
        assert await committed(data, 0) == []
        await cluster.machines[3].restart()
        await eventually(lambda: committed(data, 0), [b"x"])
        if topic == OFFSETS:
            await eventually(lambda: offset_of(data), (5, 0))

    story(tell, offsets__topic__replication__factor="2")


def test_a_coordinator_below_its_minimum_refuses_changes_at_once() -> None:
    """A request that waited would hold up heartbeats, and other brokers' questions, on its connection."""

    async def tell(cluster: Cluster, client: Client) -> None:
        below = {"min.insync.replicas": "2"}
        await client.create_topics(
            [
                NewTopic("t", assignments={0: [1]}),
                NewTopic(OFFSETS, assignments={0: [2, 3]}, configs=below),
                NewTopic(STATES, assignments={0: [2, 3]}, configs=below),
            ]
        )
        raw = await Raw.connect(cluster.world.network, host_of(2))
        producer = Producer(raw)
        await eventually(producer.begin, ErrorCode.none)
        assert await producer.add(0) is ErrorCode.none
        await eventually(producer.add_offsets, ErrorCode.none)
        await eventually(lambda: commit(raw, 5), ErrorCode.none)
        leading = [cluster.machines[2].partition(topic) for topic in (OFFSETS, STATES)]
        await cluster.machines[3].kill()
        await until(lambda: all(one.replica.is_below_min_isr for one in leading))
        unavailable = ErrorCode.coordinator_not_available
        async with asyncio.timeout(5):
            assert await commit(raw, 6) is unavailable
            assert await producer.commit_offset(7) is unavailable
            assert await producer.add(0) is unavailable
            assert await producer.end(commit=True) is unavailable
            assert await Producer(raw, "other").begin() is unavailable
            assert (await raw.ask(5, JOIN)).error_code == unavailable
            assert (await raw.ask(3, SYNC)).error_code == unavailable
            assert (await raw.ask(3, LEAVE)).error_code == unavailable
            assert (await raw.ask(3, BEAT)).error_code == ErrorCode.unknown_member_id
            assert await offset_of(raw) == (5, 0)
        await cluster.machines[3].restart()
        await eventually(lambda: commit(raw, 6), ErrorCode.none)
        await eventually(lambda: producer.end(commit=True), ErrorCode.none)
        assert (await raw.ask(5, JOIN)).error_code == ErrorCode.member_id_required

    story(
        tell,
        offsets__topic__replication__factor="2",
        transaction__state__log__replication__factor="2",
    )


def test_a_commit_that_takes_too_long_is_refused_and_goes_on() -> None:
    """Apache Kafka answers COORDINATOR_NOT_AVAILABLE, too, after `offsets.commit.timeout.ms`."""

    async def tell(cluster: Cluster, client: Client) -> None:
        await created(client, OFFSETS)
        raw = await Raw.connect(cluster.world.network, host_of(2))
        await eventually(lambda: commit(raw, 5), ErrorCode.none)
        hosted = cluster.machines[2].partition(OFFSETS)
        await until(lambda: hosted.high_watermark == hosted.log.log_end_offset)
        cut(cluster)
        loop = asyncio.get_running_loop()
        began = loop.time()
        unavailable = ErrorCode.coordinator_not_available
        assert await commit(raw, 9) is unavailable
        assert loop.time() - began == pytest.approx(1, abs=0.1)
        assert (await raw.ask(5, JOIN)).error_code == unavailable
        assert hosted.high_watermark < hosted.log.log_end_offset
        await eventually(lambda: offset_of(raw), (9, 0))
        assert await commit(raw, 10) is ErrorCode.none
        for other in (2, 3):
            cluster.world.network.heal(host_of(4), host_of(other))

    story(tell, count=4, offsets__commit__timeout__ms="1000")


def test_a_decision_about_a_transaction_that_takes_too_long_is_refused_and_goes_on() -> None:
    async def tell(cluster: Cluster, client: Client) -> None:
        await created(client, STATES)
        producer = await begun(cluster)
        await producer.add(0)
        at_coordinator, producer.raw = (
            producer.raw,
            await Raw.connect(cluster.world.network, host_of(1)),
        )
        data = producer.raw
        assert await producer.write(0, b"x") is ErrorCode.none
        producer.raw = at_coordinator
        hosted = cluster.machines[2].partition(STATES)
        await until(lambda: hosted.high_watermark == hosted.log.log_end_offset)
        cut(cluster)
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await producer.end(commit=True) is ErrorCode.coordinator_not_available
        assert loop.time() - began == pytest.approx(1, abs=0.1)
        assert await committed(data) == []
        await eventually(lambda: committed(data), [b"x"])
        await eventually(lambda: producer.end(commit=True), ErrorCode.none)
        for other in (2, 3):
            cluster.world.network.heal(host_of(4), host_of(other))

    story(tell, count=4, request__timeout__ms="1000")


async def commit(raw: Raw, offset: int) -> ErrorCode:
    part = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=None
    )
    topics = [OffsetCommitRequestTopic(name="t", partitions=[part])]
    answer = await raw.ask(8, OffsetCommitRequest(group_id="g", member_id="", topics=topics))
    return ErrorCode(answer.topics[0].partitions[0].error_code)
