"""The metadata log through snapshots and crashes: the cluster keeps every answered change.

Method: a node whose metadata log asks for a snapshot every few records, topics created and deleted by chance, and a
power cut at any moment, also while the node starts.
"""

import asyncio
from contextlib import suppress
from uuid import UUID

import pytest
from tests.sim.cluster import Cluster as Several
from tests.sim.disk import PowerLoss, SimDisk
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.records import batch, read_all
from tests.sim.world import World

from stratalog.broker.storage.first_voters import Begin
from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode, Rejected, Unavailable, UserError
from stratalog.log.checkpoints import MetaProperties, encode_meta_properties
from stratalog.metadata.snapshot import encode_checkpoint, parse_file_name
from stratalog.wire.batch import assign, scan
from stratalog.wire.internal.metadata import encode
from stratalog.wire.internal.metadata_records import FeatureLevelRecord
from stratalog.wire.records import BatchBuilder

RECORD_BYTES = 60
SNAPSHOT_BYTES = 1500
METADATA = "__cluster_metadata-0"
LAX = ((5, False), (39, False))
"""Seeds with disks that keep no order of a directory's changes."""


class Cluster:
    """The answers so far: topics by name with their leader's epoch, and topics whose request had no answer."""

    def __init__(self, seed: int, *, disks_keep_order: bool) -> None:
        self.world = World(seed, disks_keep_order=disks_keep_order)
        self.machine = Machine(
            self.world,
            {
                "metadata.log.max.record.bytes.between.snapshots": str(SNAPSHOT_BYTES),
                "log.dirs": "/data,/more",
            },
        )
        self.topics: set[str] = set()
        self.unknown: set[str] = set()
        self.number = 0
        self.partitions = 0
        """The partitions at the last check."""

    async def change(self) -> None:
        """One creation or deletion."""
        chance = self.world.chance
        client = await self.machine.connect()
        if self.topics and chance.random() < 0.4:
            name = chance.choice(sorted(self.topics))
            self.topics.discard(name)
            self.unknown.add(name)
            (result,) = await client.delete_topics([name])
            assert result.error in {ErrorCode.none, ErrorCode.unknown_topic_or_partition}, result
        else:
            self.number += 1
            name = f"topic-{self.number}"
            self.unknown.add(name)
            wanted = NewTopic(name, chance.randint(1, 3), configs={"retention.ms": "-1"})
            (result,) = await client.create_topics([wanted])
            # The client asks again where the broker died on it.
            assert result.error in {ErrorCode.none, ErrorCode.topic_already_exists}, result
            self.topics.add(name)
        self.unknown.discard(name)

    async def change_until_dark(self) -> None:
        try:
            while True:
                await self.change()
        except (Unavailable, Rejected):
            pass

    async def check(self) -> None:
        """Check that the topics are the acknowledged ones, and that each is hosted, led, and in its own directory."""
        client = await self.machine.connect()
        info = await client.metadata()
        there = {name for name in info.topics if not name.startswith("__")}
        assert self.topics <= there <= self.topics | self.unknown
        self.topics, self.unknown = there, set()
        hosted = {str(one.name) for one in self.machine.broker.hosting.all()}
        self.partitions = len(hosted)
        assert hosted == {f"{name}-{i}" for name in there for i in info.topics[name].partitions}
        for name in there:
            for partition in info.topics[name].partitions.values():
                assert partition.leader == 1
                assert (
                    partition.leader_epoch >= self.machine.partition(name, 0).replica.leader_epoch
                )
        await asyncio.sleep(2)
        on_disk = {
            info.name
            for disk in self.world.disks.values()
            for info in disk.list("")
            if info.is_directory and info.name != METADATA
        }
        assert on_disk == hosted, "nothing is left of what was deleted or never made"


async def lives(seed: int, *, disks_keep_order: bool) -> Cluster:
    cluster = Cluster(seed, disks_keep_order=disks_keep_order)
    machine, chance = cluster.machine, cluster.world.chance
    machine.slowness = chance.choice((0.0, 0.1))
    await machine.start()
    for _ in range(8):
        changing = asyncio.create_task(cluster.change_until_dark())
        await asyncio.sleep(chance.uniform(0, 0.4))
        end = chance.choice((machine.lose_power, machine.lose_power, machine.kill, machine.stop))
        await end()
        await asyncio.wait((changing,))
        while chance.random() < 0.3:
            await machine.lose_power_starting(chance.uniform(0, 0.02))
        await machine.start()
        await cluster.check()
    await machine.stop()
    return cluster


@pytest.mark.parametrize(
    ("seed", "disks_keep_order"), [*((seed, True) for seed in (*range(6), 12)), *LAX]
)
def test_answered_changes_survive_every_crash(seed: int, *, disks_keep_order: bool) -> None:
    cluster = run(lives(seed, disks_keep_order=disks_keep_order))
    disk = cluster.world.disks["/data"]
    snapshots = [info.name for info in disk.list(METADATA) if parse_file_name(info.name)]
    assert len(snapshots) == 1, "the newest stands for all that went before"
    assert cluster.number > 10
    logs = [info for info in disk.list(METADATA) if info.name.endswith(".log")]
    # Each start writes two records for each partition (fenced, led again), the stop writes a third, and no snapshot is
    # written during either. The newest snapshot may lie between the last two starts, in the middle of its segment.
    last_lives = (2 + 3) * RECORD_BYTES * cluster.partitions
    assert sum(info.size for info in logs) < 3 * SNAPSHOT_BYTES + last_lives
    assert not cluster.machine.broken_tasks


def test_every_start_leads_in_a_new_epoch_that_is_committed_before_an_append() -> None:
    async def story() -> None:
        machine = Machine(World(1))
        client = await machine.restart()
        await client.create_topics([NewTopic("t", 1)])
        epochs = []
        written: dict[int, bytes] = {}
        for number in range(4):
            value = b"%d" % number
            produced = await client.produce("t", 0, batch([value], 1_700_000_000_000))
            written[produced.base_offset] = value
            partition = machine.partition("t")
            epochs.append(partition.replica.leader_epoch)
            committed = machine.broker.metadata.image.topic("t")
            assert committed is not None
            assert committed.partitions[0].leader_epoch == epochs[-1]
            assert partition.log.epochs.epoch_of(produced.base_offset) == epochs[-1]
            await (machine.kill if number % 2 else machine.stop)()
            client = await machine.restart()
        assert epochs == sorted(set(epochs))
        assert await read_all(client, "t", 0, 4) == written
        await machine.stop()

    run(story())


def test_no_snapshot_replaces_a_deletion_that_a_start_has_yet_to_carry_out() -> None:
    async def story() -> None:
        machine = Machine(World(1), {"metadata.log.max.record.bytes.between.snapshots": "1"})
        client = await machine.restart()
        await client.create_topics([NewTopic("t", 1)])
        deletion = asyncio.create_task(client.delete_topics(["t"]))
        await lose_power_at_rename(machine, "t-0")
        with suppress(Unavailable):
            await deletion
        start = asyncio.create_task(machine.start())
        await lose_power_at_rename(machine, "t-0")
        await asyncio.wait((start,))
        await machine.start()
        await asyncio.sleep(2)
        assert "t-0" not in {info.name for info in machine.host.disk("/data").list("")}
        await machine.stop()

    run(story())


def level(number: int) -> FeatureLevelRecord:
    return FeatureLevelRecord(name="metadata.version", feature_level=number)


@pytest.mark.parametrize("number", [25, 29, 31])
def test_a_log_begins_at_the_level_of_its_format_or_not_at_all(number: int) -> None:
    async def story() -> None:
        machine = Machine(World(1))
        disk = machine.host.disk("/data")
        meta = MetaProperties("a", 1, UUID(int=1 << 64))
        disk.write_file("meta.properties", encode_meta_properties(meta))
        first = encode_checkpoint([level(number)], 0, last_contained_timestamp_ms=0, epoch=0)
        disk.write_file("bootstrap.checkpoint", first)
        if number > 30:
            with pytest.raises(UserError, match=r"metadata\.version 31, .* later release"):
                await machine.start()
            assert not disk.list(METADATA), "nothing is written"
            return
        for _ in range(2):
            await machine.start()
            assert machine.broker.metadata.image.features["metadata.version"] == number
            await machine.stop()

    run(story())


def contents(disk: SimDisk) -> dict[str, bytes]:
    """Return the log and the quorum's state. A recovery may remove index files."""
    names = [one.name for one in disk.list(METADATA)]
    paths = [f"{METADATA}/{name}" for name in names if name.endswith((".log", "quorum-state"))]
    return {path: bytes(disk.read(path, 0, 1 << 30)) for path in paths}


@pytest.mark.parametrize("begins", [None, {1: Begin(standalone=True)}])
def test_a_log_of_a_later_level_is_refused_and_stays_as_it_is(
    begins: dict[int, Begin] | None,
) -> None:
    async def story() -> None:
        world = World(1)
        machine = Several(world, 1, begins=begins).machines[1] if begins else Machine(world)
        await machine.start()
        await machine.stop()
        disk = machine.host.disk(machine.log_dirs[0])
        logs = [
            f"{METADATA}/{one.name}" for one in disk.list(METADATA) if one.name.endswith(".log")
        ]
        path = max(logs)
        data = disk.read(path, 0, 1 << 30)
        *_, (_, last) = scan(memoryview(data))
        later = BatchBuilder()
        later.add(None, encode(level(31)), 0)
        later.add(None, b"\x01\x64\x00later", 0)
        batch = later.build()
        assign(batch, 0, last.next_offset, last.leader_epoch)
        disk.append(path, len(data), [batch])
        whole = contents(disk)
        with pytest.raises(UserError, match=r"metadata\.version 31, .* later release"):
            await machine.start()
        assert contents(disk) == whole

    run(story())


async def lose_power_at_rename(machine: Machine, path: str) -> None:
    """Lose power at the next rename of a path, which does not happen."""
    disk = machine.host.disk("/data")
    before, dark = disk.before, asyncio.Event()

    def renames(operation: str, name: str) -> None:
        before(operation, name)
        if (operation, name) == ("rename", path):
            dark.set()
        if dark.is_set():
            raise PowerLoss(name)

    disk.before = renames
    await dark.wait()
    await machine.lose_power()
    disk.before = before


def test_a_damaged_snapshot_is_one_line_for_a_person() -> None:
    async def story() -> None:
        world = World(1)
        settings = {"metadata.log.max.record.bytes.between.snapshots": "500"}
        machine = Machine(world, settings)
        client = await machine.restart()
        for number in range(5):
            await client.create_topics([NewTopic(f"t-{number}", 1)])
        await machine.stop()
        disk = world.disks["/data"]
        (name,) = (info.name for info in disk.list(METADATA) if parse_file_name(info.name))
        disk.flip(f"{METADATA}/{name}", 100)
        with pytest.raises(UserError, match=f"/data/{METADATA} cannot be read"):
            await machine.start()
        disk.flip(f"{METADATA}/{name}", 100)
        await machine.start()
        assert len(machine.broker.metadata.image.topics_by_id) == 5
        await machine.stop()

    run(story())


@pytest.mark.parametrize(("interval_ms", "snapshots"), [(60_000, 1), (0, 0)])
def test_a_snapshot_comes_with_the_first_change_after_its_interval(
    interval_ms: int, snapshots: int
) -> None:
    async def story() -> None:
        world = World(1)
        machine = Machine(world, {"metadata.log.max.snapshot.interval.ms": str(interval_ms)})
        client = await machine.restart()

        async def found() -> int:
            await asyncio.sleep(1)
            return sum(parse_file_name(one.name) is not None for one in disk.list(METADATA))

        disk = world.disks["/data"]
        await client.create_topics([NewTopic("early", 1)])
        assert await found() == 0
        await asyncio.sleep(60)
        assert await found() == 0, "nothing has changed"
        await client.create_topics([NewTopic("late", 1)])
        assert await found() == snapshots
        await client.create_topics([NewTopic("later", 1)])
        assert await found() == snapshots, "the interval begins again"
        await machine.stop()

    run(story())


def test_the_offsets_topic_is_created_once_however_many_ask() -> None:
    async def story() -> None:
        machine = Machine(World(1))
        await machine.start()
        groups = machine.broker.groups
        await asyncio.gather(*(groups.ensure_topic() for _ in range(10)))
        topic = machine.broker.metadata.topic("__consumer_offsets")
        assert topic is not None
        assert len(topic.partitions) == 2
        await machine.stop()

    run(story())
