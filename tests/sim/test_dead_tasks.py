"""A task or a callback that dies by a bug fails the run of the simulation; those of a killed node do not."""

import asyncio
from typing import Any

import pytest
from tests.sim.loop import run
from tests.sim.machine import Machine
from tests.sim.world import World

from stratalog.broker.partitions.cleaning import Cleaners


def test_a_cleaner_that_dies_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async def choose(_self: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Cleaners, "_choose", choose)

    async def story() -> None:
        machine = Machine(World(1))
        await machine.start()
        await asyncio.sleep(1)
        await machine.stop()

    with pytest.raises(BaseExceptionGroup) as found:
        run(story())
    assert found.group_contains(ZeroDivisionError)


def test_a_task_that_no_code_awaits_fails_the_run() -> None:
    async def dies() -> None:
        raise ZeroDivisionError

    def begin() -> None:
        _forgotten = asyncio.get_running_loop().create_task(dies())

    async def story() -> None:
        asyncio.get_running_loop().call_soon(begin)
        await asyncio.sleep(1)

    with pytest.raises(BaseExceptionGroup) as found:
        run(story())
    assert found.group_contains(ZeroDivisionError)


def test_a_callback_that_raises_fails_the_run() -> None:
    async def story() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    with pytest.raises(BaseExceptionGroup) as found:
        run(story())
    assert found.group_contains(ZeroDivisionError)


def test_the_end_of_a_killed_node_is_no_bug() -> None:
    async def story() -> None:
        machine = Machine(World(1))
        await machine.start()
        await asyncio.sleep(1)
        await machine.kill()

    run(story())


def test_a_killed_node_gives_no_reason_to_stop() -> None:
    async def story() -> None:
        machine = Machine(World(1))
        node = await machine.start()
        process = machine.process

        async def last_words() -> None:
            try:
                await asyncio.sleep(10)
            finally:
                node._on_fatal("cancelled")
                machine._broken(process, ZeroDivisionError())

        ending = process.run(last_words())
        await asyncio.sleep(1)
        await machine.kill()
        assert ending.done()
        assert not machine.reasons_to_stop
        assert not machine.broken_tasks

    run(story())
