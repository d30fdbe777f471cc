"""What `strata tail` finds on the disk: files by their patterns, directories, and the bytes that tell copies apart.

In: patterns, paths. Out: sights of files, listings, open files. A path that names no regular file is None. It decides
nothing: `tracked.py` does.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from glob import has_magic, iglob
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, TypeVar

from stratalog.adapters.file_facts import FileFacts, facts_of, facts_of_open
from stratalog.cli.records.packed_files import MAGIC_BYTES, UNREADABLE, kind_of, unpacked
from stratalog.cli.records.tracked import HASHED_BYTES, Entry, FileKey, Kind, Sight, hash_of

__all__ = ["Directory", "FileContents", "OpenFile", "Paths", "key_of", "opened", "paths_of"]

_A = TypeVar("_A")

_LISTED_SLACK_NS: Final = 1_000_000_000
"""A directory that changed so shortly before its listing may have changed since at the same time."""
_BLOCK_BYTES: Final = 1 << 20


def key_of(path: str) -> FileKey | None:
    """Return the key of a regular file; None for anything else."""
    found = facts_of(path)
    return None if found is None or not found.is_regular else FileKey(*found[:3])


@dataclass(slots=True)
class Paths:
    """Paths without links. Those of directories are looked up once a look."""

    _directories: dict[str, str] = field(default_factory=dict)

    def clear(self) -> None:
        self._directories.clear()

    def real(self, path: str) -> str:
        """Return a path whose directory has no link in it."""
        directory, name = os.path.split(path)
        found = self._directories.get(directory)
        if found is None:
            found = self._directories[directory] = os.path.realpath(directory)
        return f"{found}/{name}"

    def sight(self, path: str) -> Sight | None:
        """Return what a path names, through links."""
        real = self.real(path)
        found = facts_of(real, follows_links=False)
        if found is not None and found.is_link:
            real = os.path.realpath(real)
            found = facts_of(real)
        if found is None or not found.is_regular:
            return None
        return Sight(path, real, FileKey(*found[:3]), found.size, found.modified_ns)


def paths_of(pattern: str) -> list[str]:
    """Return the paths that a pattern names; one without magic names itself."""
    if has_magic(pattern):
        return sorted(iglob(pattern, recursive=True))  # noqa: PTH207 - a whole path
    return [pattern]


@dataclass(slots=True)
class Directory:
    """The names in a directory and the inodes that they name. `listed` reads it again once it has changed."""

    path: str
    device: int | None = None
    """The device of its files, or of the nearest directory above that exists; None where it cannot be listed."""
    exists: bool = False
    names: dict[int, str] = field(default_factory=dict)
    _changed_ns: int = -1

    def listed(self, wall_ns: int) -> bool:
        """List the directory where it changed; return whether it did. One that cannot be listed does not exist."""
        facts = facts_of(self.path)
        if facts is not None and self.exists and facts.modified_ns == self._changed_ns:
            return False
        had = self.exists or self.device is None
        self.exists, self._changed_ns, self.names = False, -1, {}
        if facts is None:
            self.device = _device_above(self.path)
            return had
        self.device = facts.device
        try:
            with os.scandir(self.path) as found:
                self.names = {one.inode(): one.name for one in found}
        except OSError:
            self.device = None
            return True
        self.exists = True
        if wall_ns - facts.modified_ns > _LISTED_SLACK_NS:
            self._changed_ns = facts.modified_ns
        return True


def _device_above(path: str) -> int | None:
    """Return the device of the nearest directory above a path that exists no longer."""
    while (above := os.path.dirname(path)) != path:  # noqa: PTH120 - a string that may name nothing
        path = above
        found = facts_of(path)
        if found is not None:
            return found.device
    return None


HOLE_BYTES: Final = 512
"""So many NUL bytes are a hole, which no program wrote; at the begin of a file any number of them."""


class Bytes(NamedTuple):
    """What was read of a file. `before`: the bytes before it, up to a KiB."""

    before: bytes
    skipped: int
    """NUL bytes of a hole in front of `data`."""
    data: bytes
    is_cut: bool
    """Whether a hole follows, which ends a line."""
    is_at_end: bool


@dataclass(slots=True)
class OpenFile:
    """An open file at any position; `file` is read through the library of its packer where it is packed."""

    plain: BinaryIO
    file: BinaryIO
    is_checked: bool = False
    kept: bytes = b""
    """The last bytes that were unpacked: a seek backward unpacks the file from its beginning."""
    kept_at: int = 0

    @property
    def is_packed(self) -> bool:
        return self.plain is not self.file

    def facts(self) -> FileFacts:
        """Return the facts of the file itself. Raises OSError."""
        return facts_of_open(self.plain.fileno())

    def at(self, position: int, size: int) -> bytes:
        """Return bytes of the file, fewer at its end. Raises as `UNREADABLE`."""
        if not self.is_packed:
            return os.pread(self.plain.fileno(), size, position)
        skipped = position - self.kept_at
        if not 0 <= skipped <= len(self.kept):
            self.file.seek(position)
            self.kept, self.kept_at, skipped = b"", position, 0
        missing = skipped + size - len(self.kept)
        if missing > 0:
            self.kept += self.file.read(missing)
        found = self.kept[skipped : skipped + size]
        drop = max(0, skipped - HASHED_BYTES)
        self.kept, self.kept_at = self.kept[drop:], self.kept_at + drop
        return found

    def holds(self, entry: Entry) -> bool:
        """Return whether the file has the bytes that were read of an entry. Raises as `UNREADABLE`."""
        if not entry.position:
            return True
        if hash_of(self.at(0, entry.head_bytes)) != entry.head:
            return False
        start = max(0, entry.position - HASHED_BYTES)
        return hash_of(self.at(start, entry.position - start)) == entry.behind

    def read(self, entry: Entry, size: int) -> Bytes | None:
        """Return bytes behind an entry's position, without the NULs of a hole; None where other bytes are before it.

        Raises as `UNREADABLE`.
        """
        position = entry.position
        start = max(0, position - HASHED_BYTES)
        if not self.is_checked and not self.holds(entry):
            return None
        self.is_checked = True
        if self.is_packed:
            before = self.at(start, position - start)
            data = self.at(position, size)
        else:
            data = self.at(position, size)
            before = self.at(start, position - start)  # after the data: so both are of one file
            if position and hash_of(before) != entry.behind:
                return None
        if b"\0" in data:
            return self._without_holes(position, before, data, size)
        return Bytes(before, 0, data, is_cut=False, is_at_end=len(data) < size)

    def _without_holes(self, position: int, before: bytes, data: bytes, size: int) -> Bytes:
        """Cut the bytes at a hole, or skip the one they begin with. NULs before the file's end may be written yet."""
        is_at_end, skipped = len(data) < size, 0
        nuls = len(data) - len(data.lstrip(b"\0"))
        if nuls and (not position or nuls >= HOLE_BYTES):
            behind = self._behind_hole(position + nuls)
            if behind is None:
                return Bytes(before, 0, b"", is_cut=False, is_at_end=True)
            skipped = behind - position
            before = (before + bytes(min(skipped, HASHED_BYTES)))[-2 * HASHED_BYTES :]
            data = self.at(behind, size)
            is_at_end = len(data) < size
        hole = data.find(bytes(HOLE_BYTES))
        is_cut = False
        if hole >= 0:
            is_cut = self._behind_hole(position + skipped + hole) is not None
            is_at_end = not is_cut
            data = data[:hole]
        return Bytes(before, skipped, data, is_cut, is_at_end)

    def _behind_hole(self, position: int) -> int | None:
        """Return where the next byte is that is not NUL; None where there is none."""
        if not self.is_packed:
            with suppress(OSError):  # none, or a file system without holes
                position = os.lseek(self.plain.fileno(), position, os.SEEK_DATA)
        while block := self.at(position, _BLOCK_BYTES):
            rest = block.lstrip(b"\0")
            if rest:
                return position + len(block) - len(rest)
            position += len(block)
        return None

    def placed(self, entry: Entry, position: int) -> Entry:
        """Return an entry that was never read at a position. Raises as `UNREADABLE`."""
        head = self.at(0, min(HASHED_BYTES, position))
        start = max(0, position - HASHED_BYTES)
        behind = self.at(start, position - start)
        facts = self.facts()
        return replace(
            entry,
            position=position,
            head_bytes=len(head),
            head=hash_of(head),
            behind=hash_of(behind),
            size=facts.size,
            modified_ns=facts.modified_ns,
        )

    def last_line_start(self) -> int:
        """Return where the last line without an end begins: the file's end where there is none."""
        end = self.unpacked_size() if self.is_packed else self.facts().size
        while end:
            start = max(0, end - (64 << 10))
            found = self.at(start, end - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
        return 0

    def unpacked_size(self) -> int:
        """Return the size of what a packed file packs, by reading all of it. Raises as `UNREADABLE`."""
        self.kept, self.kept_at = b"", -1
        return self.file.seek(0, os.SEEK_END)

    def close(self) -> None:
        self.file.close()
        self.plain.close()


def opened(path: str, key: FileKey) -> OpenFile | None:
    """Open a file; None where the path names no file, or another one by now. Raises as `UNREADABLE`."""
    try:
        plain = Path(path).open("rb", buffering=0)  # noqa: SIM115 - it stays open
    except FileNotFoundError:
        return None
    try:
        if FileKey(*facts_of_open(plain.fileno())[:3]) != key:
            plain.close()
            return None
        kind = kind_of(os.pread(plain.fileno(), MAGIC_BYTES, 0), path)
        return OpenFile(plain, unpacked(plain) if kind is Kind.PACKED else plain)
    except BaseException:  # whatever ends this, the file is closed
        plain.close()
        raise


@dataclass(slots=True)
class FileContents:
    """The port of `tracked.py`, with real files. `failed` takes what cannot be read."""

    failed: Callable[[str, Exception], None]
    open_files: dict[FileKey, OpenFile]

    def kind(self, sight: Sight) -> Kind:
        """Return how a file is read."""
        if not sight.size and kind_of(b"", sight.path) is Kind.PLAIN:
            return Kind.PLAIN
        try:
            with Path(sight.path).open("rb", buffering=0) as file:
                return kind_of(file.read(MAGIC_BYTES), sight.path)
        except FileNotFoundError:
            return Kind.UNFINISHED
        except OSError as error:
            self.failed(sight.path, error)
            return Kind.UNFINISHED

    def holds(self, sight: Sight, entry: Entry) -> bool | None:
        """Return whether a file has the bytes that were read of an entry; None for a packed one that is not whole."""

        def has(file: OpenFile) -> bool:
            return not (file.is_packed and file.unpacked_size() < entry.position) and file.holds(
                entry
            )

        return self._ask(sight.path, sight.key, has)

    def is_part(self, sight: Sight, entry: Entry) -> bool | None:
        """Return whether all of a file is what the entry's file begins with: by its size, its head and its last KiB."""
        return self._ask(
            sight.path,
            sight.key,
            lambda file: self._ask(entry.real, entry.key, lambda whole: _is_part(file, whole)),
        )

    def at_end(self, entry: Entry) -> Entry:
        """Return a new file's entry at the begin of its last line without an end."""
        placed = self._ask(
            entry.real, entry.key, lambda file: file.placed(entry, file.last_line_start())
        )
        return placed or entry

    def _ask(self, path: str, key: FileKey, question: Callable[[OpenFile], _A]) -> _A | None:
        """Ask a file that is open already, or open it for a moment; None where it cannot be read."""
        file = self.open_files.get(key)
        try:
            if file is not None:
                return question(file)
            file = opened(path, key)
            if file is None:
                return None
            try:
                return question(file)
            finally:
                file.close()
        except UNREADABLE:
            return None


def _is_part(file: OpenFile, whole: OpenFile) -> bool:
    size = file.unpacked_size() if file.is_packed else file.facts().size
    if not size or size > (whole.unpacked_size() if whole.is_packed else whole.facts().size):
        return False
    head, last = min(size, HASHED_BYTES), max(0, size - HASHED_BYTES)
    return file.at(0, head) == whole.at(0, head) and file.at(last, size - last) == whole.at(
        last, size - last
    )
