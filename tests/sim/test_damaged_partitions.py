"""A partition with a damaged identity file is offline; the node leaves its directory alone and logs its path."""

from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.sim.disk import SimDisk, paths
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.records import batch, read_all
from tests.sim.world import START_MS, World

from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode, Rejected

FILE = "kept-0/partition.metadata"
DAMAGES = {
    "junk": b"\xff\x00junk",
    "empty": b"",
    "another id": b"version: 0\ntopic_id: 8fa9198b-cd64-4e6c-af34",
    "the id of another topic": b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAEg",
    "missing": None,
}


def directory(disk: SimDisk, name: str) -> dict[str, bytes]:
    return {path: disk.read(path, 0, 1 << 20) for path in paths(disk, name)}


async def stopped(world: World, settings: dict[str, str] | None = None) -> Machine:
    """Return a cleanly stopped node with a record in each of two topics."""
    machine = Machine(world, settings)
    client = await machine.restart()
    await client.create_topics([NewTopic(name, 1) for name in ("kept", "other")])
    for name in ("kept", "other"):
        await client.produce(name, 0, batch([name.encode()], START_MS))
    await machine.stop()
    return machine


async def refusals(client: Client) -> set[ErrorCode]:
    """Return the error codes that a producer and a consumer of the damaged partition get."""
    codes = set()
    for call in (
        client.produce("kept", 0, batch([b"new"], START_MS)),
        client.fetch("kept", 0, 0),
    ):
        with pytest.raises(Rejected) as refused:
            await call
        codes.add(refused.value.code)
    return codes


def errors(logged: list[Any]) -> list[str]:
    return [event["reason"] for event in logged if event["log_level"] == "error"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_partition_with_a_damaged_identity_is_offline_and_unchanged(
    damage: str,
) -> None:
    async def story() -> None:
        world = World(1)
        machine = await stopped(world)
        disk = world.disks["/data"]
        sound = disk.read(FILE, 0, 1000)
        data = DAMAGES[damage]
        disk.unlink(FILE)
        if data is not None:
            disk.write_file(FILE, data)
        before = directory(disk, "kept-0")
        for _start in range(2):
            with capture_logs() as logged:
                client = await machine.restart()
            (reason,) = errors(logged)
            assert f"/data/{FILE}" in reason
            assert await refusals(client) == {ErrorCode.leader_not_available}
            assert await read_all(client, "other", 0, 1) == {0: b"other"}
            await machine.stop()
            assert directory(disk, "kept-0") == before
        disk.write_file(FILE, sound)
        client = await machine.restart()
        assert await read_all(client, "kept", 0, 1) == {0: b"kept"}
        await machine.stop()

    run(story())


def test_a_directory_with_another_id_is_ignored_if_the_partition_is_elsewhere() -> None:
    async def story() -> None:
        world = World(1)
        machine = await stopped(world, {"log.dirs": "/data,/more"})
        here = next(path for path in ("/data", "/more") if paths_of(world, path))
        there = ({"/data", "/more"} - {here}).pop()
        disk = world.disks[there]
        disk.make_directory("kept-0")
        disk.append(FILE, 0, [b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAEg"])
        disk.append(f"kept-0/{0:020}.log", 0, [b"old"])
        with capture_logs() as logged:
            client = await machine.restart()
        assert not errors(logged)
        assert await read_all(client, "kept", 0, 1) == {0: b"kept"}
        assert disk.read(f"kept-0/{0:020}.log", 0, 10) == b"old"
        await machine.stop()

    run(story())


def paths_of(world: World, path: str) -> list[str]:
    return list(paths(world.disks[path], "kept-0"))


@pytest.mark.parametrize("seed", range(5))
def test_a_recreated_topic_does_not_overwrite_a_damaged_deleted_one(seed: int) -> None:
    async def story() -> None:
        world = World(seed)
        machine = await stopped(world)
        disk = world.disks["/data"]
        log = disk.read(f"kept-0/{0:020}.log", 0, 1000)
        disk.write_file(FILE, b"junk")
        client = await machine.restart()
        await client.delete_topics(["kept"])
        await client.create_topics([NewTopic("kept", 1)])
        await client.produce("kept", 0, batch([b"new"], START_MS))
        assert await read_all(client, "kept", 0, 1) == {0: b"new"}
        await machine.kill()
        (aside,) = (one.name for one in disk.list("") if one.name.endswith("-stray"))
        assert disk.read(f"{aside}/{0:020}.log", 0, 1000) == log
        client = await machine.restart()
        assert await read_all(client, "kept", 0, 1) == {0: b"new"}
        assert not machine.broken_tasks
        await machine.stop()

    run(story())
