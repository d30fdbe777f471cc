"""Goal: a fetch that waits is served once, when what it misses has come or its time is over, and leaves nothing.

Method: the purgatory alone on a virtual clock; partitions are whatever has `watching`.
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
    """Fetches by name that wait; `served` are their names and times, in order."""

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
    async def told() -> None:
        await main(Story())

    run(told())


def test_fetches_with_enough_bytes_are_served_in_the_order_of_waiting_and_in_one_go() -> None:
    async def main(told: Story) -> None:
        one, other = Partition(), Partition()
        waits = [
            told.wait("a", [one], 10, 500),
            told.wait("b", [one, other], 15, 500),
            told.wait("c", [one], 100, 500),
        ]
        one.grow(9)
        await asyncio.sleep(0.1)
        assert told.served == []
        one.grow(1)
        other.grow(5)
        assert [await wait for wait in waits[:2]] == ["a", "b"]
        assert told.shared[0] is told.shared[1]
        assert not other.watching
        assert list(one.watching) == [waits[2]]
        assert await waits[2] == "c"

    story(main)


@pytest.mark.parametrize("ms", [1, 4, 5, 500, 3_600_000])
def test_a_fetch_without_records_is_answered_when_its_time_is_over_and_not_before(ms: int) -> None:
    async def main(told: Story) -> None:
        partition = Partition()
        await asyncio.sleep(0.123)
        wait = told.wait("late", [partition], 1, ms)
        await wait
        assert 0 <= told.served[0][1] - 0.123 - ms / 1000 <= 0.005
        assert not partition.watching
        assert len(told.purgatory) == 0

    story(main)


def test_times_end_in_their_order_whatever_the_order_of_waiting() -> None:
    async def main(told: Story) -> None:
        times = [500, 20, 70, 20, 300]
        waits = [told.wait(str(ms), [Partition()], 1, ms) for ms in times]
        waits[2].wake()
        await asyncio.wait(waits)
        assert [name for name, _ in told.served] == ["70", "20", "20", "300", "500"]

    story(main)


def test_a_cancelled_wait_is_not_served_and_not_remembered() -> None:
    async def main(told: Story) -> None:
        partition = Partition()
        for ms in range(100, 100_000, 10):
            told.wait("gone", [partition], 1, ms).cancel()
        assert not partition.watching
        assert len(told.purgatory) == 0
        assert len(told.purgatory._ticks) < 2000
        woken = told.wait("woken, then gone", [partition], 1, 500)
        stays = told.wait("stays", [partition], 1, 500)
        partition.grow(1)
        woken.cancel()
        await stays
        assert [name for name, _ in told.served] == ["stays"]

    story(main)


def test_a_fetch_that_cannot_be_served_gets_an_error_and_the_others_are_served() -> None:
    async def main(told: Story) -> None:
        def fail(_wait: FetchWait, _shared: Shared) -> None:
            raise RuntimeError("a bug")

        partition = Partition()
        broken = FetchWait(told.purgatory, 1, [partition], fail)
        stays = told.wait("stays", [partition], 1, 500)
        partition.grow(1)
        assert await stays == "stays"
        with pytest.raises(RuntimeError, match="a bug"):
            await broken

    story(main)
