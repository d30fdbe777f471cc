"""Measure this machine's best rates, and a process's resource use.

In: the time to measure for, and the place. Out: bytes a second, seconds. It never exceeds the given time by more than
one step, writes no more than the given bytes, and leaves no file.

Every rate is that of one process, with Python around the system's calls: the bound for a broker in Python.
"""

import os
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from crc32c import crc32c

_CHUNK: Final = 1 << 20
_SOCKET_CHUNK: Final = 256 << 10
_COPY_BYTES: Final = 64 << 20
_CALLS: Final = 10_000


def process_cpu_s(pid: int) -> float:
    """Return CPU seconds that a process of this machine has used, its threads' too. Raises OSError, ValueError.

    From Linux's /proc; elsewhere there is none, which is an OSError.
    """
    text = Path(f"/proc/{pid}/stat").read_text()
    # A process's name may hold anything, but ends with the last parenthesis.
    fields = text.rpartition(")")[2].split()
    user, system = int(fields[11]), int(fields[12])
    return (user + system) / os.sysconf("SC_CLK_TCK")


def _rate(step: Callable[[], int], seconds: float) -> float:
    """Return the sum of `step`'s results per second, over at least one call."""
    done = 0
    began = now = time.perf_counter()
    while now - began < seconds or not done:
        done += step()
        now = time.perf_counter()
    return done / (now - began)


def copied_bytes_s(seconds: float) -> float:
    """Return the speed of copies in memory, of more bytes than caches hold."""
    source, target = memoryview(bytearray(_COPY_BYTES)), memoryview(bytearray(_COPY_BYTES))

    def copy() -> int:
        target[:] = source
        return _COPY_BYTES

    return _rate(copy, seconds)


def crc32c_bytes_s(seconds: float) -> float:
    """Return the speed of the checksum of record batches."""
    data = os.urandom(_CHUNK)

    def check() -> int:
        crc32c(data)
        return _CHUNK

    return _rate(check, seconds)


def python_calls_s(seconds: float) -> float:
    """Return how many times a second one core calls a small Python function."""

    def small(one: int, other: int) -> int:
        return one + other

    def calls() -> int:
        for number in range(_CALLS):
            small(number, 1)
        return _CALLS

    return _rate(calls, seconds)


def _pair() -> tuple[socket.socket, socket.socket]:
    """Return two ends of a TCP connection over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    for end in (near, far):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end.settimeout(10)
    return near, far


def loopback_bytes_s(seconds: float) -> float:
    """Return the speed of TCP from one thread to another."""
    near, far = _pair()
    sink = bytearray(_SOCKET_CHUNK)

    def swallow() -> None:
        while far.recv_into(sink):
            pass

    with near, far:
        thread = threading.Thread(target=swallow, name="loopback")
        thread.start()
        data = bytes(_SOCKET_CHUNK)

        def send() -> int:
            near.sendall(data)
            return _SOCKET_CHUNK

        try:
            return _rate(send, seconds)
        finally:
            near.shutdown(socket.SHUT_WR)
            thread.join()


def loopback_round_trip_s(seconds: float) -> float:
    """Return the median of a byte's way through TCP to another thread and back."""
    near, far = _pair()

    def echo() -> None:
        while byte := far.recv(1):
            far.sendall(byte)

    with near, far:
        thread = threading.Thread(target=echo, name="loopback")
        thread.start()
        times: list[float] = []

        def bounce() -> int:
            began = time.perf_counter()
            near.sendall(b"x")
            near.recv(1)
            times.append(time.perf_counter() - began)
            return 1

        try:
            _rate(bounce, seconds)
        finally:
            near.shutdown(socket.SHUT_WR)
            thread.join()
    return statistics.median(times)


def file_bytes_s(directory: str, seconds: float, size_limit: int) -> tuple[float, float, float]:
    """Return the speeds of writes to the page cache, of reads from it, and of writes with one sync at the end. The file
    has at most `size_limit` bytes and lies in `directory`. Raises OSError.
    """
    data = os.urandom(_CHUNK)
    with tempfile.TemporaryFile(dir=directory, prefix="strata-bench-", buffering=0) as file:
        number = file.fileno()
        began = now = time.perf_counter()
        size = 0
        while size < size_limit and (now - began < seconds or not size):
            size += os.write(number, data)
            now = time.perf_counter()
        written = size / (now - began)
        os.fsync(number)
        synced = size / (time.perf_counter() - began)
        target = bytearray(_CHUNK)
        position = 0

        def read() -> int:
            nonlocal position
            count = os.preadv(number, [target], position)
            position = position + count if position + count < size else 0
            return count

        return written, _rate(read, seconds), synced


def sync_s(directory: str, seconds: float, times_limit: int = 1000) -> float:
    """Return the median of appending 4 KiB to a file in `directory` and waiting until it is on the disk.

    Raises OSError.
    """
    data = os.urandom(4096)
    times: list[float] = []
    with tempfile.TemporaryFile(dir=directory, prefix="strata-bench-", buffering=0) as file:
        number = file.fileno()
        began = now = time.perf_counter()
        while (now - began < seconds or not times) and len(times) < times_limit:
            os.write(number, data)
            os.fsync(number)
            later = time.perf_counter()
            times.append(later - now)
            now = later
    return statistics.median(times)
