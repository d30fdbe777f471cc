"""A loop that is closed while tasks begin."""

import asyncio
import gc
import warnings
from collections.abc import Awaitable

import uvloop

from stratalog.adapters.loop_thread import LoopThread

seen: list[str] = []


async def inner() -> None:
    seen.append("began")
    try:
        await asyncio.sleep(60)
    finally:
        seen.append("ended")


async def outer(work: Awaitable[None]) -> None:
    await work


def test_a_task_that_begins_in_the_last_turn_awaits_its_coroutine() -> None:
    seen.clear()
    thread = LoopThread("test", uvloop.new_event_loop)

    async def end() -> None:
        loop = asyncio.get_running_loop()
        loop.stop()
        thread.last = loop.create_task(outer(inner()))  # type: ignore[attr-defined]

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        thread.begin(end())
        thread._thread.join(10)
        gc.collect()
    assert not thread._thread.is_alive()
    assert seen == ["began", "ended"]
    assert [str(one.message) for one in warned] == []


def test_a_task_that_a_cancelled_one_begins_is_cancelled_too() -> None:
    seen.clear()
    thread = LoopThread("test", uvloop.new_event_loop)

    async def again() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            thread.last = asyncio.get_running_loop().create_task(inner())  # type: ignore[attr-defined]

    async def begin() -> None:
        thread.first = asyncio.get_running_loop().create_task(again())  # type: ignore[attr-defined]
        await asyncio.sleep(0)

    thread.run(begin(), 10)
    thread.close()
    assert seen == ["began", "ended"]
