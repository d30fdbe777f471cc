"""Goal: a waiting fetch is served once, when its missing bytes arrive or its time is over, and then removed.

Method: the purgatory alone on a virtual clock, with stand-ins for partitions that have only `watching`.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.sim.loop import run

from stratalog.broker.partitions.purgatory import FetchWait, Purgatory, Shared


class Partition:
    def __init__(self) -> None:
        self.watching: dict[FetchWait, None] = {}

    def grow(self, size: int) -> None:
        for one in self.watching:
            one.grown(size)


class Story:
    """Waiting fetches with names; `served` has their names and times, in order."""

    def __init__(self) -> None:
        self.purgatory = Purgatory()
        self.loop = asyncio.get_running_loop()
        self.served: list[tuple[str, float]] = []
        self.shared: list[Shared] = []

    def wait(self, name: str, partitions: list[Partition], missing: int, ms: int) -> FetchWait:
        def serve(wait: FetchWait, shared: Shared) -> None:
            self.served.append((name, self.loop.time()))
            self.shared.append(shared)
            wait.set_result(name)

        wait = FetchWait(self.purgatory, missing, partitions, serve)
        self.purgatory.hold(wait, ms)
        return wait


def story(main: Callable[[Story], Coroutine[Any, Any, None]]) -> None:
    async def played() -> None:
        await main(Story())

    run(played())


def test_fetches_with_enough_bytes_are_served_together_in_waiting_order() -> None:
    async def main(fetches: Story) -> None:
        one, other = Partition(), Partition()
        waits = [
            fetches.wait("a", [one], 10, 500),
            fetches.wait("b", [one, other], 15, 500),
            fetches.wait("c", [one], 100, 500),
        ]
        one.grow(9)
        await asyncio.sleep(0.1)
        assert fetches.served == []
        one.grow(1)
        other.grow(5)
        assert [await wait for wait in waits[:2]] == ["a", "b"]
        assert fetches.shared[0] is fetches.shared[1]
        assert not other.watching
        assert list(one.watching) == [waits[2]]
        assert await waits[2] == "c"

    story(main)


@pytest.mark.parametrize("ms", [1, 4, 5, 500, 3_600_000])
def test_a_fetch_without_records_is_answered_when_its_time_is_over_and_not_before(ms: int) -> None:
    async def main(fetches: Story) -> None:
        partition = Partition()
        await asyncio.sleep(0.123)
        wait = fetches.wait("late", [partition], 1, ms)
        await wait
        assert 0 <= fetches.served[0][1] - 0.123 - ms / 1000 <= 0.005
        assert not partition.watching
        assert len(fetches.purgatory) == 0

    story(main)


def test_fetches_time_out_in_the_order_of_their_deadlines() -> None:
    async def main(fetches: Story) -> None:
        times = [500, 20, 70, 20, 300]
        waits = [fetches.wait(str(ms), [Partition()], 1, ms) for ms in times]
        waits[2].wake()
        await asyncio.wait(waits)
        assert [name for name, _ in fetches.served] == ["70", "20", "20", "300", "500"]

    story(main)


def test_a_cancelled_wait_is_removed_and_not_served() -> None:
    async def main(fetches: Story) -> None:
        partition = Partition()
        for ms in range(100, 100_000, 10):
            fetches.wait("gone", [partition], 1, ms).cancel()
        assert not partition.watching
        assert len(fetches.purgatory) == 0
        assert len(fetches.purgatory._ticks) < 2000
        woken = fetches.wait("woken, then gone", [partition], 1, 500)
        stays = fetches.wait("stays", [partition], 1, 500)
        partition.grow(1)
        woken.cancel()
        await stays
        assert [name for name, _ in fetches.served] == ["stays"]

    story(main)


def test_fetches_that_were_served_early_need_no_timers_of_their_own() -> None:
    async def main(fetches: Story) -> None:
        partition = Partition()
        began, ends = fetches.loop.time(), []
        end = fetches.purgatory._end
        fetches.purgatory._end = lambda: (ends.append(fetches.loop.time()), end())
        for _ in range(300):
            wait = fetches.wait("served", [partition], 1, 500)
            await asyncio.sleep(0.01)
            partition.grow(1)
            assert await wait == "served"
        stays = fetches.wait("stays", [partition], 1, 500)
        begun = fetches.loop.time()
        await stays
        assert 0 <= fetches.loop.time() - begun - 0.5 <= 0.005
        assert len(ends) <= 2 * (fetches.loop.time() - began) / 0.5, ends

    story(main)


def test_a_fetch_that_cannot_be_served_gets_an_error_and_the_others_are_served() -> None:
    async def main(fetches: Story) -> None:
        def fail(_wait: FetchWait, _shared: Shared) -> None:
            raise RuntimeError("a bug")

        partition = Partition()
        broken = FetchWait(fetches.purgatory, 1, [partition], fail)
        stays = fetches.wait("stays", [partition], 1, 500)
        partition.grow(1)
        assert await stays == "stays"
        with pytest.raises(RuntimeError, match="a bug"):
            await broken

    story(main)
