"""Partitions and the garbage collector: it never looks at many of them, and a deleted one needs none."""

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.world import World

from stratalog.adapters import memory
from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode


@pytest.fixture
def own_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.unfreeze()
    gc.enable()


@pytest.mark.usefixtures("own_collector")
def test_new_partitions_are_taken_out_of_the_collectors_sight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        machine = Machine(World(1))
        client = await machine.restart()
        others = list(gc.callbacks)
        monkeypatch.setattr(memory, "_SPARED_AT_ONCE", 5)
        with memory.spare_partitions(machine.node.partitions):
            before = gc.get_freeze_count()
            for name, partitions in (("few", 4), ("more", 1)):
                gc.collect(0)
                assert gc.get_freeze_count() == before
                (created,) = await client.create_topics([NewTopic(name, partitions)])
                assert created.error is ErrorCode.none
            gc.collect(0)
            assert gc.get_freeze_count() > before
        assert gc.callbacks == others
        await machine.stop()

    run(story())


@pytest.mark.usefixtures("own_collector")
def test_a_deleted_partition_is_freed_without_the_collector() -> None:
    async def story() -> None:
        machine = Machine(World(1))
        client = await machine.restart()
        await client.create_topics([NewTopic("t", 1)])
        hosted = machine.partition("t")
        gone: list[weakref.ref[Any]] = [weakref.ref(hosted), weakref.ref(hosted.log)]
        del hosted
        (deleted,) = await client.delete_topics(["t"])
        assert deleted.error is ErrorCode.none
        await asyncio.sleep(2)
        assert [one() for one in gone] == [None, None]
        await machine.stop()

    run(story())
