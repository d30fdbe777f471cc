"""Files and directories that are missing: one error names each, and no offset is assigned twice.

Method: a node is stopped cleanly or killed, a test removes a file of a partition's log, and the node starts again. The
remaining records are read, and new ones get offsets above all earlier ones.
"""

from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.sim.disk import SimDisk
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.records import batch, read_all
from tests.sim.world import START_MS, World

from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.errors import Rejected
from stratalog.wire.ids import TopicPartition

TOPIC = "t"
CONFIGS = {"segment.ms": "250", "index.interval.bytes": "0", "retention.ms": "-1"}
COUNT = 9
"""Records, three to a segment."""


def log(base: int) -> str:
    return f"{TOPIC}-0/{base:020}.log"


async def filled(machine: Machine, configs: dict[str, str] | None = None) -> Client:
    client = await machine.restart()
    await client.create_topics([NewTopic(TOPIC, 1, configs={**CONFIGS, **(configs or {})})])
    for number in range(COUNT):
        await client.produce(TOPIC, 0, batch([b"%d" % number], START_MS + 100 * number))
    return client


async def offsets(client: Client) -> tuple[int, int]:
    """Return the log's start and end, as clients see them."""
    found = [await client.list_offsets({TopicPartition(TOPIC, 0): one}) for one in (-2, -1)]
    return found[0][TopicPartition(TOPIC, 0)].offset, found[1][TopicPartition(TOPIC, 0)].offset


def errors(logged: list[Any]) -> list[tuple[str, str]]:
    return [(one["file"], one["reason"]) for one in logged if one["log_level"] == "error"]


Take = Callable[[SimDisk], None]
CASES: dict[str, tuple[Take, str, str, list[int], int]] = {
    "the directory": (
        lambda disk: disk.remove_tree(f"{TOPIC}-0"),
        f"{TOPIC}-0",
        "offsets 0 to 8",
        [],
        COUNT,
    ),
    "the active segment's bytes": (
        lambda disk: disk.truncate(log(6), 0),
        log(6),
        "offsets 6 to 8",
        [0, 1, 2, 3, 4, 5],
        0,
    ),
    "the active segment": (
        lambda disk: disk.unlink(log(6)),
        log(6),
        "offsets 6 to 8",
        [0, 1, 2, 3, 4, 5],
        0,
    ),
    "a closed segment": (
        lambda disk: disk.unlink(log(3)),
        log(3),
        "offsets 3 to 5",
        [0, 1, 2, 6, 7, 8],
        0,
    ),
    "the first segment": (
        lambda disk: disk.unlink(log(0)),
        log(0),
        "offsets 0 to 2",
        [3, 4, 5, 6, 7, 8],
        3,
    ),
    "a closed segment's bytes": (
        lambda disk: disk.truncate(log(3), 0),
        log(3),
        "offsets 3 to 5",
        [0, 1, 2, 6, 7, 8],
        0,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_missing_file_after_a_clean_stop_is_named_and_its_offsets_are_not_assigned_again(
    case: str,
) -> None:
    take, file, missing, left, start = CASES[case]

    async def story() -> None:
        world = World(1)
        machine = Machine(world)
        await filled(machine)
        segments = machine.partition(TOPIC).log.segments
        assert [one.base_offset for one in segments] == [0, 3, 6]
        await machine.stop()
        take(world.disks["/data"])
        with capture_logs() as logged:
            client = await machine.restart()
        ((path, reason),) = errors(logged)
        assert path == f"/data/{file}"
        assert missing in reason
        assert await offsets(client) == (start, COUNT)
        produced = await client.produce(TOPIC, 0, batch([b"new"], START_MS))
        assert produced.base_offset == COUNT
        expected = {number: b"%d" % number for number in left} | {COUNT: b"new"}
        for stop in (machine.kill, machine.stop):
            assert await read_all(client, TOPIC, start, COUNT + 1) == expected
            await stop()
            with capture_logs() as logged:
                client = await machine.restart()
            assert not errors(logged), "it is known by now"
        assert not machine.broken_tasks
        await machine.stop()

    run(story())


def test_a_kill_cuts_nothing_below_the_recovery_point() -> None:
    """Damage there is no torn tail: the broker keeps and serves the batches behind it."""

    async def story() -> None:
        world = World(1)
        machine = Machine(world)
        client = await filled(machine, {"segment.ms": "100000", "flush.messages": "1"})
        await machine.broker.hosting.checkpoints.write(machine.partition(TOPIC).directory)
        await client.produce(TOPIC, 0, batch([b"last"], START_MS))
        await machine.kill()
        disk = world.disks["/data"]
        size = disk.size(log(0))
        disk.flip(log(0), size // 2)
        with capture_logs() as logged:
            client = await machine.restart()
        ((path, reason),) = errors(logged)
        assert path == f"/data/{log(0)}"
        assert "are damaged: offsets" in reason
        assert disk.size(log(0)) == size
        assert await offsets(client) == (0, COUNT + 1)
        found: dict[int, bytes] = {}
        for offset in range(COUNT + 1):
            try:
                found |= await read_all(client, TOPIC, offset, offset + 1)
            except (Rejected, AssertionError):
                continue
        assert found.pop(COUNT) == b"last"
        assert len(found) >= COUNT - 1
        await machine.stop()

    run(story())
