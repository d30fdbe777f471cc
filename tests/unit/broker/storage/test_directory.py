"""Log directories and their threads: a drive that stalls or fails affects only its own partitions.

Method: real threads over simulated disks; each call waits for an event that the test sets.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import pytest
from tests.sim.disk import SimDisk

from stratalog.adapters.local_disk import LocalDisk
from stratalog.adapters.system import SystemWorkers
from stratalog.broker.storage.directory import LogDirectory
from stratalog.broker.storage.timed_disk import TimedDisk
from stratalog.errors import ErrorCode, Rejected
from stratalog.log.effects import Append, Effect, Read, Sync

TIMEOUT_S = 10


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await main()

    asyncio.run(bounded())


class StallingDisk(SimDisk):
    """A disk that makes every write and cold read wait while `open` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()
        self.open.set()
        self.before = lambda _operation, _path: self.wait()

    def read(self, path: str, position: int, size: int) -> bytes:
        self.wait()
        return super().read(path, position, size)

    def try_read(self, path: str, position: int, size: int) -> bytearray | None:
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


def test_a_stalled_drive_delays_only_its_own_writes_and_reads() -> None:
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


def test_no_append_waits_for_a_concurrent_sync() -> None:
    class SlowToSync(SimDisk):
        def __init__(self) -> None:
            super().__init__()
            self.may_sync = threading.Event()

        def sync(self, path: str) -> None:
            assert self.may_sync.wait(TIMEOUT_S)
            super().sync(path)

    async def main() -> None:
        disk = SlowToSync()
        directory = LogDirectory("d", disk, SystemWorkers())
        await directory.write(append(0, b"closed"))
        syncing = directory.perform_beside([Sync("log")], unless=lambda: False)
        await directory.write(append(6, b"on"))
        assert not syncing.done()
        disk.may_sync.set()
        await syncing
        with pytest.raises(FileNotFoundError):
            await directory.perform_beside([Sync("gone")], unless=lambda: False)
        await directory.perform_beside([Sync("gone")], unless=lambda: True)
        directory.check()
        await directory.close()

    run(main)


def test_bytes_in_flight_are_bounded_and_freed_after_the_write() -> None:
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


def test_a_failed_write_takes_the_directory_offline_and_reports_once() -> None:
    async def main() -> None:
        disk = SimDisk()
        failures = []
        directory = LogDirectory(
            "d",
            disk,
            SystemWorkers(),
            on_failed=lambda failed, error: failures.append((failed.path, error.errno)),
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
        assert failures == [("d", 5)]
        await directory.close()

    run(main)


def test_no_write_follows_a_failed_one_even_if_the_drive_works_again() -> None:
    """Writes that were queued before the failure fail too, in the same burst or in a later one."""

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
                await asyncio.sleep(
                    0
                )  # the writing thread has both writes, and waits for the drive
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


def test_writes_run_in_the_order_of_their_calls() -> None:
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


def test_contiguous_appends_of_one_turn_are_one_write() -> None:
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


def test_a_failure_fails_the_appends_in_its_write_and_all_later_ones() -> None:
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


class Given:
    """Effects for a directory that may perform them at once, and the result of each, in order."""

    def __init__(self, directory: LogDirectory) -> None:
        self._directory = directory
        self.results: list[tuple[int, BaseException | None]] = []
        self.given = 0

    def __call__(self, *effects: Effect) -> bool:
        """Perform effects; return whether the directory reported the result before the call returned."""
        number, before = self.given, len(self.results)
        self.given += 1
        self._directory.perform(
            effects, lambda error: self.results.append((number, error)), at_once=True
        )
        return len(self.results) > before

    async def all(self) -> list[BaseException | None]:
        """Wait for all results; return them in the order of the calls."""
        while len(self.results) < self.given:
            await asyncio.sleep(0.001)
        assert [number for number, _error in self.results] == list(range(self.given))
        return [error for _number, error in self.results]


def test_a_lone_small_append_is_performed_at_once_and_others_in_order() -> None:
    async def main() -> None:
        disk = SimDisk()
        directory = LogDirectory("d", disk, SystemWorkers())
        give = Given(directory)
        assert give(*append(0, b"at once"))
        assert disk.read("log", 0, 100) == b"at once"
        assert give()
        assert not give(*append(7, b", synced"), Sync("log"))
        assert await give.all() == [None] * 3
        assert not give(*append(15, b"x" * 100_000))
        assert not give(*append(100_015, b"small"))  # follows the large append
        assert await give.all() == [None] * 5
        assert disk.read("log", 0, 200_000) == b"at once, synced" + b"x" * 100_000 + b"small"
        assert give(*append(0, b"at once again"))
        await directory.close()

    run(main)


def test_with_several_disks_no_append_runs_on_the_event_loop() -> None:
    """A stalled drive would delay the partitions on the other drives."""

    async def main() -> None:
        for is_only in (True, False):
            watch = TimedDisk("d", SimDisk(), perf_counter_ns, is_only=is_only)
            directory = LogDirectory("d", watch.as_disk(), SystemWorkers())
            give = Given(directory)
            assert give(*append(0, b"data")) is is_only
            assert await give.all() == [None]
            await directory.close()

    run(main)


def test_after_a_slow_append_the_thread_appends_until_the_drive_is_quick_for_long() -> None:
    async def main() -> None:
        now_ns = 0
        takes_ns = [50_000_000]
        disk = SimDisk()

        def take_time(_operation: str, _path: str) -> None:
            nonlocal now_ns
            now_ns += takes_ns.pop() if takes_ns else 1000

        disk.before = take_time
        watch = TimedDisk("d", disk, lambda: now_ns, is_only=True)
        directory = LogDirectory("d", watch.as_disk(), SystemWorkers())
        give = Given(directory)
        assert give(*append(0, b"1"))  # the first slow append
        for number in range(1, 4):
            assert not give(*append(number, b"2"))
            await give.all()
        now_ns += 1_000_000_000
        assert give(*append(4, b"3"))
        assert await give.all() == [None] * 5
        assert disk.read("log", 0, 100) == b"12223"
        await directory.close()

    run(main)


def test_a_brief_slow_append_counts_only_where_another_follows() -> None:
    """The scheduler gives the core to another process for some milliseconds: that says nothing of the drive."""

    async def main() -> None:
        now_ns = 0
        takes_ns = [4_000_000, 1000, 1000, 4_000_000]

        def take_time(_operation: str, _path: str) -> None:
            nonlocal now_ns
            now_ns += takes_ns.pop() if takes_ns else 1000

        disk = SimDisk()
        disk.before = take_time
        watch = TimedDisk("d", disk, lambda: now_ns, is_only=True)
        directory = LogDirectory("d", watch.as_disk(), SystemWorkers())
        give = Given(directory)
        for number in range(4):  # the first is slow, and so is the last
            assert give(*append(number, b"1"))
        assert not give(*append(4, b"2"))
        await give.all()
        now_ns += 1_000_000_000
        takes_ns.append(4_000_000)
        assert give(*append(5, b"3"))
        assert give(*append(6, b"4"))
        await directory.close()

    run(main)


def test_a_failed_append_on_the_event_loop_takes_the_directory_offline() -> None:
    async def main() -> None:
        disk = SimDisk()
        failures: list[BaseException] = []
        directory = LogDirectory(
            "d",
            disk,
            SystemWorkers(),
            on_failed=lambda _directory, error: failures.append(error),
        )
        give = Given(directory)
        assert give(*append(0, b"fine"))
        broken = OSError(28, "No space left on device")

        def break_down(_operation: str, _path: str) -> None:
            # The drive works again at once; the directory stays offline.
            disk.before = lambda _operation, _path: None
            raise broken

        disk.before = break_down
        assert not give(*append(4, b"lost"))
        assert not give(*append(8, b"behind it"))
        results = await give.all()
        assert results[0] is None
        for error in results[1:]:
            assert isinstance(error, Rejected)
            assert error.code is ErrorCode.kafka_storage_error
        assert failures == [broken]
        assert disk.read("log", 0, 100) == b"fine"
        with pytest.raises(Rejected):
            give(*append(4, b"never"))
        await directory.close()

    run(main)


def test_a_local_disk_tries_appends_to_files_that_are_open(tmp_path: Path) -> None:
    disk = LocalDisk(str(tmp_path))
    assert not disk.try_append("log", 0, [b"never"])
    assert not (tmp_path / "log").exists()
    disk.append("log", 0, [b"first"])
    assert disk.try_append("log", 5, [b", ", memoryview(b"second")])
    assert (tmp_path / "log").read_bytes() == b"first, second"
    disk.unlink("log")
    assert not disk.try_append("log", 0, [b"never"])
    disk.close()
