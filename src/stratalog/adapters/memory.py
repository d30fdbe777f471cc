"""Tune how the process keeps and returns freed memory, and how often it collects garbage.

In: nothing. Out: a C library that keeps freed buffers for reuse, but not hundreds of megabytes of them; buffers that
are not cleared; a garbage collector that skips long-lived objects. Without glibc it leaves the C library as it is.

Requests and reads use buffers of about 1 MiB. By default glibc returns each to the system when it is freed, and the
next one is faulted in page by page: reading 1 GB cost 500,000 page faults and four times the CPU.

Requests make no reference cycles. But while a hundred of them wait, Python's collector sees many new objects and
scans everything over and over: a quarter of the time, and tens of milliseconds at once.
"""

import ctypes
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES_MAX: Final = 32 << 20
_GIVEN_BACK_FROM: Final = 40 << 20
_STATM: Final = "/proc/self/statm"
_PAGE_BYTES: Final = os.sysconf("SC_PAGESIZE")
_COLLECT_AFTER: Final = (10_000, 2, 160)
"""Thresholds: containers made but not freed, collections of the youngest generation, of the middle one. Python's
default: (700, 10, 10). A collection is one turn of the event loop; the middle one looks at 30,000 containers.
"""
_SPARED_AT_ONCE: Final = 2000
"""Number of new partitions that the garbage collector scans in about 50 ms."""


class _MallocInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`, in bytes: the eighth field is what is in use, the ninth what is free."""

    _fields_ = tuple((f"field{number}", ctypes.c_size_t) for number in range(10))  # type: ignore[mutable-override]


def keep_freed_memory() -> None:
    """Keep up to 32 MiB of freed memory, whatever the size of its pieces."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _KEPT_BYTES_MAX)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES_MAX)


def collect_only_what_follows() -> None:
    """Exclude the present objects from garbage collection. Call this once the long-lived objects exist."""
    gc.freeze()


def collect_seldom() -> None:
    """Do as `collect_only_what_follows`, and collect less often."""
    collect_only_what_follows()
    gc.enable()  # imports do without: `adapters/quick_start.py`
    gc.set_threshold(*_COLLECT_AFTER)


@contextmanager
def spare_partitions(partitions: Callable[[], int]) -> Iterator[None]:
    """Inside the block, exclude new partitions from garbage collection, for ever. A full collection is one turn of the
    event loop.

    With a hundred thousand partitions a collection takes seconds. Partitions live long and form no short-lived cycles.
    `partitions` returns their present number. The collector itself calls for the work, after a small collection, so
    that a process without new objects does nothing.
    """
    spared = 0

    def collected(phase: str, _info: dict[str, int]) -> None:
        nonlocal spared
        if phase == "stop" and (present := partitions()) >= spared + _SPARED_AT_ONCE:
            collect_only_what_follows()
            spared = present

    gc.callbacks.append(collected)
    try:
        yield
    finally:
        gc.callbacks.remove(collected)


_buffer = ctypes.pythonapi.PyByteArray_FromStringAndSize
_buffer.restype, _buffer.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_ssize_t)


def buffer(size: int) -> bytearray:
    """Return a buffer whose bytes have any values: clearing it would cost a tenth of an append of large batches."""
    made: bytearray = _buffer(None, size)
    return made


class FreedMemory:
    """Memory that the process freed and its C library still holds.

    glibc gives back only the free end of its heap: one small piece that lives on above hundreds of freed megabytes
    keeps them all. Twenty groups with 400 MiB of member metadata left 400 MiB behind.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None)
        self._is_measurable = hasattr(self._libc, "mallinfo2") and os.path.exists(_STATM)
        if self._is_measurable:
            self._libc.mallinfo2.restype = _MallocInfo
        self._apart = -1  # resident bytes outside the C library, at the last measurement
        self._was_over = False

    def give_back(self) -> int:
        """Return memory that has been free since the last call to the system, if it is a lot; return the number of
        bytes. Call this now and then.

        Takes about a tenth of a millisecond a megabyte, in which the other threads' larger allocations wait.
        """
        if not self._is_measurable:
            return 0
        resident, used, free = self._sizes()
        if self._apart < 0:
            self._apart = resident - used - free
        over = min(free, resident - used - self._apart) > _GIVEN_BACK_FROM
        was_over, self._was_over = self._was_over, over
        if not (over and was_over):
            return 0
        self._libc.malloc_trim(_KEPT_BYTES_MAX)
        before = resident
        resident, used, _free = self._sizes()
        self._apart = resident - used
        self._was_over = False
        return max(before - resident, 0)

    def _sizes(self) -> tuple[int, int, int]:
        """Return (resident, used, free) bytes; the last two are the C library's."""
        with open(_STATM, "rb") as file:
            resident = int(file.read().split()[1]) * _PAGE_BYTES
        found = self._libc.mallinfo2()
        return resident, found.field7, found.field8
