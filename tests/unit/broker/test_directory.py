"""Log directories and their threads: a drive that stalls or fails holds up its own partitions and nobody else's.

Method: real threads over simulated disks whose calls wait for an event the test sets.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.sim.disk import SimDisk

from stratalog.adapters.system import SystemWorkers
from stratalog.broker.directory import LogDirectory
from stratalog.errors import ErrorCode, Rejected
from stratalog.log.effects import Append, Read, Sync

TIMEOUT_S = 10


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await main()

    asyncio.run(bounded())


class StallingDisk(SimDisk):
    """Every write and cold read waits while `open` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()
        self.open.set()
        self.before = lambda _operation, _path: self.wait()

    def read(self, path: str, position: int, size: int) -> bytes:
        self.wait()
        return super().read(path, position, size)

    def try_read(self, path: str, position: int, size: int) -> bytes | None:
        return None

    def wait(self) -> None:
        assert self.open.wait(TIMEOUT_S)


@contextmanager
def stalled(disk: StallingDisk) -> Iterator[None]:
    disk.open.clear()
    try:
        yield
    finally:
        disk.open.set()


def append(position: int, data: bytes) -> list[Append]:
    return [Append("log", position, (data,))]


def test_a_stalled_drive_holds_up_its_own_writes_and_reads_only() -> None:
    async def main() -> None:
        slow_disk = StallingDisk()
        slow = LogDirectory("slow", slow_disk, SystemWorkers())
        quick = LogDirectory("quick", StallingDisk(), SystemWorkers())
        for directory in (slow, quick):
            await directory.write(append(0, b"before"))
        with stalled(slow_disk):
            write, read = slow.write(append(6, b"after")), slow.read("log", 0, 6)
            assert isinstance(read, asyncio.Future)
            for number in range(50):
                await quick.write(append(6 + number, b"x"))
                found = quick.read("log", 0, 6)
                assert isinstance(found, asyncio.Future)
                assert await found == b"before"
            assert not write.done()
            assert not read.done()
        await write
        assert await read == b"before"
        await slow.close()
        await quick.close()

    run(main)


def test_bytes_in_flight_are_bounded_and_room_comes_back() -> None:
    async def main() -> None:
        disk = StallingDisk()
        directory = LogDirectory("d", disk, SystemWorkers(), in_flight_bytes_max=100)
        with stalled(disk):
            writes = [directory.write(append(60 * number, b"x" * 60)) for number in range(2)]
            assert not directory.has_room
            waiting = asyncio.create_task(directory.room())
            await asyncio.sleep(0.02)
            assert not waiting.done()
        await waiting
        await asyncio.wait(writes)
        assert directory.in_flight_bytes == 0
        await directory.close()

    run(main)


def test_a_failed_write_takes_the_directory_offline_and_tells_once() -> None:
    async def main() -> None:
        disk = SimDisk()
        told = []
        directory = LogDirectory(
            "d",
            disk,
            SystemWorkers(),
            on_failed=lambda failed, error: told.append((failed.path, error.errno)),
        )
        await directory.write(append(0, b"fine"))

        def break_down(_operation: str, _path: str) -> None:
            raise OSError(5, "Input/output error")

        disk.before = break_down
        writes = [directory.write(append(4, b"lost")) for _ in range(3)]
        for write in writes:
            with pytest.raises(Rejected) as refused:
                await write
            assert refused.value.code is ErrorCode.kafka_storage_error
        with pytest.raises(Rejected):
            directory.write(append(4, b"never"))
        with pytest.raises(Rejected):
            directory.read("log", 0, 4)
        assert told == [("d", 5)]
        await directory.close()

    run(main)


def test_nothing_is_written_after_a_write_that_failed_though_the_drive_is_well_again() -> None:
    """Also not what was queued before anybody knew, in the same burst or in one behind it."""

    async def main() -> None:
        disk = StallingDisk()
        directory = LogDirectory("d", disk, SystemWorkers())
        failures = [OSError(5, "Input/output error")]

        def fail_once(_operation: str, _path: str) -> None:
            disk.wait()
            if failures:
                raise failures.pop()

        disk.before = fail_once
        with stalled(disk):
            writes = [directory.write([Append("first", 0, (b"lost",))])]
            writes.append(directory.write([Append("same burst", 0, (b"behind it",))]))
            for _ in range(5):
                await asyncio.sleep(0)  # the writing thread has both, and waits for the drive
            writes += [
                directory.write([Append(f"next {number}", 0, (b"behind it",))])
                for number in range(200)
            ]
        for write in writes:
            with pytest.raises(Rejected):
                await write
        assert not failures
        assert disk.list("") == []
        await directory.close()

    run(main)


def test_writes_are_performed_in_the_order_they_were_given() -> None:
    async def main() -> None:
        directory = LogDirectory("d", SimDisk(), SystemWorkers())
        done: list[int] = []
        for number in range(200):
            write = directory.write(append(number, b"%d" % (number % 10)))
            write.add_done_callback(lambda _write, number=number: done.append(number))
        await write
        assert done == list(range(200))

        def program() -> Any:
            return (yield Read("log", 0, 200))

        assert await directory.look(program()) == b"0123456789" * 20
        await directory.close()

    run(main)


def test_appends_of_one_turn_that_follow_each_other_are_one_write() -> None:
    async def main() -> None:
        disk = SimDisk()
        calls: list[tuple[str, str]] = []
        disk.before = lambda operation, path: calls.append((operation, path))
        directory = LogDirectory("d", disk, SystemWorkers())
        writes = [directory.write(append(2 * number, b"%02d" % number)) for number in range(5)]
        writes += [
            directory.write([Append("log", 10, (b"10",)), Append("other", 0, ())]),
            directory.write(
                [Append("other", 0, (b"a",)), Sync("other"), Append("other", 1, (b"b",))]
            ),
            directory.write(append(12, b"end")),
            directory.write(append(0, b"not behind it")),
        ]
        await asyncio.wait(writes)
        assert calls == [
            ("append", "log"),
            ("append", "other"),
            ("append", "other"),
            ("sync", "other"),
            ("append", "other"),
            ("append", "log"),
            ("append", "log"),
        ]
        assert disk.read("log", 0, 100) == b"not behind itnd"
        assert disk.read("other", 0, 100) == b"ab"
        await directory.close()

    run(main)


def test_a_failure_takes_what_shared_its_write_and_what_is_behind_it() -> None:
    async def main() -> None:
        disk = SimDisk()

        def break_down(_operation: str, path: str) -> None:
            if path == "bad":
                raise OSError(28, "No space left on device")

        disk.before = break_down
        directory = LogDirectory("d", disk, SystemWorkers())
        writes = [
            directory.write(append(0, b"here")),
            directory.write([*append(4, b"too"), Append("bad", 0, (b"1",))]),
            directory.write([Append("bad", 1, (b"2",))]),
            directory.write(append(7, b"never")),
        ]
        await asyncio.wait(writes)
        assert [write.exception() is None for write in writes] == [True, False, False, False]
        assert disk.read("log", 0, 100) == b"heretoo"
        await directory.close()

    run(main)
