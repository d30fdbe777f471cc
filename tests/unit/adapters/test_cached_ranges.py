"""Bytes of files that stay in the page cache on their way to a socket: the same bytes, whatever the socket takes."""

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from tests.kernel import needs_cachestat

from stratalog.adapters.local_disk import LocalDisk

DATA = Random(1).randbytes(3_000_000)
NAME = "log"

pytestmark = needs_cachestat


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LocalDisk]:
    made = LocalDisk(str(tmp_path))
    made.append(NAME, 0, [DATA])
    yield made
    made.close()


@pytest.mark.parametrize(
    ("position", "size"), [(0, 1), (4095, 2), (10_000, 1_000_000), (0, len(DATA))]
)
def test_cached_bytes_are_those_of_the_file(disk: LocalDisk, position: int, size: int) -> None:
    found = disk.cached(NAME, position, size)
    assert found is not None
    expected = DATA[position : position + size]
    assert len(found) == size
    assert found.read() == expected
    assert found.read(size // 2) == expected[size // 2 :]
    assert found.peek(0, 61) == expected[:61]
    assert found.peek(size - 1, 61) == expected[-1:]
    assert found.part(size // 3, size).read() == expected[size // 3 :]


def test_bytes_that_the_page_cache_lacks_are_not_cached(disk: LocalDisk, tmp_path: Path) -> None:
    disk.sync(NAME)
    fd = os.open(tmp_path / NAME, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    assert disk.cached(NAME, 0, len(DATA)) is None
    disk.read(NAME, 0, len(DATA))
    assert disk.cached(NAME, 0, len(DATA)) is not None
    assert disk.cached("no-such-file", 0, 1) is None
    assert disk.cached(NAME, len(DATA) - 1, 1 << 20) is None, "beyond the end"


def test_a_range_keeps_its_file_open(disk: LocalDisk) -> None:
    found = disk.cached(NAME, 0, len(DATA))
    assert found is not None
    disk.unlink(NAME)
    disk.close_idle()
    assert found.read() == DATA


@pytest.mark.parametrize("room", [4096, 1 << 20])
def test_a_socket_gets_head_and_bytes_in_order(disk: LocalDisk, room: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room)
        head, arrived = b"head" * 100, bytearray()
        found = disk.cached(NAME, 7, len(DATA) - 7)
        assert found is not None
        sent = found.send_behind(head, ours.fileno())
        assert 0 < sent < len(head) + len(found), "the other end receives nothing yet"
        assert found.send_behind(head, ours.fileno()) == 0, "it takes nothing more"
        reader = threading.Thread(target=lambda: receive(theirs, arrived))
        reader.start()
        ours.setblocking(True)
        ours.sendall((head + found.read())[sent:])
        ours.shutdown(socket.SHUT_WR)
        reader.join(30)
    assert arrived == head + DATA[7:]


def receive(end: socket.socket, arrived: bytearray) -> None:
    while data := end.recv(1 << 16):
        arrived += data


def test_a_broken_socket_and_a_shorter_file_are_errors(disk: LocalDisk) -> None:
    found = disk.cached(NAME, 0, len(DATA))
    assert found is not None
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, pytest.raises(ConnectionError):
        found.send_behind(b"head", ours.fileno())
    disk.truncate(NAME, 100)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        with pytest.raises(OSError, match="a file ends before byte 3000000"):
            found.send_behind(b"head", ours.fileno())
        with pytest.raises(OSError, match="a file ends before byte 3000000"):
            found.read()
