"""Several log directories: the places of partitions, and the effect of a failed drive.

Method: the real node over simulated disks whose calls a test makes fail.
"""

import asyncio
import errno
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from tests.produce import produce_body
from tests.sim.disk import SimDisk
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw, list_offsets_body
from tests.sim.records import batch, read_all
from tests.sim.test_moves import PARTITIONS, PATHS, SETTINGS, describe, move, until
from tests.sim.test_moves import TOPIC as MOVED
from tests.sim.world import START_MS, World

from stratalog.broker.storage.survey import KAFKAS_TIER
from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.coordinators.placement import partition_for
from stratalog.errors import ErrorCode, Rejected, UserError
from stratalog.log.checkpoints import META_PROPERTIES, decode_meta_properties
from stratalog.ports import FileInfo
from stratalog.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from stratalog.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from stratalog.wire.messages.find_coordinator import FindCoordinatorRequest
from stratalog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic


def failing(number: int) -> Any:
    """A drive that refuses every change."""

    def before(_operation: str, path: str) -> None:
        raise OSError(number, "the drive says no", path)

    return before


def mend(world: World, path: str) -> None:
    world.disk(path).before = lambda _operation, _name: None


async def create(client: Client, name: str, partitions: int) -> None:
    (result,) = await client.create_topics([NewTopic(name, partitions=partitions)])
    assert result.error == 0


async def metadata_of(machine: Machine, topic: str) -> list[Any]:
    raw = await Raw.connect(machine.world.network)
    try:
        answer = await raw.ask(
            12,
            MetadataRequest(
                topics=[MetadataRequestTopic(name=topic)],
                allow_auto_topic_creation=False,
                include_topic_authorized_operations=False,
            ),
        )
    finally:
        raw.close()
    return sorted(answer.topics[0].partitions, key=lambda one: one.partition_index)


def places(machine: Machine, topic: str, count: int) -> list[str]:
    return [machine.partition(topic, index).directory.path for index in range(count)]


def test_equal_drives_get_equally_many_partitions_and_a_larger_one_more() -> None:
    async def story() -> None:
        world = World(1)
        for path, gib in (("/data", 100), ("/more", 100), ("/third", 200)):
            world.disk(path).free = gib << 30
        machine = Machine(world, SETTINGS)
        client = await machine.restart()
        await create(client, "many", 8)
        found = places(machine, "many", 8)
        assert [found.count(path) for path in PATHS] == [2, 2, 4]
        assert found[:2] == ["/third", "/data"], (
            "of equal drives the first of log.dirs must be chosen"
        )
        world.disk("/data").free = 0
        await asyncio.sleep(10)  # looked at with every checkpoint
        await create(client, "later", 4)
        assert "/data" not in places(machine, "later", 4)
        await machine.stop()

    run(story())


def test_metadata_knows_where_each_partition_is() -> None:
    async def story() -> None:
        machine = Machine(World(1), SETTINGS)
        client = await machine.restart()
        await create(client, "placed", 6)

        def is_known() -> bool:
            topic = machine.broker.metadata.topic("placed")
            assert topic is not None
            return all(
                one.directory_of(1) == machine.partition("placed", index).directory.id
                for index, one in topic.partitions.items()
            )

        await until(is_known)
        await machine.kill()
        await machine.restart()
        assert is_known()
        assert not machine.broken_tasks
        await machine.stop()

    run(story())


@pytest.mark.parametrize("directories", [SETTINGS, {}])
def test_only_a_drive_without_others_is_written_on_the_event_loop(
    directories: dict[str, str],
) -> None:
    async def story() -> None:
        world = World(1)
        asked: list[str] = []

        def is_quick(path: str) -> bool:
            asked.append(path)
            return True

        for path in PATHS:
            world.disk(path).is_quick = partial(is_quick, path)
        machine = Machine(world, directories)
        client = await machine.restart()
        await create(client, "kept", 3)
        for number in range(2):
            for index in range(3):
                await client.produce("kept", index, batch([b"%d" % number], START_MS))
        assert asked == ([] if directories else ["/data"] * 6)
        await machine.stop()

    run(story())


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_a_failed_drive_takes_its_own_partitions_offline_until_its_repair(
    number: int,
) -> None:
    async def story() -> None:
        world = World(number)
        machine = Machine(world, SETTINGS)
        client = await machine.restart()
        await create(client, "kept", 3)
        for index in range(3):
            await client.produce("kept", index, batch([b"before"], START_MS))
        sick = next(i for i, path in enumerate(places(machine, "kept", 3)) if path == "/more")
        world.disk("/more").before = failing(number)
        with pytest.raises(Rejected) as refused:
            await client.produce("kept", sick, batch([b"lost"], START_MS))
        assert refused.value.code == ErrorCode.kafka_storage_error
        for index in range(3):
            if index != sick:
                await client.produce("kept", index, batch([b"after"], START_MS))
        rows = await metadata_of(machine, "kept")
        for index, row in enumerate(rows):
            offline = index == sick
            assert row.leader_id == (-1 if offline else 1)
            assert list(row.offline_replicas) == ([1] if offline else [])
            assert row.error_code == (ErrorCode.leader_not_available if offline else ErrorCode.none)
        errors = await directory_errors(machine)
        assert errors == {"/data": 0, "/more": ErrorCode.kafka_storage_error, "/third": 0}
        await create(client, "new", 4)
        assert "/more" not in places(machine, "new", 4)
        await machine.stop()
        mend(world, "/more")
        client = await machine.restart()
        for index in range(3):
            end = machine.partition("kept", index).high_watermark
            found = await read_all(client, "kept", 0, end, partition=index)
            assert list(found.values()) == ([b"before"] if index == sick else [b"before", b"after"])
            await client.produce("kept", index, batch([b"again"], START_MS))
        assert not machine.broken_tasks
        await machine.stop()

    run(story())


def test_a_group_whose_offsets_are_offline_has_no_coordinator_others_have() -> None:
    groups = [f"group-{number}" for number in range(40)]

    async def coordinators(raw: Raw) -> dict[str, int]:
        body = FindCoordinatorRequest(key_type=0, coordinator_keys=groups)
        answer = await raw.ask(6, body)
        for one in answer.coordinators:
            assert (one.node_id >= 0) == (one.error_code == ErrorCode.none)
        return {one.key: one.error_code for one in answer.coordinators}

    async def story() -> None:
        world = World(7)
        machine = Machine(world, {**SETTINGS, "offsets.topic.num.partitions": "6"})
        await machine.start()
        raw = await Raw.connect(world.network)
        assert set((await coordinators(raw)).values()) == {ErrorCode.none}
        lost = {
            index
            for index, path in enumerate(places(machine, "__consumer_offsets", 6))
            if path == "/more"
        }
        assert 0 < len(lost) < 6
        world.disk("/more").before = failing(1)
        client = await machine.connect()
        await create(client, "any", 6)  # the directory is found out
        for group, code in (await coordinators(raw)).items():
            away = partition_for(group, 6) in lost
            wanted = ErrorCode.coordinator_not_available if away else ErrorCode.none
            assert code == wanted, group
        raw.close()
        await machine.stop()

    run(story())


async def is_offline(client: Client, topic: str, partition: int) -> None:
    """Nothing is taken for a partition whose drive is away."""
    with pytest.raises(Rejected) as refused:
        await client.produce(topic, partition, batch([b"lost"], START_MS))
    assert refused.value.code == ErrorCode.leader_not_available


async def mounted(machine: Machine, path: str, disk: SimDisk) -> Client:
    """Start the node again with the drive attached."""
    await machine.stop()
    machine.world.disks[path] = disk
    return await machine.restart()


async def directory_errors(machine: Machine) -> dict[str, int]:
    raw = await Raw.connect(machine.world.network)
    try:
        answer = await raw.ask(4, DescribeLogDirsRequest(topics=None))
    finally:
        raw.close()
    return {row.log_dir: int(row.error_code) for row in answer.results}


async def elected(machine: Machine, topic: str, kind: int) -> dict[int, int]:
    """Return the result of an election of a topic's three partitions."""
    raw = await Raw.connect(machine.world.network)
    asked = TopicPartitions(topic=topic, partitions=[0, 1, 2])
    body = ElectLeadersRequest(election_type=kind, topic_partitions=[asked])
    try:
        answer = await raw.ask(2, body)
    finally:
        raw.close()
    assert answer.error_code == ErrorCode.none
    (row,) = answer.replica_election_results
    return {one.partition_id: one.error_code for one in row.partition_result}


def test_a_missing_drive_is_offline_at_the_start_and_not_created_again() -> None:
    async def story() -> None:
        world = World(1)
        machine = Machine(world, SETTINGS)
        client = await machine.restart()
        await create(client, "kept", 3)
        for index in range(3):
            await client.produce("kept", index, batch([b"before"], START_MS))
        sick = next(i for i, path in enumerate(places(machine, "kept", 3)) if path == "/more")
        await machine.stop()
        disk = world.disks.pop("/more")  # not mounted: the broker sees an empty directory
        client = await machine.restart()
        assert (await metadata_of(machine, "kept"))[sick].leader_id == -1
        await is_offline(client, "kept", sick)
        led = dict.fromkeys(range(3), ErrorCode.election_not_needed)
        for kind, none_there in (
            (0, ErrorCode.preferred_leader_not_available),
            (1, ErrorCode.eligible_leaders_not_available),
        ):
            assert await elected(machine, "kept", kind) == {**led, sick: none_there}
        assert (await directory_errors(machine))["/more"] == ErrorCode.kafka_storage_error
        assert list(world.disk("/more").list("")) == []
        client = await mounted(machine, "/more", disk)
        assert await read_all(client, "kept", 0, 1, partition=sick) == {0: b"before"}
        assert not machine.broken_tasks
        await machine.stop()

    run(story())


def test_a_partition_is_not_taken_from_an_old_copy_while_its_own_drive_is_away() -> None:
    """The move is committed and its source drive keeps a copy: that copy is old from then on."""

    async def story() -> None:
        world = World(3)
        machine = Machine(world, SETTINGS)
        client = await machine.restart()
        await create(client, MOVED, PARTITIONS)
        await client.produce(MOVED, 0, batch([b"before"], START_MS))
        source = machine.partition(MOVED).directory.path
        assert source == "/data"
        old = world.disk("/data").copy()
        assert await move(machine, 0, "/more") == 0
        await until(lambda: machine.partition(MOVED).directory.path == "/more")
        await client.produce(MOVED, 0, batch([b"after"], START_MS))
        await machine.stop()
        # As if the old directory had never been removed.
        name = f"{MOVED}-0"
        world.disk("/data").make_directory(name)
        for file in old.list(name):
            data = old.read(f"{name}/{file.name}", 0, 1 << 20)
            world.disk("/data").append(f"{name}/{file.name}", 0, [data])
        disk = world.disks.pop("/more")
        client = await machine.restart()
        await is_offline(client, MOVED, 0)
        client = await mounted(machine, "/more", disk)
        assert await read_all(client, MOVED, 0, 2) == {0: b"before", 1: b"after"}
        await until(lambda: name not in {one.name for one in world.disk("/data").list("")})
        await machine.stop()

    run(story())


def test_a_start_writes_the_id_of_a_directory_that_has_none() -> None:
    async def story() -> None:
        machine = Machine(World(1), SETTINGS)

        def recorded() -> dict[str, UUID | None]:
            disks = {path: machine.world.disk(path) for path in PATHS}
            return {
                path: decode_meta_properties(disk.read(META_PROPERTIES, 0, 1000)).directory_id
                for path, disk in disks.items()
            }

        client = await machine.restart()
        await create(client, "kept", 3)
        for index in range(3):
            await client.produce("kept", index, batch([b"value"], START_MS))
        await machine.stop()
        before = recorded()
        for path in PATHS:  # as a version of Kafka without ids leaves them
            disk = machine.world.disk(path)
            lines = disk.read(META_PROPERTIES, 0, 1000).splitlines(keepends=True)
            left = [line for line in lines if not line.startswith(b"directory.id=")]
            assert len(left) == len(lines) - 1
            disk.write_file(META_PROPERTIES, b"".join(left))
        client = await machine.restart()
        after = recorded()
        assert None not in after.values()
        assert not {*before.values()} & {*after.values()}
        assert {one.path: one.id for one in machine.broker.hosting.directories} == after
        for index in range(3):
            assert await read_all(client, "kept", 0, 1, partition=index) == {0: b"value"}
            await client.produce("kept", index, batch([b"more"], START_MS))
        await machine.stop()
        await machine.restart()
        assert recorded() == after, "an id stays"
        await machine.stop()

    run(story())


def test_a_node_does_not_start_without_its_metadata_directory() -> None:
    async def story() -> None:
        world = World(1)
        machine = Machine(world, SETTINGS)
        client = await machine.restart()
        reasons = machine.reasons_to_stop
        await create(client, "kept", 3)
        world.disk("/data").before = failing(errno.EIO)
        (refused,) = await client.create_topics([NewTopic("more", partitions=1)])
        assert refused.error == ErrorCode.not_controller
        assert len(reasons) == 1
        assert "/data" in reasons[0]
        await machine.stop()
        world.disks.pop("/data")
        world.disk("/data").before = failing(errno.EACCES)
        with pytest.raises(UserError, match="/data"):
            await machine.start()

    run(story())


def test_a_move_in_progress_is_shown_and_may_be_changed() -> None:
    async def story() -> None:
        world = World(5)
        machine = Machine(world, SETTINGS)
        machine.slowness = 0.5
        client = await machine.restart()
        await create(client, MOVED, 1)
        values = [b"%d" % n + b" " * 300_000 for n in range(40)]
        for value in values:
            await client.produce(MOVED, 0, batch([value], START_MS))
        source = machine.partition(MOVED).directory.path
        first, second = (path for path in PATHS if path != source)
        assert await move(machine, 0, "/nowhere") == ErrorCode.log_dir_not_found
        assert await move(machine, 7, first) == ErrorCode.unknown_topic_or_partition
        assert await move(machine, 0, source) == 0, "it is there already"
        assert await move(machine, 0, first) == 0
        seen: list[tuple[int, int]] = []

        async def is_half_done() -> bool:
            for index, is_future, size, lag in (await describe(machine))[first]:
                if is_future:
                    assert index == 0
                    seen.append((size, lag))
            return any(size > 0 for size, _lag in seen)

        await until(is_half_done)
        assert any(lag > 0 for _size, lag in seen)
        assert await move(machine, 0, second) == 0
        await until(lambda: machine.partition(MOVED).directory.path == second)
        assert await read_all(client, MOVED, 0, 40, max_bytes=1 << 20) == dict(enumerate(values))
        await until(
            lambda: not [one for one in world.disk(first).list("") if one.name.startswith(MOVED)]
        )
        assert not machine.broken_tasks
        await machine.stop()

    run(story())


@pytest.mark.parametrize("seed", range(6))
def test_a_topic_deleted_while_it_moves_leaves_nothing(seed: int) -> None:
    async def story() -> None:
        world = World(seed)
        machine = Machine(world, SETTINGS)
        machine.slowness = world.chance.choice((0.0, 0.1))
        client = await machine.restart()
        for _life in range(6):
            await create(client, MOVED, PARTITIONS)
            await client.produce(MOVED, 0, batch([b"x" * 50_000], START_MS))
            source = machine.partition(MOVED).directory.path
            target = next(path for path in PATHS if path != source)
            assert await move(machine, 0, target) == 0
            await asyncio.sleep(world.chance.uniform(0, 0.1))
            await client.delete_topics([MOVED])
        await until(
            lambda: (
                not [
                    one.name
                    for path in PATHS
                    for one in world.disk(path).list("")
                    if one.name.startswith(MOVED)
                ]
            )
        )
        assert all(one.failure is None for one in machine.node.directories)
        assert not machine.broken_tasks
        await machine.stop()

    run(story())


def test_a_request_after_a_produce_sees_its_records() -> None:
    """On one connection, as Kafka serves it: ListOffsets sent with the produce tells its end."""

    async def story() -> None:
        machine = Machine(World(1), SETTINGS)
        machine.slowness = 1.0
        client = await machine.restart()
        await create(client, MOVED, 1)
        raw = await Raw.connect(machine.world.network)
        for number in range(3):
            first = raw.ask(9, produce_body(MOVED, batch([b"a"], START_MS), acks=1))
            second = raw.ask(5, list_offsets_body(MOVED, -1))
            await first
            assert (await second).topics[0].partitions[0].offset == number + 1
        raw.close()
        await machine.stop()

    run(story())


def test_a_drive_that_fails_while_it_is_searched_for_kafkas_tier_is_away_alone() -> None:
    async def story() -> None:
        world = World(1)
        machine = Machine(world, {**SETTINGS, "tier.url": "memory://bucket"})
        client = await machine.restart()
        await create(client, KAFKAS_TIER, 1)
        configs = {"remote.storage.enable": "true"}
        await client.create_topics([NewTopic("tiered", partitions=3, configs=configs)])
        sick = next(i for i, path in enumerate(places(machine, "tiered", 3)) if path == "/more")
        await machine.stop()
        disk = world.disk("/more")
        listed = disk.list

        def fails(path: str) -> list[FileInfo]:
            if path == f"tiered-{sick}":
                raise OSError(errno.EIO, "the drive says no", path)
            return listed(path)

        disk.list = fails  # type: ignore[method-assign]
        await machine.restart()
        errors = await directory_errors(machine)
        assert errors == {"/data": 0, "/more": ErrorCode.kafka_storage_error, "/third": 0}
        await machine.stop()

    run(story())
