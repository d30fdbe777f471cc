"""A fact that pages share: one request for many pages, and none that blocks the next after a failure."""

import asyncio
from traceback import walk_tb
from typing import cast

import pytest

from stratalog.console.kept import Kept
from stratalog.errors import Unavailable


class Clock:
    def __init__(self) -> None:
        self.ms = 0

    def now_ms(self) -> int:
        return self.ms

    steady_ms = now_ms

    def elapsed_ns(self) -> int:
        return self.ms * 1_000_000


def test_pages_at_the_same_time_share_one_request() -> None:
    calls = 0

    async def fetch() -> int:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0)
        return calls

    async def go() -> list[int]:
        kept = Kept(fetch, Clock(), 1000)
        return await asyncio.gather(*(kept.get() for _ in range(10)))

    assert asyncio.run(go()) == [1] * 10


def test_pages_that_wait_share_a_failure_and_the_next_one_tries_again() -> None:
    calls = 0

    async def fetch() -> int:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0)
        if calls == 1:
            raise Unavailable("no broker listens")
        return calls

    async def go() -> None:
        kept = Kept(fetch, Clock(), 1000)
        found = await asyncio.gather(*(kept.get() for _ in range(10)), return_exceptions=True)
        assert [str(one) for one in found] == ["no broker listens"] * 10
        assert len(list(walk_tb(cast("Unavailable", found[0]).__traceback__))) < 8
        assert await asyncio.gather(*(kept.get() for _ in range(10))) == [2] * 10

    asyncio.run(go())


def test_a_slow_fact_is_kept_for_longer() -> None:
    clock = Clock()
    calls = 0

    async def fetch() -> int:
        nonlocal calls
        calls += 1
        clock.ms += 500
        return calls

    async def go() -> None:
        kept = Kept(fetch, clock, 1000)
        assert await kept.get() == 1
        clock.ms += 20 * 500 - 1
        assert await kept.get() == 1
        clock.ms += 1
        assert await kept.get() == 2
        kept.forget()
        assert await kept.get() == 3

    asyncio.run(go())


def test_after_a_failure_the_next_page_asks_again() -> None:
    answers = iter([Unavailable("no broker"), "here"])

    async def fetch() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def go() -> None:
        kept = Kept(fetch, Clock(), 1000)
        with pytest.raises(Unavailable):
            await kept.get()
        assert await kept.get() == "here"

    asyncio.run(go())
