"""A log directory's disk with a watch beside it: how long each call takes.

In: calls to the disk. Out: the same calls, and their durations by kind. It changes nothing of what a disk does, and
leaves `try_read` alone, which never waits and is called on the event loop.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

from stratalog.broker.figures import Histogram
from stratalog.ports import Buffer, Disk

WRITE = "write"
READ = "read"
SYNC = "sync"


class TimedDisk:
    """A `Disk` by what it has and what it passes on."""

    def __init__(self, path: str, disk: Disk, elapsed_ns: Callable[[], int]) -> None:
        self.path = path
        self.durations = {WRITE: Histogram(), READ: Histogram(), SYNC: Histogram()}
        self._slowest: tuple[int, str, str] = (0, "", "")
        self._disk = disk
        self._append = disk.append
        self._appends = self.durations[WRITE]
        self._elapsed_ns = elapsed_ns

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def append(self, path: str, position: int, buffers: Sequence[Buffer]) -> None:
        began_ns = self._elapsed_ns()
        self._append(path, position, buffers)
        took_ns = (
            self._elapsed_ns() - began_ns
        )  # as `_count`, without a call: appends come for every request
        self._appends.observe(took_ns)
        if took_ns > self._slowest[0]:
            self._slowest = took_ns, WRITE, path

    def read(self, path: str, position: int, size: int) -> bytes:
        began_ns = self._elapsed_ns()
        data = self._disk.read(path, position, size)
        self._count(READ, path, began_ns)
        return data

    def sync(self, path: str) -> None:
        began_ns = self._elapsed_ns()
        self._disk.sync(path)
        self._count(SYNC, path, began_ns)

    def write_file(self, path: str, data: Buffer) -> None:
        began_ns = self._elapsed_ns()
        self._disk.write_file(path, data)
        self._count(SYNC, path, began_ns)

    def _count(self, operation: str, path: str, began_ns: int) -> None:
        took_ns = self._elapsed_ns() - began_ns
        self.durations[operation].observe(took_ns)
        if took_ns > self._slowest[0]:
            self._slowest = took_ns, operation, path

    def take_slowest(self) -> tuple[int, str, str]:
        """The slowest call since this was last asked: nanoseconds, operation and file."""
        slowest, self._slowest = self._slowest, (0, "", "")
        return slowest

    def as_disk(self) -> Disk:
        """Itself: what it does not time is the disk's own."""
        return cast(Disk, self)
