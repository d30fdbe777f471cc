"""Partitions moved between log directories while they are written and read, and the broker dies at any moment.

Method: lives of one machine with three directories, each ended by a stop, by kill -9 or by a loss of power, drawn
from the seed. Two writers and a reader never rest, and every partition is asked to move again and again. After each
life the test reads the acknowledged records back in order. Each partition is in exactly one directory, metadata names
that directory, and no incomplete copy of a move remains. Chance hardly hits the moment of the commit, so one move is
also cut at each of its disk operations, one run for each.
"""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.sim.disk import PowerLoss
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.raw import Raw
from tests.sim.records import batch, in_bucket, read_all
from tests.sim.world import START_MS, World

from stratalog.broker.storage.directory import LogDirectory
from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.errors import Rejected, Unavailable, UserError
from stratalog.tier.checking.verify import verify
from stratalog.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from stratalog.wire.messages.describe_log_dirs import DescribeLogDirsRequest

PATHS = ("/data", "/more", "/third")
TOPIC = "moved"
PARTITIONS = 2
LIVES = 6
SETTINGS = {"log.dirs": ",".join(PATHS)}
SYNCED = {"flush.messages": "1", "segment.ms": "400", "retention.ms": "-1"}


def named(world: World, path: str) -> set[str]:
    """The directories of our topic in a log directory, whatever their names have become."""
    return {one.name for one in world.disk(path).list("") if one.name.startswith(TOPIC)}


async def move(machine: Machine, index: int, path: str) -> int:
    """Request a move as a client does; return the error code."""
    raw = await Raw.connect(machine.world.network)
    topic = AlterReplicaLogDirTopic(name=TOPIC, partitions=[index])
    body = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=[topic])])
    try:
        answer = await raw.ask(2, body)
    finally:
        raw.close()
    return int(answer.results[0].partitions[0].error_code)


async def describe(machine: Machine) -> dict[str, list[tuple[int, bool, int, int]]]:
    """By directory: (partition, is a move's copy, bytes, lag) of our topic."""
    raw = await Raw.connect(machine.world.network)
    try:
        answer = await raw.ask(4, DescribeLogDirsRequest(topics=None))
    finally:
        raw.close()
    return {
        row.log_dir: [
            (one.partition_index, one.is_future_key, one.partition_size, one.offset_lag)
            for topic in row.topics
            if topic.name == TOPIC
            for one in topic.partitions
        ]
        for row in answer.results
    }


async def until(condition: Callable[[], Awaitable[bool] | bool], timeout_s: float = 600) -> None:
    """Wait in virtual time."""
    async with asyncio.timeout(timeout_s):
        while True:
            found = condition()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.05)


class Story:
    """The acknowledged records by partition and offset."""

    def __init__(self) -> None:
        self.acknowledged: list[dict[int, bytes]] = [{} for _ in range(PARTITIONS)]
        self.number = 0
        self.moves = 0

    async def write(self, machine: Machine, client: Client, index: int) -> None:
        chance = machine.world.chance
        try:
            while True:
                self.number += 1
                value = b"%d" % self.number
                size = chance.choice((10, 2000))
                record = batch([value + b" " * size], machine.world.clock.now_ms())
                produced = await client.produce(TOPIC, index, record)
                self.acknowledged[index][produced.base_offset] = value
                if chance.random() < 0.3:
                    await asyncio.sleep(chance.uniform(0, 0.2))
        except (Unavailable, Rejected):
            pass  # the broker died

    async def ask(self, machine: Machine) -> None:
        chance = machine.world.chance
        try:
            while True:
                await asyncio.sleep(chance.uniform(0, 0.3))
                code = await move(machine, chance.randrange(PARTITIONS), chance.choice(PATHS))
                assert code == 0
                self.moves += 1
        except (asyncio.CancelledError, OSError):
            pass  # the broker died

    async def read(self, client: Client) -> None:
        """Read from the beginning repeatedly: no offset is ever missing during moves."""
        try:
            while True:
                for index in range(PARTITIONS):
                    end = max(self.acknowledged[index], default=-1) + 1
                    found = await read_all(client, TOPIC, 0, end, partition=index)
                    assert list(found)[:end] == list(range(end))
                await asyncio.sleep(0.05)
        except Unavailable:
            pass


async def check(machine: Machine, client: Client, story: Story) -> None:
    for index in range(PARTITIONS):
        end = machine.partition(TOPIC, index).high_watermark
        found = await read_all(client, TOPIC, 0, end, partition=index)
        assert list(found) == list(range(end)), "a gap"
        for offset, value in story.acknowledged[index].items():
            assert found.get(offset, b"").rstrip() == value, f"{index}: {offset}"
        values = list(found.values())
        assert len(set(values)) == len(values), "a record is there twice"
    await until(lambda: is_tidy(machine))


def is_tidy(machine: Machine) -> bool:
    """Whether each partition is in one directory, nothing else is in any, and metadata knows."""
    world, broker = machine.world, machine.broker
    everywhere = [name for path in PATHS for name in named(world, path)]
    if sorted(everywhere) != [f"{TOPIC}-{index}" for index in range(PARTITIONS)]:
        return False
    topic = broker.metadata.topic(TOPIC)
    assert topic is not None
    for index, partition in topic.partitions.items():
        hosted = machine.partition(TOPIC, index)
        assert f"{TOPIC}-{index}" in named(world, hosted.directory.path)
        if partition.directory_of(1) != hosted.directory.id:
            return False
    return True


async def lives(seed: int) -> Story:
    world = World(seed)
    machine = Machine(world, SETTINGS)
    machine.slowness = world.chance.choice((0.0, 0.02, 0.2))
    client = await machine.restart()
    await client.create_topics([NewTopic(TOPIC, partitions=PARTITIONS, configs=SYNCED)])
    story = Story()
    for _life in range(LIVES):
        work = [
            asyncio.create_task(one)
            for one in (
                *(story.write(machine, client, index) for index in range(PARTITIONS)),
                story.read(client),
                story.ask(machine),
            )
        ]
        await asyncio.sleep(world.chance.uniform(0.05, 3))
        ending = world.chance.choice((machine.lose_power, machine.kill, machine.stop))
        await ending()
        for task in work:
            await task
        while world.chance.random() < 0.3:
            await machine.lose_power_starting(world.chance.uniform(0, 0.05))
        client = await machine.restart()
        await check(machine, client, story)
    assert not machine.broken_tasks
    await machine.stop()
    return story


@pytest.mark.parametrize("seed", range(8))
def test_a_move_that_ends_in_any_way_loses_no_record_and_leaves_no_copy(seed: int) -> None:
    story = run(lives(seed))
    assert story.moves > LIVES, "too few moves: the run proves nothing"
    assert all(len(acknowledged) > 10 for acknowledged in story.acknowledged)


class Cut:
    """Ends the process at the n-th thing that is done to any disk from now on."""

    def __init__(self, machine: Machine, after: int) -> None:
        self.machine = machine
        self.left = after
        self.happened = ""
        for path in PATHS:
            machine.world.disk(path).before = self._before

    def _before(self, operation: str, name: str) -> None:
        if self.left == 0 and not self.happened:
            assert self.machine._workers is not None
            self.machine.process.is_dead = True
            self.happened = f"{operation} {name}"
        if self.happened:
            raise PowerLoss(self.happened)
        self.left -= 1


async def cut_at(after: int, *, lose_power: bool) -> str:
    """One move of a partition that is written to, cut; "" where it ended before."""
    world = World(0)
    machine = Machine(world, SETTINGS)
    client = await machine.restart()
    await client.create_topics([NewTopic(TOPIC, partitions=PARTITIONS, configs=SYNCED)])
    story = Story()
    writing = [asyncio.create_task(story.write(machine, client, at)) for at in range(PARTITIONS)]
    await asyncio.sleep(1)
    source = machine.partition(TOPIC).directory.path
    target = next(path for path in PATHS if path != source)
    cut = Cut(machine, after)
    assert await move(machine, 0, target) == 0
    await until(lambda: bool(cut.happened) or machine.partition(TOPIC).directory.path == target)
    await until(lambda: bool(cut.happened) or is_tidy(machine))
    for path in PATHS:
        world.disk(path).before = lambda _operation, _name: None
    await (machine.lose_power() if lose_power else machine.kill())
    for task in writing:
        await task
    client = await machine.restart()
    await check(machine, client, story)
    await until(lambda: not any(machine.broker.moves.to(one) for one in machine.node.directories))
    await check(machine, client, story)
    assert not machine.broken_tasks
    await machine.stop()
    return cut.happened


@pytest.mark.parametrize("lose_power", [False, True])
def test_a_move_may_be_cut_at_any_of_its_disk_operations(lose_power: bool) -> None:
    cuts = []
    for after in range(10_000):
        cuts.append(run(cut_at(after, lose_power=lose_power)))
        if not cuts[-1]:
            break
    renames = [cut for cut in cuts if cut.startswith("rename") and "-future" in cut]
    assert renames, f"never cut at the commit: {cuts}"
    assert cuts[-1] == ""


async def begin(settings: dict[str, str], **configs: str) -> tuple[Machine, Client]:
    """A machine with three directories and our topic."""
    machine = Machine(World(0), {**SETTINGS, **settings})
    client = await machine.restart()
    named = {name.replace("_", "."): value for name, value in configs.items()}
    (made,) = await client.create_topics([NewTopic(TOPIC, partitions=1, configs=named)])
    assert made.error == 0
    return machine, client


async def fill(machine: Machine, client: Client, count: int, size: int = 10) -> dict[int, bytes]:
    """Batches of one record each, a second apart in the records' time, an hour ago."""
    written: dict[int, bytes] = {}
    for _ in range(count):
        at = machine.partition(TOPIC).log.log_end_offset
        value = b"%d" % at + b" " * size
        data = batch([value], START_MS - 3_600_000 + 1100 * at)
        written[(await client.produce(TOPIC, 0, data)).base_offset] = value
    return written


def elsewhere(machine: Machine) -> str:
    here = machine.partition(TOPIC).directory.path
    return next(path for path in PATHS if path != here)


@pytest.mark.parametrize("lose_power", [False, True])
def test_a_move_that_a_crash_ended_begins_again_by_itself(lose_power: bool) -> None:
    async def story() -> None:
        machine, client = await begin({}, **{"flush.messages": "1"})
        written = await fill(machine, client, 8, size=1_000_000)
        machine.slowness = 1.0  # the copy takes its time
        await machine.stop()
        client = await machine.restart()
        source, target = machine.partition(TOPIC).directory.path, elsewhere(machine)
        assert await move(machine, 0, target) == 0
        await until(lambda: any(one.size for one in machine.broker.moves.to(target_of(machine))))
        assert machine.partition(TOPIC).directory.path == source
        await (machine.lose_power() if lose_power else machine.kill())
        machine.slowness = 0.0
        client = await machine.restart()
        await until(lambda: machine.partition(TOPIC).directory.path == target)
        assert await read_all(client, TOPIC, 0, len(written)) == written
        assert not machine.broken_tasks
        await machine.stop()

    def target_of(machine: Machine) -> LogDirectory:
        return next(one for one in machine.node.directories if one.path == elsewhere(machine))

    run(story())


def test_a_move_keeps_the_start_of_the_log() -> None:
    """It is in no segment: only the target's checkpoint knows it, and it must before the copy counts."""

    async def story() -> None:
        machine, client = await begin(
            {"log.flush.offset.checkpoint.interval.ms": "3600000"}, **{"flush.messages": "1"}
        )
        written = await fill(machine, client, 8)
        hosted, target = machine.partition(TOPIC), elsewhere(machine)
        hosted.log.raise_log_start(5)
        await machine.broker.hosting.checkpoints.write(hosted.directory)  # as DeleteRecords does
        assert await move(machine, 0, target) == 0
        await until(lambda: hosted.directory.path == target)
        await machine.kill()
        client = await machine.restart()
        log = machine.partition(TOPIC).log
        assert (log.log_start_offset, log.log_end_offset) == (5, len(written))
        await machine.stop()

    run(story())


def test_a_partition_of_a_tiered_topic_moves_while_it_is_copied_to_the_bucket() -> None:
    async def story() -> None:
        machine, client = await begin(
            {"tier.url": "memory://b"},
            **{
                "remote.storage.enable": "true",
                "segment.ms": "1000",
                "retention.ms": "-1",
                "local.retention.bytes": "1",
                "file.delete.delay.ms": "100",
            },
        )
        machine.slowness = 0.2  # from the first restart on
        written: dict[int, bytes] = {}
        for round_ in range(6):
            written |= await fill(machine, client, 5)
            target = elsewhere(machine)
            assert await move(machine, 0, target) == 0
            written |= await fill(machine, client, 5)  # while it moves
            await until(lambda target=target: machine.partition(TOPIC).directory.path == target)  # type: ignore[misc]
            if round_ % 2:
                await (machine.kill if round_ % 4 == 1 else machine.stop)()
                client = await machine.restart()
            await asyncio.sleep(5)
            log = machine.partition(TOPIC).log
            assert log.local_start_offset == log.tiered_end == len(written) - 1, "all but the last"
            assert await read_all(client, TOPIC, 0, len(written)) == written
            store = machine.world.store("memory://b")
            _manifest, tiered = in_bucket(store, TOPIC)
            assert tiered == {at: written[at] for at in range(log.tiered_end)}
            assert not verify(store, now_ms=machine.world.clock.now_ms(), grace_ms=0)
            assert [p for p in PATHS if named(machine.world, p)] == [target]
        assert not machine.broken_tasks
        await machine.stop()

    run(story())


def test_two_copies_where_the_partition_counts_are_named_and_nothing_is_touched() -> None:
    """A move of an earlier version could leave two. The start cannot know which of them is whole."""

    async def story() -> None:
        world = World(1)
        machine = Machine(world, SETTINGS)
        client = await machine.restart()
        await client.create_topics([NewTopic(TOPIC, partitions=PARTITIONS, configs=SYNCED)])
        path = machine.partition(TOPIC).directory.path
        await machine.stop()
        disk = world.disk(path)
        whole, other = (f"{TOPIC}-0.{digit * 32}-future" for digit in "ab")
        disk.rename(f"{TOPIC}-0", whole)
        disk.make_directory(other)
        data = disk.read(f"{whole}/partition.metadata", 0, 1000)
        disk.write_file(f"{other}/partition.metadata", data)
        with pytest.raises(UserError, match=f"{path}: {whole} and {other} are both copies"):
            await machine.start()
        assert {whole, other} <= named(world, path)
        disk.remove_tree(other)
        await machine.start()
        assert f"{TOPIC}-0" in named(world, path)
        await machine.stop()

    run(story())


def test_a_partition_whose_move_ends_during_a_description_is_in_one_directory() -> None:
    async def story() -> None:
        machine, client = await begin({})
        await fill(machine, client, 3)
        hosted = machine.partition(TOPIC)
        assert await move(machine, 0, PATHS[2]) == 0
        await until(lambda: hosted.directory.path == PATHS[2])
        source, space = hosted.directory, hosted.directory.space

        async def late() -> tuple[int, int]:
            """The broker has looked at the move's target by now."""
            assert await move(machine, 0, PATHS[0]) == 0
            await until(lambda: hosted.directory.path == PATHS[0])
            return await space()

        source.space = late  # type: ignore[method-assign]
        shown = await describe(machine)
        here = [path for path, rows in shown.items() for _, is_copy, *_ in rows if not is_copy]
        assert here == [PATHS[0]]
        await machine.stop()

    run(story())
