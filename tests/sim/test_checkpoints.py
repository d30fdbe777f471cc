"""Checkpoint files that are collected in several turns, while topics come and go."""

from collections.abc import Generator

import pytest
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.world import World

from stratalog.broker.partitions import checkpointing
from stratalog.broker.storage.directory import LogDirectory
from stratalog.broker.storage.survey import CheckpointLines
from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode


def finish(steps: Generator[bool, None, CheckpointLines | None]) -> set[str] | None:
    """Run a collection to its end; return the topics that its lines name."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            lines: CheckpointLines | None = end.value
            if lines is None:
                return None
            return {line.split()[0] for file in lines.files() for line in file.lines}


@pytest.fixture(autouse=True)
def one_partition_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointing, "_PARTITIONS_A_STEP", 1)


async def start() -> tuple[Machine, Client, LogDirectory]:
    machine = Machine(World(1))
    client = await machine.restart()
    assert [one.error for one in await client.create_topics([NewTopic("t", 3)])] == [ErrorCode.none]
    return machine, client, machine.partition("t").directory


async def create(client: Client, name: str) -> None:
    (created,) = await client.create_topics([NewTopic(name, 3)])
    assert created.error is ErrorCode.none


async def delete(client: Client, name: str) -> None:
    (deleted,) = await client.delete_topics([name])
    assert deleted.error is ErrorCode.none


def test_a_topic_that_is_deleted_meanwhile_is_in_no_file() -> None:
    async def story() -> None:
        machine, client, directory = await start()
        checkpoints = machine.broker.hosting.checkpoints
        await checkpoints.write(directory)
        await create(client, "brief")  # the directory's files do not name it
        steps = checkpoints.collect(directory)
        for _ in range(5):
            assert next(steps)
        await delete(client, "brief")
        assert finish(steps) == {"t"}
        await machine.stop()

    run(story())


def test_files_that_were_collected_later_are_not_replaced_by_earlier_ones() -> None:
    async def story() -> None:
        machine, client, directory = await start()
        checkpoints = machine.broker.hosting.checkpoints
        await create(client, "known")
        await checkpoints.write(directory)
        steps = checkpoints.collect(directory)
        assert next(steps)
        await delete(client, "known")  # this turn collects too, because the files name the topic
        assert finish(steps) is None
        assert finish(checkpoints.collect(directory)) == {"t"}
        await machine.stop()

    run(story())


def test_a_topic_that_is_deleted_and_created_again_is_loaded_after_a_clean_stop() -> None:
    async def story() -> None:
        machine, client, directory = await start()
        await machine.broker.hosting.checkpoints.write(directory)
        await delete(client, "t")
        await create(client, "t")
        await machine.stop()
        await machine.restart()
        assert not machine.broker.hosting.damaged
        assert machine.partition("t").log.log_end_offset == 0
        await machine.stop()

    run(story())
