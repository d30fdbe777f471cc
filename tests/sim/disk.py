"""A disk of a simulation: in memory, and a power loss takes unsynced writes as on a real one.

In: calls of `ports.Disk`; `crash` with a source of chance. Out: bytes, OSError. A crash may take bytes that were not
synced. A file loses any of its writes since its last sync, and the last one that survives may be torn. A directory
loses the latest of the changes since its last sync: the journals of ext4 and XFS keep them in order. Without
`keeps_order` it loses any of them, as other file systems may. No crash takes synced bytes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from tests.sim.process import current

from stratalog.ports import Buffer, FileInfo

T = TypeVar("T")


class PowerLoss(Exception):
    """The machine died in the middle of a call."""


@dataclass(slots=True)
class _File:
    content: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    unsynced: list[tuple[int, bytes | None]] = field(default_factory=list)  # None: cut there

    def write(self, position: int, data: bytes) -> None:
        self.unsynced.append((position, data))
        _write(self.content, position, data)

    def cut(self, size: int) -> None:
        self.unsynced.append((size, None))
        _cut(self.content, size)

    def sync(self) -> None:
        self.synced = bytes(self.content)
        self.unsynced.clear()

    def crash(self, chance: Random) -> None:
        kept = _survivors(self.unsynced, chance)
        content = bytearray(self.synced)
        for at, (position, data) in enumerate(kept):
            if data is None:
                _cut(content, position)
                continue
            torn = at == len(kept) - 1 and chance.random() < 0.5
            _write(content, position, _tear(data, chance) if torn else data)
        self.content = content
        self.sync()


@dataclass(slots=True)
class _Directory:
    entries: "dict[str, _File | _Directory]" = field(default_factory=dict)
    synced: "dict[str, _File | _Directory]" = field(default_factory=dict)
    unsynced: "list[dict[str, _File | _Directory | None]]" = field(default_factory=list)

    def change(self, changes: "dict[str, _File | _Directory | None]") -> None:
        self.unsynced.append(changes)
        _apply(self.entries, changes)

    def sync(self) -> None:
        self.synced = dict(self.entries)
        self.unsynced.clear()

    def crash(self, chance: Random, *, keeps_order: bool) -> None:
        entries = dict(self.synced)
        whole = self.unsynced
        for changes in (
            whole[: chance.randint(0, len(whole))] if keeps_order else _survivors(whole, chance)
        ):
            _apply(entries, changes)
        self.entries = entries
        self.sync()
        for entry in entries.values():
            if isinstance(entry, _Directory):
                entry.crash(chance, keeps_order=keeps_order)
            else:
                entry.crash(chance)


class SimDisk:
    """`ports.Disk` in memory.

    `before` is called with (operation, path) ahead of every call that changes something; what it raises leaves the disk
    as it was. A process that is dead changes nothing: it gets PowerLoss. `tear_after(n)` lets the next append write n
    bytes and then raises PowerLoss. `is_quick` is asked whether an append may be tried. `syncs` counts.
    """

    def __init__(self, *, keeps_order: bool = True) -> None:
        self.keeps_order = keeps_order
        """Whether a directory's changes survive a crash in order."""
        self._root = _Directory()
        self._locked = False
        self._tear_after: int | None = None
        self.before: Callable[[str, str], None] = lambda _operation, _path: None
        self.is_quick: Callable[[], bool] = lambda: True
        self.free = 1 << 40
        """The reported number of free bytes."""
        self.syncs = 0
        self.bytes_written = 0

    def _change(self, operation: str, path: str) -> None:
        process = current()
        if process is not None and process.is_dead:
            raise PowerLoss(path)
        self.before(operation, path)

    # Faults

    def crash(self, chance: Random) -> None:
        """Lose power: drop a random part of all unsynced changes."""
        self._root.crash(chance, keeps_order=self.keeps_order)
        self._locked = False

    def end_process(self) -> None:
        """The process dies and the machine does not: all written bytes remain."""
        self._locked = False

    def tear_after(self, size: int) -> None:
        """Let the next append write only `size` bytes before the power goes."""
        self._tear_after = size

    def copy(self) -> "SimDisk":
        """Another disk with the same files, all of them synced."""
        other = SimDisk(keeps_order=self.keeps_order)
        other._root = _copy(self._root)
        return other

    def flip(self, path: str, position: int) -> None:
        """Damage one bit, silently."""
        file = self._file(path)
        file.content[position] ^= 1
        file.sync()

    # ports.Disk

    def append(self, path: str, position: int, buffers: Sequence[Buffer]) -> None:
        self._change("append", path)
        data = b"".join(bytes(buffer) for buffer in buffers)
        torn, self._tear_after = self._tear_after, None
        self._create(path).write(position, data if torn is None else data[:torn])
        if torn is not None:
            raise PowerLoss(path)
        self.bytes_written += len(data)

    def try_append(self, path: str, position: int, buffers: Sequence[Buffer]) -> bool:
        quick = self.is_quick()
        if quick:
            self.append(path, position, buffers)
        return quick

    def reserve(self, path: str, size: int) -> None:
        del size
        self.append(path, 0, ())

    def read(self, path: str, position: int, size: int) -> bytes:
        return bytes(self._file(path).content[position : position + size])

    def try_read(self, path: str, position: int, size: int) -> bytearray | None:
        data = bytearray(self.read(path, position, size))
        return data if len(data) == size else None

    def cached(self, path: str, position: int, size: int) -> None:
        del path, position, size  # a simulated client has no socket

    def write_file(self, path: str, data: Buffer) -> None:
        self._change("write_file", path)
        file = _File(bytearray(data))
        file.sync()
        directory, name = self._parent(path)
        directory.change({name: file})
        directory.sync()

    def sync(self, path: str) -> None:
        self._change("sync", path)
        self.syncs += 1
        self._file(path).sync()

    def sync_directory(self, path: str) -> None:
        self._change("sync_directory", path)
        self.syncs += 1
        self._directory(path).sync()

    def make_durable(
        self, files: Mapping[str, Buffer], synced: Sequence[str], synced_directories: Sequence[str]
    ) -> None:
        for path, data in files.items():
            self.write_file(path, data)
        for path in synced:
            self.sync(path)
        for path in synced_directories:
            self.sync_directory(path)

    def truncate(self, path: str, size: int) -> None:
        self._change("truncate", path)
        self._file(path).cut(size)

    def rename(self, source: str, target: str) -> None:
        self._change("rename", source)
        directory, name = self._parent(source)
        entry = directory.entries.get(name)
        if entry is None:
            raise FileNotFoundError(source)
        other, new_name = self._parent(target)
        if other is directory:
            directory.change({name: None, new_name: entry})
        else:
            other.change({new_name: entry})
            directory.change({name: None})

    def unlink(self, path: str) -> None:
        self._change("unlink", path)
        directory, name = self._parent(path)
        if name in directory.entries:
            directory.change({name: None})

    def make_directory(self, path: str) -> None:
        self._change("make_directory", path)
        directory, name = self._parent(path)
        if name not in directory.entries:
            directory.change({name: _Directory()})

    def remove_tree(self, path: str) -> None:
        self.unlink(path)

    def list(self, path: str) -> list[FileInfo]:
        try:
            entries = self._directory(path).entries
        except FileNotFoundError:
            return []
        return [_info(name, entry) for name, entry in sorted(entries.items())]

    def size(self, path: str) -> int:
        return len(self._file(path).content)

    def total_bytes(self) -> int:
        return 2 << 40

    def free_bytes(self) -> int:
        return self.free

    def lock(self) -> bool:
        if self._locked:
            return False
        self._locked = True
        return True

    def close(self) -> None:
        process = current()
        if process is None or not process.is_dead:
            self._locked = False

    def close_idle(self) -> None:
        """Do nothing: no file is open."""

    # Finding

    def _directory(self, path: str) -> _Directory:
        found: _File | _Directory | None = self._root
        for name in path.split("/") if path else []:
            found = found.entries.get(name) if isinstance(found, _Directory) else None
        if not isinstance(found, _Directory):
            raise FileNotFoundError(path)
        return found

    def _parent(self, path: str) -> tuple[_Directory, str]:
        above, _, name = path.rpartition("/")
        return self._directory(above), name

    def _file(self, path: str) -> _File:
        directory, name = self._parent(path)
        found = directory.entries.get(name)
        if not isinstance(found, _File):
            raise FileNotFoundError(path)
        return found

    def _create(self, path: str) -> _File:
        directory, name = self._parent(path)
        if name not in directory.entries:
            directory.change({name: _File()})
        return self._file(path)


def _survivors(writes: list[T], chance: Random) -> list[T]:
    if chance.random() < 0.5:
        return writes[: chance.randint(0, len(writes))]
    return [write for write in writes if chance.random() < 0.5]


def _tear(data: bytes, chance: Random) -> bytes:
    """Return the rest of an interrupted write: its beginning, or all but some pages in the middle (zeros)."""
    at = chance.randint(0, len(data))
    if chance.random() < 0.5:
        return data[:at]
    size = chance.randint(0, len(data) - at)
    return data[:at] + bytes(size) + data[at + size :]


def _write(content: bytearray, position: int, data: bytes) -> None:
    if position > len(content):
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


def _cut(content: bytearray, size: int) -> None:
    del content[size:]
    content.extend(bytes(size - len(content)))


def _apply(
    entries: "dict[str, _File | _Directory]", changes: "dict[str, _File | _Directory | None]"
) -> None:
    for name, entry in changes.items():
        if entry is None:
            entries.pop(name, None)
        else:
            entries[name] = entry


def _copy(directory: _Directory) -> _Directory:
    copied = _Directory()
    for name, entry in directory.entries.items():
        copied.entries[name] = (
            _copy(entry)
            if isinstance(entry, _Directory)
            else _File(bytearray(entry.content), bytes(entry.content))
        )
    copied.sync()
    return copied


def _info(name: str, entry: _File | _Directory) -> FileInfo:
    if isinstance(entry, _Directory):
        return FileInfo(name, 0, is_directory=True)
    return FileInfo(name, len(entry.content), is_directory=False)


def paths(disk: SimDisk, directory: str = "") -> Iterator[str]:
    """Every file's path below `directory`."""
    for info in disk.list(directory):
        path = f"{directory}/{info.name}" if directory else info.name
        if info.is_directory:
            yield from paths(disk, path)
        else:
            yield path
