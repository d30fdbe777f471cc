"""A bucket that is a directory: `file:///path`.

In: calls of `ports.ObjectStore`. Out: files. It never shows a partly written object, and an object whose put returned
survives a loss of power. (obstore's own local store never syncs, hence this one.)

An object is written under a temporary name in the root's `.~incoming`, synced, then renamed (put) or linked (put if
absent: a link fails if the name exists, in whichever process it was created). Then its folder is synced. Larger
objects bypass the page cache where the file system permits: history would push the tail out of memory, and filling
and emptying the cache costs ten times the CPU. Folders, from the root down, are synced the first time this process
puts below them. Leftovers of a crash in `.~incoming` are never listed, and removed a day later. Thread-safe; any
number of processes may share the directory.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from io import FileIO
from pathlib import PurePosixPath
from stat import S_ISREG
from typing import Final
from urllib.parse import quote

from stratalog.errors import Unavailable
from stratalog.ports import AlreadyExists, Buffer, ObjectInfo

__all__ = ["DirectoryStore"]

_INCOMING: Final = ".~incoming"
_STALE_SECONDS: Final = 24 * 60 * 60
_PIECE_BYTES: Final = 4 << 20
_DIRECT_FROM: Final = 1 << 20
"""Smaller objects use the page cache: they are written quickly, and read soon or never (a manifest, for example)."""
_DIRECT: Final = getattr(os, "O_DIRECT", 0)
_FULL_SYNC: Final = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: fsync does not reach the drive


class DirectoryStore:
    """`ports.ObjectStore` over a directory, which the first put creates."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self._incoming = os.path.join(self.root, _INCOMING)
        self.url = "file://" + quote(self.root)
        self._durable: set[str] = set()  # folders whose whole chain of names is synced

    def put(self, path: str, chunks: Iterable[Buffer]) -> None:
        full = self._full(path)
        temporary = self._write(path, chunks)
        with self._failures(path, writing=True), _removed_on_failure(temporary):
            os.replace(temporary, full)
            _sync_folder(os.path.dirname(full))

    def put_if_absent(self, path: str, data: Buffer) -> None:
        full = self._full(path)
        temporary = self._write(path, [data])
        with self._failures(path, writing=True):
            try:
                os.link(temporary, full)
            except FileExistsError:
                # The winner may not have synced its name yet, and the loser acts on the winner's object.
                _sync_folder(os.path.dirname(full))
                raise AlreadyExists(path) from None
            finally:
                os.unlink(temporary)
            _sync_folder(os.path.dirname(full))

    def get(self, path: str) -> bytes:
        with self._failures(path), open(self._full(path), "rb") as file:
            return file.read()

    def get_range(self, path: str, start: int, size: int) -> bytes:
        return next(self.get_ranges(path, start, (size,)))

    def get_ranges(self, path: str, start: int, sizes: Sequence[int]) -> Iterator[bytes]:
        with self._failures(path), open(self._full(path), "rb", buffering=0) as file:
            file.seek(start)
            for size in sizes:
                yield _read(file, size)

    def size(self, path: str) -> int:
        with self._failures(path):
            status = os.stat(self._full(path))
        if not S_ISREG(status.st_mode):
            raise FileNotFoundError(f"{path} in {self.url}")
        return status.st_size

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        folder = prefix.rpartition("/")[0]
        with self._failures(prefix):
            yield from self._walk(folder, prefix)

    def _walk(self, folder: str, prefix: str) -> Iterator[ObjectInfo]:
        try:
            entries = sorted(os.scandir(os.path.join(self.root, folder)), key=lambda e: e.name)
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            if entry.name == _INCOMING and not folder:
                continue
            if entry.is_dir():
                if path.startswith(prefix) or prefix.startswith(path + "/"):
                    yield from self._walk(path, prefix)
            elif path.startswith(prefix):
                with contextlib.suppress(FileNotFoundError):  # deleted since
                    status = entry.stat()
                    yield ObjectInfo(path, status.st_size, status.st_mtime_ns // 1_000_000)

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            with self._failures(path), contextlib.suppress(FileNotFoundError):
                os.unlink(self._full(path))

    def _full(self, path: str) -> str:
        parts = PurePosixPath(path).parts
        assert "/".join(parts) == path, f"no object path: {path!r}"
        assert parts, "no object path: empty"
        assert ".." not in parts, f"no object path: {path!r}"
        return os.path.join(self.root, path)

    @contextlib.contextmanager
    def _failures(self, path: str, *, writing: bool = False) -> Iterator[None]:
        """Translate the system's exceptions into the port's. A folder that is missing during a write is no missing
        object.
        """
        try:
            yield
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            if writing:
                raise Unavailable(f"{path} in {self.url}: {error.strerror}") from error
            raise FileNotFoundError(f"{path} in {self.url}") from error
        except OSError as error:
            raise Unavailable(f"{path} in {self.url}: {error.strerror or error}") from error

    def _write(self, path: str, chunks: Iterable[Buffer]) -> str:
        """Write and sync a temporary file beside the object; return its name.

        Errors of `chunks` pass through: a failing log directory is not a failing bucket.
        """
        folder = os.path.dirname(self._full(path))
        temporary = os.path.join(self._incoming, uuid.uuid4().hex)
        with self._failures(path, writing=True):
            if not self._durable:
                self._clear_incoming()
            self._make_durable(folder)
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        with _removed_on_failure(temporary):
            pieces = _Pieces(fd)
            try:
                for chunk in chunks:
                    view = memoryview(chunk).cast("B")
                    with self._failures(path, writing=True):
                        pieces.add(view)
                with self._failures(path, writing=True):
                    pieces.end()
                    _sync(fd)
            finally:
                pieces.close()
                os.close(fd)
        return temporary

    def _clear_incoming(self) -> None:
        """Remove files of crashed processes; a process that still writes has touched its file lately."""
        os.makedirs(self._incoming, exist_ok=True)
        stale = time.time() - _STALE_SECONDS
        for entry in os.scandir(self._incoming):
            with contextlib.suppress(FileNotFoundError):
                if entry.stat().st_mtime < stale:
                    os.unlink(entry.path)

    def _make_durable(self, folder: str) -> None:
        """Create a folder below the root and sync every name on the way to it.

        Another process may have created some of them without a sync yet, so each process syncs all of them once.
        """
        if folder in self._durable:
            return
        os.makedirs(folder, exist_ok=True)
        current = folder
        while (parent := os.path.dirname(current)) != current:
            try:
                _sync_folder(parent)
            except PermissionError:
                break  # far above the root: this store did not create the folder, so it does not sync it
            current = parent
        self._durable.add(folder)


class _Pieces:
    """Gather writes to a new file into whole pieces of aligned memory, which can bypass the page cache.

    A thread writes one piece while the caller fills the next.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._filling: mmap.mmap | None = None
        self._spare: mmap.mmap | None = None
        self._size = 0
        self._thread: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None
        self._direct = False
        self._may_be_direct = _DIRECT != 0

    def add(self, view: memoryview) -> None:
        """Write, now or with a later call. Raises the error of an earlier write."""
        while view:
            if self._filling is None:
                self._filling = mmap.mmap(-1, _PIECE_BYTES)  # such memory begins with a page
            elif self._size == _PIECE_BYTES:
                self._hand_on()
            taken = min(len(view), _PIECE_BYTES - self._size)
            self._filling[self._size : self._size + taken] = view[:taken]
            self._size += taken
            view = view[taken:]

    def end(self) -> None:
        """Write the rest, which may be less than a piece."""
        self._wait()
        if self._filling is None:
            return
        with memoryview(self._filling) as held, held[: self._size] as left:
            pages = len(left) - len(left) % mmap.PAGESIZE
            if pages < _DIRECT_FROM:
                pages = 0
            if pages:
                self._write(left[:pages])
            if pages < len(left):
                self._go_through_cache()
                self._write(left[pages:])

    def close(self) -> None:
        """Release the memory and the thread, after success and failure alike."""
        if self._thread is not None:
            self._thread.shutdown()
        for held in (self._filling, self._spare):
            if held is not None:
                held.close()

    def _hand_on(self) -> None:
        """Pass the full piece to the writing thread, and fill the other one."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="write-piece")
            self._spare = mmap.mmap(-1, _PIECE_BYTES)
        self._wait()
        assert self._filling is not None
        self._writing = self._thread.submit(self._write, memoryview(self._filling))
        self._filling, self._spare = self._spare, self._filling
        self._size = 0

    def _wait(self) -> None:
        if self._writing is not None:
            self._writing.result()

    def _write(self, piece: memoryview) -> None:
        if self._may_be_direct and not self._direct:
            self._go_direct()
        with piece:
            size, written = len(piece), 0
            while written < size:
                with piece[written:] as rest:
                    try:
                        written += os.write(self._fd, rest)
                    except OSError as error:
                        if error.errno != errno.EINVAL or not self._direct:
                            raise
                        self._go_through_cache()  # not in whole pieces, or not from the start of a page

    def _go_direct(self) -> None:
        try:
            fcntl.fcntl(self._fd, fcntl.F_SETFL, fcntl.fcntl(self._fd, fcntl.F_GETFL) | _DIRECT)
        except OSError:
            self._may_be_direct = False  # not every file system knows it
        else:
            self._direct = True

    def _go_through_cache(self) -> None:
        self._may_be_direct = False
        if self._direct:
            self._direct = False
            fcntl.fcntl(self._fd, fcntl.F_SETFL, fcntl.fcntl(self._fd, fcntl.F_GETFL) & ~_DIRECT)


def _read(file: FileIO, size: int) -> bytes:
    """Return `size` bytes, fewer only at the end."""
    pieces = []
    while size > 0 and (piece := file.read(size)):
        pieces.append(piece)
        size -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


@contextlib.contextmanager
def _removed_on_failure(temporary: str) -> Iterator[None]:
    try:
        yield
    except BaseException:  # an interrupt too must leave no half-written file
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _sync_folder(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        _sync(fd)
    finally:
        os.close(fd)


def _sync(fd: int) -> None:
    if _FULL_SYNC is not None:
        try:
            fcntl.fcntl(fd, _FULL_SYNC)
        except OSError:
            pass  # not every file system knows it: the plain one then
        else:
            return
    os.fsync(fd)
