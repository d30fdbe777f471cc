"""Measure how long each call to a log directory's disk takes.

In: calls to the disk. Out: the same calls, and their durations by kind. It changes only `try_append`, which runs on the
event loop: `try_append` refuses where a node has several disks, and for a while after a slow append. It does not time
`try_read`, which never waits.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from stratalog.broker.metrics import Histogram
from stratalog.ports import Buffer, Disk

WRITE = "write"
READ = "read"
SYNC = "sync"
_QUICK_NS: Final = 1_000_000
_WAITING_SHARE: Final = 20
"""Appends on the event loop may block it for at most this fraction (1/N) of its time, brief ones for twice that."""
_BRIEF_NS: Final = 5_000_000
"""A slow append up to this may be the scheduler's doing: another process had the core. The next one shows."""


class TimedDisk:
    """A `Disk` that times some calls and passes the others on."""

    def __init__(
        self, path: str, disk: Disk, elapsed_ns: Callable[[], int], *, is_only: bool = False
    ) -> None:
        """`is_only`: the node has no other disk, so `try_append` may block the event loop."""
        self.path = path
        self.durations = {WRITE: Histogram(), READ: Histogram(), SYNC: Histogram()}
        self._slowest: tuple[int, str, str] = (0, "", "")
        self._disk = disk
        self._append = disk.append
        self._try_append = disk.try_append
        self._quick_from_ns = 0  # time from which `try_append` may run again
        self._watched_until_ns = 0  # until this time a second slow append counts
        self._is_only = is_only
        self._count_append = self.durations[WRITE].observe
        self._elapsed_ns = elapsed_ns

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def append(self, path: str, position: int, buffers: Sequence[Buffer]) -> None:
        began_ns = self._elapsed_ns()
        self._append(path, position, buffers)
        self._appended(path, began_ns)

    def try_append(self, path: str, position: int, buffers: Sequence[Buffer]) -> bool:
        if not self._is_only:
            return False
        began_ns = self._elapsed_ns()
        if began_ns < self._quick_from_ns or not self._try_append(path, position, buffers):
            return False
        self._appended(path, began_ns)
        return True

    def _appended(self, path: str, began_ns: int) -> None:
        ended_ns = self._elapsed_ns()
        took_ns = ended_ns - began_ns
        self._count_append(took_ns)
        if took_ns > _QUICK_NS:
            until_ns = ended_ns + _WAITING_SHARE * took_ns
            if took_ns > _BRIEF_NS or began_ns < self._watched_until_ns:
                self._quick_from_ns = until_ns
            self._watched_until_ns = until_ns
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

    def make_durable(
        self, files: Mapping[str, Buffer], synced: Sequence[str], synced_directories: Sequence[str]
    ) -> None:
        began_ns = self._elapsed_ns()
        self._disk.make_durable(files, synced, synced_directories)
        self._count(SYNC, "", began_ns)

    def _count(self, operation: str, path: str, began_ns: int) -> None:
        took_ns = self._elapsed_ns() - began_ns
        self.durations[operation].observe(took_ns)
        if took_ns > self._slowest[0]:
            self._slowest = took_ns, operation, path

    def take_slowest(self) -> tuple[int, str, str]:
        """Return the slowest call since the last `take_slowest`: nanoseconds, operation and file."""
        slowest, self._slowest = self._slowest, (0, "", "")
        return slowest

    def as_disk(self) -> Disk:
        """Return this object as a `Disk`; calls that it does not time are the disk's own."""
        return cast(Disk, self)
