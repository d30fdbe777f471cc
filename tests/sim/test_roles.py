"""Goal: a partition that the broker stops leading answers its pending requests, archives nothing and coordinates
nothing.

Method: the real node; metadata takes a partition away in each way that there is. A second replica that never fetches
keeps appends pending; the records that name it are written to the metadata log as another controller would.
"""

import asyncio
import errno
from collections.abc import Callable, Coroutine
from itertools import chain
from typing import Any
from uuid import UUID

import pytest
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw, fetch_body
from tests.sim.records import batch, in_bucket
from tests.sim.test_log_directories import failing
from tests.sim.test_moves import until
from tests.sim.test_tier_service import TIERED
from tests.sim.world import START_MS, World

from stratalog.broker.coordination.groups import OFFSETS_TOPIC, Groups
from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.coordinators.messages import (
    CommitPartition,
    CommitTopic,
    JoinGroup,
    JoinGroupAnswer,
    OffsetCommit,
    OffsetFetch,
    Protocol,
)
from stratalog.errors import ErrorCode, Rejected
from stratalog.replication.roles import Transition
from stratalog.statemachine import Decision
from stratalog.wire.batch import parse_header
from stratalog.wire.internal.metadata_records import (
    BrokerEndpoint,
    FenceBrokerRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
)
from stratalog.wire.messages.describe_cluster import DescribeClusterRequest
from stratalog.wire.messages.find_coordinator import FindCoordinatorRequest
from stratalog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from stratalog.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

OTHER = 2
ELSEWHERE = UUID(int=1000)

Take = Callable[[Machine, Client, str], Coroutine[Any, Any, None]]


async def change(machine: Machine, topic: str, index: int = 0, **fields: Any) -> None:
    """Write a change of a partition to the metadata log."""
    found = machine.broker.metadata.topic(topic)
    assert found is not None
    await write(machine, PartitionChangeRecord(partition_id=index, topic_id=found.id, **fields))


async def write(machine: Machine, record: Any) -> None:
    await machine.broker.local_controller._active.submit(
        lambda _controller: Decision([record], None)
    )


async def delete(_machine: Machine, client: Client, topic: str) -> None:
    (result,) = await client.delete_topics([topic])
    assert result.error == ErrorCode.none


async def lead_elsewhere(machine: Machine, _client: Client, topic: str) -> None:
    await change(machine, topic, leader=OTHER)


async def have_no_leader(machine: Machine, _client: Client, topic: str) -> None:
    await change(machine, topic, leader=-1)


async def reassign(machine: Machine, _client: Client, topic: str) -> None:
    await change(
        machine, topic, replicas=(OTHER,), isr=(OTHER,), leader=OTHER, directories=(ELSEWHERE,)
    )


async def fail_directory(machine: Machine, client: Client, topic: str) -> None:
    directory = machine.partition(topic).directory
    machine.world.disk(directory.path).before = failing(errno.EIO)
    directory.fail(OSError(errno.EIO, "the drive says no"))


WAYS: list[tuple[Take, ErrorCode]] = [
    (delete, ErrorCode.unknown_topic_or_partition),
    (lead_elsewhere, ErrorCode.not_leader_or_follower),
    (have_no_leader, ErrorCode.not_leader_or_follower),
    (reassign, ErrorCode.not_leader_or_follower),
    (fail_directory, ErrorCode.kafka_storage_error),
]
each_way = pytest.mark.parametrize(("take", "code"), WAYS, ids=[way.__name__ for way, _ in WAYS])


async def start(world: World, **settings: str) -> tuple[Machine, Client]:
    """A machine with a topic `t`, not in the metadata log's directory; its second replica never fetches."""
    machine = Machine(world, {"log.dirs": "/data,/more", **settings})
    client = await machine.restart()
    for name in ("first", "t"):
        (result,) = await client.create_topics([NewTopic(name, 1)])
        assert result.error == ErrorCode.none
    directory = machine.partition("t").directory
    assert directory.path == "/more"
    both = (1, OTHER)
    await change(machine, "t", replicas=both, isr=both, directories=(directory.id, ELSEWHERE))
    return machine, client


def produce_body() -> ProduceRequest:
    data = PartitionProduceData(index=0, records=memoryview(batch([b"value"], START_MS)))
    topic = TopicProduceData(name="t", partition_data=[data])
    return ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=[topic])


@each_way
def test_a_pending_append_is_answered(take: Take, code: ErrorCode) -> None:
    async def story() -> None:
        machine, client = await start(World(1))
        raw = await Raw.connect(machine.world.network)
        async with asyncio.timeout(60):
            asked = raw.ask(9, produce_body())
            await asyncio.sleep(1)
            assert not asked.done(), "the second replica must not have the batch"
            await take(machine, client, "t")
            (partition,) = (await asked).responses[0].partition_responses
            assert partition.error_code == code
            (partition,) = (await raw.ask(9, produce_body())).responses[0].partition_responses
            assert partition.error_code == code, "a later append must be answered too"
        assert machine.broken_tasks == []
        await machine.stop()

    run(story())


@each_way
def test_an_append_that_the_drive_has_not_performed_is_answered(
    take: Take, code: ErrorCode
) -> None:
    async def story() -> None:
        machine, client = await start(World(2))
        hosted = machine.partition("t")
        found: list[Any] = []
        # More than an append on the event loop, and a drive that takes a second for it.
        data = batch([b"v" * 20_000], START_MS)
        machine.take_ms(1000)
        view = memoryview(data)
        hosted.append(view, parse_header(view), START_MS, found.append)
        machine.take_ms(0)
        assert not found
        await take(machine, client, "t")
        assert [error.code for error in found] == [code]
        await asyncio.sleep(5)
        assert len(found) == 1, "the append must be answered once"
        assert machine.broken_tasks == []
        await machine.stop()

    run(story())


@each_way
def test_a_pending_fetch_is_answered(take: Take, code: ErrorCode) -> None:
    async def story() -> None:
        machine, client = await start(World(3))
        raw = await Raw.connect(machine.world.network)
        async with asyncio.timeout(60):
            # From version 11 on, a follower serves consumers too.
            asked = raw.ask(10, fetch_body([("t", 0, 0)], max_wait_ms=50_000))
            await asyncio.sleep(1)
            assert not asked.done()
            await take(machine, client, "t")
            (partition,) = (await asked).responses[0].partitions
            assert partition.error_code == code
        assert machine.broken_tasks == []
        await machine.stop()

    run(story())


@pytest.mark.parametrize("take", [way for way, _ in WAYS[1:]], ids=lambda way: way.__name__)
def test_a_partition_that_is_no_longer_led_is_not_archived(take: Take) -> None:
    async def story() -> None:
        world = World(4)
        store = world.store("memory://bucket")
        machine = Machine(world, {"log.dirs": "/data,/more", "tier.url": "memory://bucket"})
        client = await machine.restart()
        await client.create_topics([NewTopic("first", 1), NewTopic("t", 1, configs=TIERED)])
        hosted = machine.partition("t")
        for number in range(6):
            await client.produce("t", 0, batch([b"%d" % number], START_MS + number * 1100))
        await until(lambda: hosted.log.tiered_end > 0)
        first, _ = in_bucket(store, "t")
        for number in range(6, 12):
            await client.produce("t", 0, batch([b"%d" % number], START_MS + number * 1100))
        await take(machine, client, "t")
        await asyncio.sleep(5)  # a cycle that runs ends with the step it is in
        then, _ = in_bucket(store, "t")
        await asyncio.sleep(60)
        last, _ = in_bucket(store, "t")
        assert first is not None
        assert then is not None
        assert last is not None
        assert last.version == then.version
        assert last.leader_epoch == first.leader_epoch, (
            "nothing is written in another leader's epoch"
        )
        assert not [one for one in store.list("") if "/deleted/" in one.path], (
            "the topic must exist"
        )
        assert machine.broken_tasks == []
        await machine.stop()

    run(story())


@pytest.mark.parametrize("take", [way for way, _ in WAYS], ids=lambda way: way.__name__)
def test_a_coordinator_unloads_the_groups_of_a_lost_partition(take: Take) -> None:
    async def story() -> None:
        machine = Machine(
            World(5), {"log.dirs": "/data,/more", "offsets.topic.num.partitions": "1"}
        )
        client = await machine.restart()
        await client.create_topics([NewTopic("first", 1)])
        groups = machine.broker.groups
        await groups.ensure_topic()
        assert machine.partition(OFFSETS_TOPIC).directory.path == "/more"
        await until(lambda: bool(groups.coordinated))
        async with asyncio.timeout(60):
            commit = OffsetCommit("g", (CommitTopic("t", (CommitPartition(0, 7),)),), -1, "")
            assert (await groups.commit(commit)).topics[0].partitions[0].error is ErrorCode.none
            leader = await joined(groups, "")
            joining = asyncio.create_task(joined(groups, ""))  # waits for the other to join again
            await asyncio.sleep(1)
            assert leader.error is ErrorCode.none
            assert not joining.done()
            await take(machine, client, OFFSETS_TOPIC)
            with pytest.raises(Rejected) as refused:
                await joining
            assert refused.value.code is ErrorCode.not_coordinator
            with pytest.raises(Rejected) as refused:
                await groups.commit(commit)
            assert refused.value.code is ErrorCode.not_coordinator
        assert machine.broken_tasks == []
        await machine.stop()

    run(story())


def test_a_returning_leader_coordinates_its_earlier_groups() -> None:
    async def story() -> None:
        machine = Machine(World(6), {"offsets.topic.num.partitions": "1"})
        client = await machine.restart()
        groups = machine.broker.groups
        await groups.ensure_topic()
        await until(lambda: bool(groups.coordinated))
        async with asyncio.timeout(60):
            commit = OffsetCommit("g", (CommitTopic("t", (CommitPartition(0, 7),)),), -1, "")
            await client.create_topics([NewTopic("t", 1)])
            await groups.commit(commit)
            for _ in range(3):
                await lead_elsewhere(machine, client, OFFSETS_TOPIC)
                assert not groups.coordinated
                await change(machine, OFFSETS_TOPIC, leader=1)
                await until(lambda: bool(groups.coordinated))
                answer = await groups.fetch_offsets(OffsetFetch("g", None))
                assert [one.offset for topic in answer.topics for one in topic.partitions] == [7]
            await lead_elsewhere(machine, client, OFFSETS_TOPIC)
            await change(machine, OFFSETS_TOPIC, leader=1)
            await lead_elsewhere(machine, client, OFFSETS_TOPIC)  # while it is being loaded
            await asyncio.sleep(5)
            assert not groups.coordinated
            assert not groups.is_loading
        assert machine.broken_tasks == []
        await machine.stop()

    run(story())


async def joined(groups: Groups, member: str) -> JoinGroupAnswer:
    request = JoinGroup(
        "g",
        member,
        "c",
        "h",
        10_000,
        30_000,
        "consumer",
        (Protocol("range", b""),),
        member_id_required=False,
    )
    return await groups.join(request)


def test_a_large_change_is_carried_out_in_slices_and_the_next_one_after_it() -> None:
    async def story() -> None:
        machine = Machine(World(7))
        client, other = await machine.restart(), await machine.connect()
        hosting = machine.broker.hosting
        slices: list[list[Transition]] = []
        refused: set[ErrorCode] = set()
        deleting: list[asyncio.Task[Any]] = []

        def end_slice() -> None:
            slices.append([])
            try:
                hosting.get("many", 999)
            except Rejected as error:
                refused.add(error.code)
            if not deleting:
                deleting.append(asyncio.create_task(other.delete_topics(["many"])))

        def note(transition: Transition, _hosted: object) -> None:
            if not slices[-1]:
                asyncio.get_running_loop().call_soon(end_slice)
            slices[-1].append(transition)

        slices.append([])
        hosting.on_transition.append(note)
        async with asyncio.timeout(600):
            (created,) = await client.create_topics([NewTopic("many", 1000)])
            assert created.error is ErrorCode.none
            (deleted,) = await deleting[0]
            assert deleted.error is ErrorCode.none
        seen = list(chain(*slices))
        assert seen[:1000] == [Transition.LED] * 1000, "all are created before one is deleted"
        assert (seen.count(Transition.RESIGNED), seen.count(Transition.DELETED)) == (1000, 1000)
        largest = {one[0]: len(one) for one in slices if one}
        # Deletions of one turn share a sync of their log directory.
        assert largest == {
            Transition.LED: 100,
            Transition.RESIGNED: 100,
            Transition.DELETED: 1000,
        }
        assert refused == {ErrorCode.not_leader_or_follower, ErrorCode.unknown_topic_or_partition}
        assert not hosting.by_id
        await asyncio.sleep(5)
        assert not [one for one in machine.world.disk("/data").list("") if "many" in one.name]
        assert machine.broken_tasks == []
        await machine.stop()

    run(story())


def test_answers_name_the_leader_and_the_controller_that_the_image_names() -> None:
    async def story() -> None:
        machine = Machine(World(8), {"offsets.topic.num.partitions": "1"})
        client = await machine.restart()
        await client.create_topics([NewTopic("t", 1)])
        await machine.broker.groups.ensure_topic()
        raw = await Raw.connect(machine.world.network)
        assert await answers(raw) == {"leader": 1, "coordinator": (1, 9092), "controllers": (1, 1)}
        await write(machine, other_broker())
        for topic in ("t", OFFSETS_TOPIC):
            await lead_elsewhere(machine, client, topic)
        assert await answers(raw) == {
            "leader": OTHER,
            "coordinator": (OTHER, 1234),
            "controllers": (1, 1),
        }
        epoch = machine.broker.metadata.image.brokers[1].epoch
        await write(machine, FenceBrokerRecord(id=1, epoch=epoch))
        assert (await answers(raw))["controllers"] == (OTHER, OTHER)
        await have_no_leader(machine, client, OFFSETS_TOPIC)
        assert (await answers(raw))["coordinator"] == (-1, -1)
        assert machine.broken_tasks == []
        await machine.stop()

    run(story())


def test_produce_and_fetch_name_the_current_leader_and_its_address() -> None:
    async def story() -> None:
        machine = Machine(World(9))
        client = await machine.restart()
        await client.create_topics([NewTopic("t", 2)])
        await write(machine, other_broker())
        former = machine.partition("t").replica.leader_epoch
        await lead_elsewhere(machine, client, "t")
        found = machine.broker.metadata.topic("t")
        assert found is not None
        raw = await Raw.connect(machine.world.network)
        produced = await raw.ask(10, produce_body())
        by_id = TopicProduceData(
            topic_id=found.id, partition_data=produce_body().topic_data[0].partition_data
        )
        produced_by_id = await raw.ask(
            13, ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[by_id])
        )
        wanted: list[tuple[str | UUID, int, int]] = [(found.id, 0, 0), (found.id, 1, 0)]
        fetched = await raw.ask(16, fetch_body(wanted, leader_epoch=former))
        not_leader, fenced = ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch
        for answer, (row, *rest), code in (
            (produced, produced.responses[0].partition_responses, not_leader),
            (produced_by_id, produced_by_id.responses[0].partition_responses, not_leader),
            (fetched, fetched.responses[0].partitions, fenced),
        ):
            leader = row.current_leader
            epoch = found.partitions[0].leader_epoch
            assert row.error_code == code
            assert (leader.leader_id, leader.leader_epoch) == (OTHER, epoch)
            (node,) = answer.node_endpoints
            assert (node.node_id, node.host, node.port) == (OTHER, "other", 1234)
            assert [one.current_leader.leader_id for one in rest] == [-1] * len(rest)
        await have_no_leader(machine, client, "t")
        fetched = await raw.ask(16, fetch_body([(found.id, 0, 0)], leader_epoch=former))
        assert fetched.responses[0].partitions[0].current_leader.leader_id == -1
        assert not fetched.node_endpoints
        old = await raw.ask(9, produce_body())
        assert old.responses[0].partition_responses[0].current_leader.leader_id == -1
        assert machine.broken_tasks == []
        await machine.stop()

    run(story())


def other_broker() -> RegisterBrokerRecord:
    endpoint = BrokerEndpoint(name="PLAINTEXT", host="other", port=1234, security_protocol=0)
    return RegisterBrokerRecord(
        broker_id=OTHER,
        incarnation_id=ELSEWHERE,
        broker_epoch=1000,
        end_points=(endpoint,),
        features=(),
        rack=None,
        fenced=False,
    )


async def answers(raw: Raw) -> dict[str, Any]:
    metadata = await raw.ask(12, MetadataRequest(topics=[MetadataRequestTopic(name="t")]))
    found = await raw.ask(4, FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
    cluster = await raw.ask(0, DescribeClusterRequest(include_cluster_authorized_operations=False))
    coordinator = found.coordinators[0]
    return {
        "leader": metadata.topics[0].partitions[0].leader_id,
        "coordinator": (coordinator.node_id, coordinator.port),
        "controllers": (metadata.controller_id, cluster.controller_id),
    }
