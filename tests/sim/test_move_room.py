"""Goal: a move to a drive without room fails alone; the drive keeps serving its partitions.

Method: as `test_moves.py`, with drives that are small, are filled by others meanwhile, or refuse a write as full.
"""

import asyncio
import errno

import pytest
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.records import batch, read_all
from tests.sim.test_moves import PATHS, TOPIC, begin, describe, elsewhere, fill, move, named, until
from tests.sim.world import START_MS

from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode

MIB = 1 << 20
SPARE = 64 * MIB
NEIGHBOUR = "neighbour"
"""A topic with a partition in each directory, which must not notice anything."""


async def started() -> tuple[Machine, Client, dict[int, bytes], str]:
    """A machine with 8 MB in our partition; where that is to go."""
    machine, client = await begin({"num.partitions": "1"}, **{"flush.messages": "1"})
    (made,) = await client.create_topics([NewTopic(NEIGHBOUR, partitions=len(PATHS))])
    assert made.error == ErrorCode.none
    written = await fill(machine, client, 8, size=1_000_000)
    return machine, client, written, elsewhere(machine)


def copies(machine: Machine) -> list[str]:
    """The directories of our topic, whatever they are called by now."""
    return [name for path in PATHS for name in named(machine.world, path)]


async def check(machine: Machine, client: Client, written: dict[int, bytes], source: str) -> None:
    """Check that the whole partition is in its old place, no copy is left, and every directory takes appends."""
    assert machine.partition(TOPIC).directory.path == source
    assert await read_all(client, TOPIC, 0, len(written)) == written
    await until(lambda: copies(machine) == [f"{TOPIC}-0"])
    assert not any(one.failure for one in machine.node.directories)
    for index in range(len(PATHS)):
        await client.produce(NEIGHBOUR, index, batch([b"x"], START_MS))
    assert {machine.partition(NEIGHBOUR, at).directory.path for at in range(len(PATHS))} == {*PATHS}
    assert not machine.broken_tasks


@pytest.mark.parametrize("lacking", [1, 8 * MIB])
def test_a_move_to_a_drive_that_is_too_small_is_refused(
    lacking: int, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story() -> None:
        machine, client, written, target = await started()
        source = machine.partition(TOPIC).directory.path
        disk = machine.world.disk(target)
        needed = machine.partition(TOPIC).log.size + SPARE
        disk.free = needed - lacking
        assert await move(machine, 0, target) == ErrorCode.kafka_storage_error
        await check(machine, client, written, source)
        disk.free = needed
        assert await move(machine, 0, target) == ErrorCode.none
        # Moves in progress count: the drive has no room for this partition twice, and needs none.
        assert await move(machine, 0, target) == ErrorCode.none
        disk.free = 1 << 40
        await until(lambda: machine.partition(TOPIC).directory.path == target)
        assert await read_all(client, TOPIC, 0, len(written)) == written
        await machine.stop()

    run(story())
    assert "move refused" in capsys.readouterr().out


def test_room_that_other_moves_take_is_not_given_twice() -> None:
    async def story() -> None:
        machine, client, _written, target = await started()
        disk = machine.world.disk(target)
        (made,) = await client.create_topics([NewTopic("second", partitions=1)])
        assert made.error == ErrorCode.none
        second = machine.partition("second")
        size = machine.partition(TOPIC).log.size
        for number in range(8):
            await client.produce("second", 0, batch([b"%d" % number * 500_000], START_MS))
        if second.directory.path == target:
            target = next(
                p for p in PATHS if p not in (target, machine.partition(TOPIC).directory.path)
            )
            disk = machine.world.disk(target)
        disk.free = size + SPARE + second.log.size // 2
        machine.be_slow(1.0)
        assert await move(machine, 0, target) == ErrorCode.none
        with pytest.raises(Exception, match="of them for other moves") as caught:
            await machine.broker.moves.ask("second", 0, target)
        assert caught.value.code is ErrorCode.kafka_storage_error  # type: ignore[attr-defined]
        await machine.stop()

    run(story())


@pytest.mark.parametrize("how", ["others fill it", "the drive says so", "at the first file"])
def test_a_move_fails_alone_when_the_room_runs_out(how: str) -> None:
    async def story() -> None:
        machine, client, written, target = await started()
        source = machine.partition(TOPIC).directory.path
        disk = machine.world.disk(target)
        appends = 0

        def full(operation: str, path: str) -> None:
            nonlocal appends
            if "-future" not in path:
                return
            appends += operation == "append"
            first = how == "at the first file" and operation == "make_directory"
            says_so = how == "the drive says so" and operation == "append" and appends >= 4
            if first or says_so:
                raise OSError(errno.ENOSPC, "No space left on device", path)
            if how == "others fill it" and appends == 4:
                disk.free = SPARE - 1

        before, disk.before = disk.before, full
        assert await move(machine, 0, target) == ErrorCode.none
        await until(lambda: not any(machine.broker.moves.to(o) for o in machine.node.directories))
        await check(machine, client, written, source)
        assert all(
            not future for rows in (await describe(machine)).values() for _, future, *_ in rows
        )
        disk.before, disk.free = before, 1 << 40
        assert await move(machine, 0, target) == ErrorCode.none
        await until(lambda: machine.partition(TOPIC).directory.path == target)
        assert await read_all(client, TOPIC, 0, len(written)) == written
        await machine.stop()

    run(story())


def test_a_drive_that_breaks_during_a_copy_is_offline_all_the_same() -> None:
    async def story() -> None:
        machine, _client, _written, target = await started()
        disk = machine.world.disk(target)

        def broken(operation: str, path: str) -> None:
            if operation == "append" and "-future" in path:
                raise OSError(errno.EIO, "Input/output error", path)

        disk.before = broken
        assert await move(machine, 0, target) == ErrorCode.none
        await until(lambda: not any(machine.broker.moves.to(o) for o in machine.node.directories))
        assert [one.path for one in machine.node.directories if one.failure] == [target]
        await asyncio.sleep(1)
        await machine.stop()

    run(story())
