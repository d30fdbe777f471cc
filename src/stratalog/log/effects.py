"""Effects: values that describe changes to a log's directory.

In: nothing. Out: effects. The directory's executor (`LogDirectory`) performs them in order through `ports.Disk`. The
log itself never touches a disk.

A *program* is a generator that yields effects and receives each one's result. Recovery, and other work that must read
before it decides, are programs. Only `perform` and `run` interpret effects and programs.
"""

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from msgspec import Struct

from stratalog.log.checkpoints import encode_lines
from stratalog.ports import Buffer, Disk, FileInfo, FileRange

T = TypeVar("T")


class Append(NamedTuple):
    """Write buffers at a position of a file, creating it; page cache only."""

    path: str
    position: int
    buffers: Sequence[Buffer]


class Reserve(Struct, frozen=True):
    """Reserve room on the drive for a file of `size` bytes, creating it; its length does not change."""

    path: str
    size: int


class WriteFile(Struct, frozen=True):
    """Replace a whole small file, atomically and durably."""

    path: str
    data: Buffer


class Read(Struct, frozen=True):
    """Read up to `size` bytes at `position`, which are the result.

    With `may_stay` their place in the file may be the result, too.
    """

    path: str
    position: int
    size: int
    may_stay: bool = False


class ListDirectory(Struct, frozen=True):
    """List a directory. The result is list[FileInfo], empty for a missing directory."""

    path: str


class WriteLines(Struct, frozen=True):
    """Write a checkpoint of these lines, as `WriteFile`. The writing thread joins the lines, which can be a hundred
    thousand.
    """

    path: str
    lines: Collection[str]


class Sync(Struct, frozen=True):
    """Make a file's bytes durable."""

    path: str


class SyncDirectory(Struct, frozen=True):
    """Make a directory's entries durable."""

    path: str


class MakeDurable(Struct, frozen=True):
    """Replace whole small files, and make files and directories durable, in any order."""

    files: Mapping[str, Buffer]
    synced: Sequence[str]
    synced_directories: Sequence[str]


class Truncate(Struct, frozen=True):
    """Cut a file to `size` bytes."""

    path: str
    size: int


class Rename(Struct, frozen=True):
    """Rename a file or directory."""

    source: str
    target: str


class Unlink(Struct, frozen=True):
    """Remove a file, if it is there."""

    path: str


class MakeDirectory(Struct, frozen=True):
    """Create a directory, if it is not there."""

    path: str


class RemoveTree(Struct, frozen=True):
    """Remove a directory and all below it."""

    path: str


Effect = (
    Append
    | Reserve
    | WriteFile
    | WriteLines
    | Read
    | ListDirectory
    | Sync
    | SyncDirectory
    | MakeDurable
    | Truncate
    | Rename
    | Unlink
    | MakeDirectory
    | RemoveTree
)
Result = bytes | bytearray | FileRange | list[FileInfo] | None
Program = Generator[Effect, Result, T]


class Together:
    """The same effects, with one `MakeDurable` at the end instead of single syncs and whole-file writes."""

    def __init__(self) -> None:
        self._first: list[Effect] = []
        self._files: dict[str, Buffer] = {}
        self._synced: dict[str, None] = {}
        self._directories: dict[str, None] = {}

    def add(self, effects: Iterable[Effect]) -> None:
        """Add effects, to be performed after those that are there."""
        for effect in effects:
            match effect:
                case WriteFile(path, data):
                    self._files[path] = data
                case Sync(path):
                    self._synced[path] = None
                case SyncDirectory(path):
                    self._directories[path] = None
                case _:
                    self._first.append(effect)

    def all(self) -> list[Effect]:
        """Return the effects to perform."""
        durable = MakeDurable(self._files, tuple(self._synced), tuple(self._directories))
        return [*self._first, durable]


def perform(disk: Disk, effect: Effect) -> Result:  # noqa: C901, PLR0912 - a table
    """Carry out one effect. Raises OSError as `ports.Disk` does."""
    match effect:
        case Append(path, position, buffers):
            return disk.append(path, position, buffers)
        case Read(path, position, size):
            return disk.read(path, position, size)
        case Reserve(path, size):
            return disk.reserve(path, size)
        case WriteFile(path, data):
            return disk.write_file(path, data)
        case WriteLines(path, lines):
            return disk.write_file(path, encode_lines(lines))
        case ListDirectory(path):
            return disk.list(path)
        case Sync(path):
            return disk.sync(path)
        case SyncDirectory(path):
            return disk.sync_directory(path)
        case MakeDurable(files, synced, directories):
            return disk.make_durable(files, synced, directories)
        case Truncate(path, size):
            return disk.truncate(path, size)
        case Rename(source, target):
            return disk.rename(source, target)
        case Unlink(path):
            return disk.unlink(path)
        case MakeDirectory(path):
            return disk.make_directory(path)
        case RemoveTree(path):
            return disk.remove_tree(path)


def run(disk: Disk, program: Program[T]) -> T:
    """Drive a program to its end against a disk. A FileNotFoundError is thrown into the program at its yield."""
    result: Result = None
    failure: FileNotFoundError | None = None
    while True:
        try:
            effect = program.send(result) if failure is None else program.throw(failure)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        result, failure = None, None
        try:
            result = perform(disk, effect)
        except FileNotFoundError as missing:
            failure = missing
