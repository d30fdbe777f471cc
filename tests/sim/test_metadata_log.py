"""The metadata log on one node's disk: what a truncation meets there. Method: a started node in virtual time."""

import asyncio

import pytest
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.world import World

from stratalog.broker.coordination.metadata_log import MetadataLog
from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.errors import Rejected


async def two_segments(machine: Machine) -> tuple[Client, MetadataLog, int]:
    """Return a client, the node's metadata log, and where the first of its two segments ends."""
    client = await machine.restart()
    await client.create_topics([NewTopic("first", 1)])
    quorum = machine.node._quorum
    assert quorum is not None
    log = quorum.log
    end = log.end_offset
    await machine.process.run(log.perform(tuple(log.log.roll(0))))
    await client.create_topics([NewTopic("second", 1)])
    assert [one.base_offset for one in log.log.segments] == [0, end]
    return client, log, end


def test_a_truncation_needs_no_index_file() -> None:
    """The index of a closed segment is read again once the segment is the last one; it can be made of the log."""

    async def tell() -> None:
        machine = Machine(World(1))
        _client, log, end = await two_segments(machine)
        disk = machine.host.disk("/data")
        disk.unlink(log.log.segments[0].index_path)
        await machine.process.run(log.truncate(end - 1))
        assert log.end_offset < end
        assert [one.base_offset for one in log.log.segments] == [0]
        await machine.kill()

    run(tell())


def test_a_truncation_on_a_failed_directory_is_refused_and_changes_nothing() -> None:
    async def tell() -> None:
        machine = Machine(World(1))
        _client, log, end = await two_segments(machine)
        program = log.log.truncate_to(end - 1, 0)
        log.directory.failure = OSError(5, "the drive is gone")
        with pytest.raises(Rejected, match="the drive is gone"):
            await machine.process.run(log._rewrite(program))
        assert [one.base_offset for one in log.log.segments] == [0, end]
        await machine.kill()
        await asyncio.sleep(0)

    run(tell())
