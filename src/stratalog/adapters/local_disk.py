"""A log directory on a local file system.

In: calls of `ports.Disk`. Out: system calls; OSError as the system raises it. It never decides what to write, and
syncs only on request. Its files are its user's alone.

Thread-safe. All users of a path share one file descriptor, and the last user closes it. So the writer thread may drop
a file that a reader thread is still reading. A descriptor is remembered under its path only while that path can mean
no other file: a reader that opened a file just before its rename uses the descriptor once.

Where no descriptor is free, a call waits for one: that is no failure of the drive.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from mmap import PAGESIZE
from typing import Final

from stratalog.adapters.descriptors import descriptors_max, with_descriptor
from stratalog.errors import UserError
from stratalog.ports import Buffer, FileInfo

_FILE_MODE: Final = 0o600
_DIRECTORY_MODE: Final = 0o700
_WITH_KEYS: Final = {"__cluster_metadata-0": _DIRECTORY_MODE, "bootstrap.checkpoint": _FILE_MODE}
"""SCRAM credentials and delegation tokens are there."""
_OPEN_FILES_MAX: Final = 512
_OPEN_FILES_SHARE: Final = 8
"""The files that a directory keeps open are this part of the process's descriptors at most."""
_VECTORS_MAX: Final = 1024  # IOV_MAX on Linux and macOS
_NO_WAIT: Final = getattr(
    os, "RWF_NOWAIT", None
)  # Linux only: other systems do not report cached pages

_KEEP_SIZE: Final = 1  # FALLOC_FL_KEEP_SIZE: readers and recovery go by a file's length
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_FALLOCATE: Final = getattr(_LIBC, "fallocate", None)  # Linux only
_TOGETHER_FROM: Final = 256


def _syncfs() -> "Callable[[int], int] | None":
    """Return Linux's `syncfs`, from 5.8 on: earlier kernels did not report failed writes."""
    version = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if version is None or tuple(map(int, version.groups())) < (5, 8):
        return None
    return getattr(_LIBC, "syncfs", None)


_SYNCFS: Final = _syncfs()
_CACHESTAT: Final = 451
"""The system call's number, the same on each processor; Linux has it from 6.5 on."""
_Counts = ctypes.c_uint64 * 5
_Range = ctypes.c_uint64 * 2
_MORE_FOLLOWS: Final = (
    getattr(socket, "MSG_MORE", 0) | socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0)
)
_IS_LINUX: Final = sys.platform == "linux"


def _is_cached(fd: int, position: int, size: int) -> bool:
    """Return whether the page cache has all pages of some bytes of a file; False where the system cannot tell."""
    counts = _Counts()
    if not _IS_LINUX or _LIBC.syscall(
        _CACHESTAT, fd, ctypes.byref(_Range(position, size)), ctypes.byref(counts), 0
    ):
        return False
    return counts[0] == (position + size - 1) // PAGESIZE - position // PAGESIZE + 1


class _File:
    """An open descriptor that closes itself with its last reference.

    `used`: since the last `close_idle`; `stays`: used at its present place among the open files, which it keeps.
    """

    __slots__ = ("fd", "stays", "used")

    def __init__(self, path: str, flags: int) -> None:
        self.fd = -1
        self.fd = os.open(path, flags, _FILE_MODE)
        self.used = True
        self.stays = False

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class _CachedRange:
    """See `FileRange`. It keeps the file open."""

    __slots__ = ("_file", "_position", "_size")

    def __init__(self, file: _File, position: int, size: int) -> None:
        self._file = file
        self._position = position
        self._size = size

    def __len__(self) -> int:
        return self._size

    def peek(self, start: int, size: int) -> bytes:
        return os.pread(self._file.fd, min(size, self._size - start), self._position + start)

    def part(self, start: int, end: int) -> "_CachedRange":
        return _CachedRange(self._file, self._position + start, end - start)

    def read(self, start: int = 0) -> bytes:
        data = os.pread(self._file.fd, self._size - start, self._position + start)
        if len(data) < self._size - start:
            raise self._is_shorter()
        return data

    def send_behind(self, head: Buffer, to: int) -> int:
        sent = int(_LIBC.send(to, bytes(head), len(head), _MORE_FOLLOWS))
        if sent < 0:
            return _sent_nothing()
        if sent < len(head):
            return sent
        at = 0
        with contextlib.suppress(BlockingIOError):
            while at < self._size:
                count = os.sendfile(to, self._file.fd, self._position + at, self._size - at)
                if count == 0:
                    raise self._is_shorter()
                at += count
        return sent + at

    def _is_shorter(self) -> OSError:
        return OSError(errno.EIO, f"a file ends before byte {self._position + self._size}")


def _sent_nothing() -> int:
    """Return 0 after an attempt to send to a socket that takes nothing now. Raises OSError for any other reason."""
    number = ctypes.get_errno()
    if number in (errno.EAGAIN, errno.EINTR):
        return 0
    raise OSError(number, os.strerror(number))


def check_distinct(paths: Sequence[str]) -> None:
    """Raise UserError where two of the paths are one directory, through a link or `..` (Kafka: LogManager)."""
    path_by_target: dict[str, str] = {}
    for path in paths:
        first = path_by_target.setdefault(os.path.realpath(path), path)
        if first is not path:
            raise UserError(f"log.dirs: {first} and {path} are the same directory; name it once")


class LocalDisk:
    """`ports.Disk` over one directory, created where it is missing."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        os.makedirs(self.root, _DIRECTORY_MODE, exist_ok=True)
        self._files: dict[str, _File] = {}
        self._files_max = min(_OPEN_FILES_MAX, descriptors_max() // _OPEN_FILES_SHARE)
        self._guard = threading.Lock()
        self._renames = 0  # counts the changes after which a path may mean another file
        self._lock_fd = -1

    def append(self, path: str, position: int, buffers: Sequence[Buffer]) -> None:
        self._write(self._file(path, create=True), position, buffers)

    def try_append(self, path: str, position: int, buffers: Sequence[Buffer]) -> bool:
        # RWF_NOWAIT would be more exact, but ext4 supports it for reads only, and XFS refuses whenever it must update a
        # file's time.
        file = self._files.get(path)
        if file is None:
            return False  # opening may wait for the drive
        file.used = file.stays = True
        self._write(file, position, buffers)
        return True

    @staticmethod
    def _write(file: _File, position: int, buffers: Sequence[Buffer]) -> None:
        if len(buffers) == 1:  # whole at once, but for signals and drives about to be full
            written = os.pwrite(file.fd, buffers[0], position)
            if written == len(buffers[0]):
                return
        vectors = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
        while vectors:
            written = os.pwritev(file.fd, vectors[:_VECTORS_MAX], position)
            position += written
            while vectors and written >= len(vectors[0]):
                written -= len(vectors.pop(0))
            if written:
                vectors[0] = vectors[0][written:]

    def reserve(self, path: str, size: int) -> None:
        fd = self._file(path, create=True).fd
        if _FALLOCATE is None:
            return
        if _FALLOCATE(fd, _KEEP_SIZE, ctypes.c_longlong(0), ctypes.c_longlong(size)):
            number = ctypes.get_errno()
            if number not in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise OSError(number, os.strerror(number), path)

    def read(self, path: str, position: int, size: int) -> bytes:
        file = self._file(path)
        pieces = []
        while size > 0:
            piece = os.pread(file.fd, size, position)
            if not piece:
                break
            pieces.append(piece)
            position += len(piece)
            size -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def try_read(self, path: str, position: int, size: int) -> bytearray | None:
        if _NO_WAIT is None:
            return None
        with self._guard:
            file = self._files.get(path)
        if file is None:
            return None  # opening may wait for the drive
        file.used = file.stays = True
        target = bytearray(size)
        try:
            count = os.preadv(file.fd, [target], position, _NO_WAIT)
        except OSError:
            return None  # not cached, or the file system cannot answer: a reader thread finds out
        return target if count == size else None  # without a copy, because the data is large

    def cached(self, path: str, position: int, size: int) -> _CachedRange | None:
        file = self._files.get(path)
        if file is None or not _is_cached(file.fd, position, size):
            return None
        file.used = file.stays = True
        return _CachedRange(file, position, size)

    def write_file(self, path: str, data: Buffer) -> None:
        full = self._full(path)
        temporary = full + ".tmp"
        fd = self._open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            view = memoryview(data).cast("B")
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, full)
        self._drop_file(path)
        self._sync_full(os.path.dirname(full))

    def sync(self, path: str) -> None:
        file = self._file(path)
        (os.fdatasync if hasattr(os, "fdatasync") else os.fsync)(file.fd)

    def sync_directory(self, path: str) -> None:
        self._sync_full(self._full(path))

    def make_durable(
        self, files: Mapping[str, Buffer], synced: Sequence[str], synced_directories: Sequence[str]
    ) -> None:
        # Synced one by one, each file waits for the drive once or twice: 10,000 partitions took minutes. `syncfs` also
        # writes other processes' data of the file system, so a few files are synced singly.
        count = len(files) + len(synced) + len(synced_directories)
        if _SYNCFS is None or self._lock_fd < 0 or count < _TOGETHER_FROM:
            for path, data in files.items():
                self.write_file(path, data)
            for path in synced:
                self.sync(path)
            for path in synced_directories:
                self.sync_directory(path)
            return
        for path, data in files.items():
            fd = self._open(self._full(path) + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            with open(fd, "wb") as temporary:
                temporary.write(data)
        self._sync_all()
        for path in files:
            os.replace(self._full(path) + ".tmp", self._full(path))
            self._drop_file(path)
        if files:
            self._sync_all()

    def truncate(self, path: str, size: int) -> None:
        os.ftruncate(self._file(path, create=True).fd, size)

    def rename(self, source: str, target: str) -> None:
        os.replace(self._full(source), self._full(target))
        self._drop(source)
        self._drop(target)

    def unlink(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._full(path))
        self._drop_file(path)

    def make_directory(self, path: str) -> None:
        os.makedirs(self._full(path), _DIRECTORY_MODE, exist_ok=True)

    def remove_tree(self, path: str) -> None:
        from shutil import rmtree  # noqa: PLC0415 - it imports three libraries of compression

        with contextlib.suppress(FileNotFoundError):
            with_descriptor(lambda: rmtree(self._full(path)), self._let_go)
        self._drop(path)

    def list(self, path: str) -> list[FileInfo]:
        try:
            with with_descriptor(lambda: os.scandir(self._full(path)), self._let_go) as entries:
                found = [_info(entry) for entry in entries]
        except FileNotFoundError:
            return []
        return sorted((info for info in found if info is not None), key=lambda info: info.name)

    def size(self, path: str) -> int:
        return os.stat(self._full(path)).st_size

    def total_bytes(self) -> int:
        stat = os.statvfs(self.root)
        return stat.f_blocks * stat.f_frsize

    def free_bytes(self) -> int:
        stat = os.statvfs(self.root)
        return stat.f_bavail * stat.f_frsize

    def lock(self) -> bool:
        fd = self._open(self._full(".lock"), os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self._lock_fd = fd
        self._close_to_others()
        return True

    def close_idle(self) -> None:
        with self._guard:
            for path in [path for path, file in self._files.items() if not file.used]:
                del self._files[path]
            for file in self._files.values():
                file.used = False

    def close(self) -> None:
        with self._guard:
            self._files.clear()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _close_to_others(self) -> None:
        """Take the rights of other users at files with keys that Apache Kafka or an earlier version wrote.

        Apache Kafka, as the same user, opens them again. A directory of another user keeps its rights.
        """
        for path, mode in _WITH_KEYS.items():
            with contextlib.suppress(FileNotFoundError, PermissionError):
                os.chmod(self._full(path), mode)

    def _full(self, path: str) -> str:
        return os.path.join(self.root, path) if path else self.root

    def _file(self, path: str, *, create: bool = False) -> _File:
        with self._guard:
            file = self._files.pop(path, None)
            if file is not None:
                self._files[path] = file  # the least recently used is the first
            renames = self._renames
        if file is None:
            flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
            file = with_descriptor(lambda: _File(self._full(path), flags), self._let_go)
            with self._guard:
                if renames == self._renames:
                    file = self._files.setdefault(path, file)
                while len(self._files) > self._files_max:
                    self._drop_first()
        file.used = True
        return file

    def _drop_first(self) -> None:
        """Forget the first descriptor; one that the event loop used, which changes no order, goes behind the others."""
        path = next(iter(self._files))
        first = self._files.pop(path)
        if first.stays:
            first.stays = False
            self._files[path] = first

    def _open(self, full: str, flags: int) -> int:
        return with_descriptor(lambda: os.open(full, flags, _FILE_MODE), self._let_go)

    def _let_go(self) -> None:
        """Forget all descriptors: those in use close after it."""
        with self._guard:
            self._files.clear()

    def _drop_file(self, path: str) -> None:
        """Forget the descriptor of a file that was replaced or deleted: a stop replaces one for each partition."""
        with self._guard:
            self._renames += 1
            self._files.pop(path, None)

    def _drop(self, path: str) -> None:
        """Forget descriptors of `path` and of files below it, after a rename or a deletion."""
        below = path + "/"
        with self._guard:
            self._renames += 1
            for name in [n for n in self._files if n == path or n.startswith(below)]:
                del self._files[name]

    def _sync_all(self) -> None:
        assert _SYNCFS is not None
        # The lock file is open from the start: through its descriptor the system reports every failed write since then.
        if _SYNCFS(self._lock_fd):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), self.root)

    def _sync_full(self, full: str) -> None:
        fd = self._open(full, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _info(entry: "os.DirEntry[str]") -> FileInfo | None:
    """Return a listing's entry, or None for one that vanished meanwhile (a temporary file of another thread)."""
    try:
        is_directory = entry.is_dir()
        return FileInfo(entry.name, 0 if is_directory else entry.stat().st_size, is_directory)
    except FileNotFoundError:
        return None
