"""Follow growing files through their rotation, for `strata tail`.

In: patterns of paths, entries of an earlier run. Out: chunks of whole lines, and entries that say how far each file was
read. It never moves an entry by itself: the caller does (`keep`), once the chunk is safe.

A file is known by device and inode, and by its content: a hash of its first bytes and one of the bytes before the
position. So a renamed file goes on where it was, a reused inode is another file, and a copy (logrotate's copytruncate,
gzip) is read from where its original was left.
"""

import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from glob import has_magic, iglob
from hashlib import blake2b
from typing import Any, BinaryIO, Final, NamedTuple

from stratalog.cli.records.found_files import (
    FileKey,
    is_family,
    is_packed,
    key_of,
    opened,
    packed_size,
    rotated_of,
    siblings,
    stat_of,
)

__all__ = ["Chunk", "Entry", "FileKey", "TailedFiles"]

_HASHED_BYTES: Final = 1024
_ENTRIES_MAX: Final = 20_000
_IDLE_S: Final = 60.0
_UNREADABLE: Final = (OSError, EOFError, zlib.error)
"""What reading raises: of the disk, of rights, of a .gz file that is damaged or not whole yet."""
_MTIME_SLACK_S: Final = 2.0
"""Some file systems keep times in whole seconds, or two."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, and its bytes that are safe. Hashes: of its first `head_bytes`, and of those before the position."""

    path: str
    device: int
    inode: int
    position: int = 0
    head_bytes: int = 0
    head: str = ""
    behind: str = ""
    is_done: bool = False
    """Whether the file was rotated away and read to its end."""
    size: int = 0
    """Its size on the disk then."""
    modified_ns: int = 0
    """When it was written last, as of the last read, in epoch ns: a file that gets its inode has another time."""
    origin: str = ""
    """The path at which it was first met, which its rotated copies keep."""

    @property
    def key(self) -> FileKey:
        return FileKey(self.device, self.inode)

    def is_unchanged(self, stat: os.stat_result) -> bool:
        """Return whether a file that was read to its end is as it was then."""
        size = self.size if self.is_done else self.position
        return (stat.st_size, stat.st_mtime_ns) == (size, self.modified_ns)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Chunk(NamedTuple):
    """Whole lines with their ends; the last line of a file that ended may lack its end. `after` holds once they are
    safe.
    """

    data: bytes
    before: Entry
    after: Entry


@dataclass(slots=True)
class _Open:
    """A file that is read."""

    entry: Entry
    file: BinaryIO
    size: int = -1
    quiet_since_s: float = 0.0
    is_replaced: bool = False
    """Whether its path names another file by now, or none: it was rotated away."""


@dataclass(slots=True)
class TailedFiles:
    """`look` for files every second or so, then take `chunks` until there are none."""

    patterns: tuple[str, ...]
    entries: dict[FileKey, Entry]
    from_end: bool
    """Whether files that exist at the first look of the first run are read from their ends."""
    line_bytes_max: int
    ends_after_s: float = 5.0
    """A replaced file that has not grown for so long has ended."""
    looked_s: float = 0.0
    """When an earlier run looked last, in epoch seconds; 0 for never."""
    until_end: bool = False
    """Whether a last line without an end is taken at once: nothing will be read later."""
    notes: list[str] = field(default_factory=list)
    """Lines for a person; the caller prints and clears them."""
    _open: dict[FileKey, _Open] = field(default_factory=dict)
    _copies: dict[FileKey, FileKey] = field(default_factory=dict)
    """By a copy that logrotate is making: its original, which is read meanwhile."""
    _handed_over: set[FileKey] = field(default_factory=set)
    """Files whose bytes are gone, and of which a copy is read."""
    _idle: set[FileKey] = field(default_factory=set)
    """Files that were read to their ends and closed, until they grow."""
    _unreadable: set[str] = field(default_factory=set)
    """Paths that a note names already."""
    _now_s: float = 0.0
    _has_looked: bool = False

    def look(self, now_s: float, wall_s: float) -> None:
        """Find new, renamed, replaced and truncated files. `wall_s` is epoch seconds.

        A file that cannot be read is a note, and it is tried again; with `until_end` it raises OSError.
        """
        self._now_s = now_s
        named: dict[FileKey, str] = {}
        origins: dict[FileKey, str] = {}
        paths = list(self._paths())
        if self.looked_s:
            self._name_rotated(paths, named, origins)
        self.looked_s = wall_s
        for path in paths:
            key = key_of(path)
            if key is not None and key not in named:
                named[key] = path
        if not self._has_looked:
            self._name_absent()
            # Files of which nothing was read come last: any file that has got their inode looks the same.
            for entry in sorted(self.entries.values(), key=lambda one: not one.position):
                is_known = self.entries.get(entry.key) is entry and not entry.is_done
                if is_known and entry.key not in named and not self._read_renamed(entry):
                    self._read_copy(entry)
        for one in list(self._open.values()):
            self._watch(one, named.get(one.entry.key))
        for key, path in named.items():
            if key not in self._open:
                self._meet(key, path, origins.get(key, path))
        self._has_looked = True
        for key in list(self.entries)[: max(0, len(self.entries) - _ENTRIES_MAX)]:
            if key not in self._open:  # the oldest ones are first
                del self.entries[key]

    def chunks(self, bytes_max: int) -> Iterator[Chunk]:
        """Yield the next chunk of each file, at most `bytes_max` of each.

        Of a file and its rotated forms the oldest goes first, so that their lines stay in order.
        """
        busy = set()
        for one in list(self._open.values()):
            if one.entry.origin not in busy:
                chunk = self._chunk(one, bytes_max)
                if chunk is not None:
                    busy.add(one.entry.origin)
                    yield chunk

    def shortened(self, chunk: Chunk, size: int) -> Chunk:
        """Return the chunk with its first `size` bytes alone."""
        one = self._open[chunk.before.key]
        after = _moved(chunk.before, one.file, chunk.before.position + size)
        return Chunk(chunk.data[:size], chunk.before, after)

    def quiet_s(self, key: FileKey) -> float:
        """Return for how many seconds an open file has not grown."""
        return self._now_s - self._open[key].quiet_since_s

    def keep(self, chunk: Chunk) -> None:
        """Move a file's entry behind the chunk, which is safe now."""
        key = chunk.after.key
        self.entries[key] = chunk.after
        if key in self._open:
            self._open[key].entry = chunk.after
            if chunk.after.is_done:
                self._open.pop(key).file.close()

    def close(self) -> None:
        """Close every file."""
        for one in self._open.values():
            one.file.close()
        self._open.clear()

    def _paths(self) -> Iterator[str]:
        for pattern in self.patterns:
            yield from _paths_of(pattern)

    def _name_absent(self) -> None:
        """Note each pattern that names no file: it may be mistyped."""
        for pattern in self.patterns:
            if not any(key_of(path) for path in _paths_of(pattern)):
                later = "" if self.until_end else " yet; it is looked for every second"
                self.notes.append(f"{pattern} names no regular file{later}")

    def _name_rotated(
        self, paths: Iterable[str], named: dict[FileKey, str], origins: dict[FileKey, str]
    ) -> None:
        """Add the files that came and were rotated away since the last look, the oldest first."""
        for path in paths:
            found = [
                (stat.st_mtime, FileKey(stat.st_dev, stat.st_ino), sibling, stat)
                for sibling in rotated_of(path)
                if (stat := stat_of(sibling)) is not None
                and stat.st_mtime >= self.looked_s - _MTIME_SLACK_S
            ]
            for _, key, sibling, stat in sorted(found):
                entry = self.entries.get(key)
                # A file that ended may have left its inode to a new one.
                if entry is None or (entry.is_done and not entry.is_unchanged(stat)):
                    named.setdefault(key, sibling)
                    origins.setdefault(key, path)

    def _meet(self, key: FileKey, path: str, origin: str) -> None:
        """Open a file of the patterns, at its entry's position where it has one."""
        entry = self.entries.get(key)
        if entry is not None and (entry.is_done or key in self._idle):
            stat = stat_of(path)
            if stat is not None and entry.is_unchanged(stat):
                return
            self._idle.discard(key)
        file = self._opened(path, key)
        if file is None:  # it was renamed since: the next look names a file that has no entry yet
            if entry is not None and not entry.is_done:
                self._read_renamed(entry)
            return
        if entry is not None and not _is_same(file, entry):
            # Its bytes are others: it was truncated while nothing ran, or the inode belongs to a new file.
            if not entry.is_done:
                self._read_copy(entry)
            entry = None
        else:
            self._handed_over.discard(key)
        if entry is None:
            original = self._original_of(path, file)
            if original is not None and original.key in self._open:
                # The original is read, as long as it has these bytes.
                self._copies[key] = original.key
                file.close()
                return
            if original is not None:
                self._handed_over.add(original.key)
            entry = self._first_entry(key, path, file, original)
            entry = replace(entry, origin=entry.origin or origin)
        entry = replace(entry, path=path, is_done=False)
        self.entries[key] = entry
        self._open[key] = _Open(entry, file, quiet_since_s=self._now_s)

    def _first_entry(
        self, key: FileKey, path: str, file: BinaryIO, original: Entry | None
    ) -> Entry:
        """Return the entry of a file that was never met: a copy goes on where its original was left."""
        if original is not None:
            return replace(original, path=path, device=key.device, inode=key.inode)
        entry = Entry(path, *key)
        if self.from_end and not self._has_looked:
            return _moved(entry, file, _last_line_start(file))
        return entry

    def _original_of(self, path: str, file: BinaryIO) -> Entry | None:
        """Return the entry of which a new file is a copy, or the begin of one that is still under way."""
        for other in reversed(self.entries.values()):
            if not is_family(other.path, path):
                continue
            one = self._open.get(other.key)
            if one is not None and _is_copy(file, one.file):
                return other
            if other.position and _is_same(file, other):
                return other
        return None

    def _watch(self, one: _Open, path: str | None) -> None:
        """Notice that an open file was truncated, renamed, replaced, or has grown."""
        key = one.entry.key
        stat = os.fstat(one.file.fileno())
        size = stat.st_size
        if size != one.size:
            one.size, one.quiet_since_s = size, self._now_s
            if not is_packed(one.file) and not _is_same(one.file, one.entry):
                self._read_copy(one.entry)
                fresh = Entry(one.entry.path, *key, origin=one.entry.origin)
                one.entry = self.entries[key] = fresh
        packed = is_packed(one.file)
        if key_of(one.entry.path) != key or packed:
            one.is_replaced = True
        if path is not None and path != one.entry.path:
            one.entry = self.entries[key] = replace(one.entry, path=path)
        is_quiet = self._now_s - one.quiet_since_s >= _IDLE_S and size == one.entry.position
        if is_quiet and not one.is_replaced and not packed:
            one.file.close()
            del self._open[key]
            self.entries[key] = replace(one.entry, modified_ns=stat.st_mtime_ns)
            self._idle.add(key)

    def _read_renamed(self, entry: Entry) -> bool:
        """Open a file whose new name no pattern matches; return whether there is one."""
        for path in siblings(entry.path):
            if key_of(path) == entry.key:
                file = self._opened(path, entry.key)
                if file is not None and _is_same(file, entry):
                    self._open[entry.key] = _Open(entry, file, is_replaced=True)
                    return True
                if file is not None:
                    file.close()
        return False

    def _read_copy(self, entry: Entry) -> None:
        """Open the copy of a file whose own bytes are gone, to read what it has behind the position."""
        if not entry.position or entry.key in self._handed_over:
            self._handed_over.discard(entry.key)
            self.entries.pop(entry.key, None)
            return
        # The copy goes on for it: a new file may get its inode.
        self.entries.pop(entry.key, None)
        found = False
        for path in siblings(entry.path):
            key = key_of(path)
            if key is None or key == entry.key or key in self._open:
                continue
            met = self.entries.get(key)
            if met is not None and met.position:
                continue
            file = self._opened(path, key)
            if file is None:
                continue
            is_known_copy = self._copies.get(key) == entry.key
            if _is_same(file, entry) and not found:
                found = True
                copied = replace(entry, path=path, device=key.device, inode=key.inode)
                self.entries[key] = copied
                self._open[key] = _Open(copied, file, is_replaced=True, quiet_since_s=self._now_s)
                continue
            if is_known_copy:  # it has no more than what was read from its original
                size = os.fstat(file.fileno()).st_size
                self.entries[key] = _moved(Entry(path, *key), file, size, is_done=True)
                found = True
            file.close()
        if not found:
            self.notes.append(
                f"{entry.path} was truncated or replaced, and its directory has no copy of it: lines behind byte "
                f"{entry.position}, if there were any, are lost; it is read from its beginning"
            )

    def _opened(self, path: str, key: FileKey) -> BinaryIO | None:
        """Open a file; None where that cannot be, with a note unless it is gone."""
        try:
            file = opened(path, key)
        except OSError as error:
            self._cannot_read(path, error)
            return None
        self._unreadable.discard(path)
        return file

    def _cannot_read(self, path: str, error: Exception) -> None:
        """Note it once. Raises OSError with `until_end`, as the file is not tried again."""
        reason = getattr(error, "strerror", None) or str(error)
        if self.until_end:
            raise OSError(f"{path} cannot be read: {reason}") from error
        if path not in self._unreadable:
            self._unreadable.add(path)
            self.notes.append(f"{path} cannot be read: {reason}; it is tried again")

    def _chunk(self, one: _Open, bytes_max: int) -> Chunk | None:
        position = one.entry.position
        try:
            one.file.seek(position)
            data = one.file.read(bytes_max)
        except _UNREADABLE as error:
            # A .gz file that is written just now is read again, without a word.
            if self.until_end or not is_packed(one.file):
                self._cannot_read(one.entry.path, error)
            return None
        end = data.rfind(b"\n") + 1
        is_at_end = len(data) < bytes_max
        has_ended = is_at_end and (
            self.until_end
            or (one.is_replaced and self._now_s - one.quiet_since_s >= self.ends_after_s)
        )
        if has_ended:
            end = len(data)
        elif not end and len(data) >= min(bytes_max, self.line_bytes_max):
            end = min(len(data), self.line_bytes_max)  # a line that is too long goes in parts
        is_done = has_ended and one.is_replaced
        if not end and not is_done:
            return None
        data = data[:end]
        return Chunk(data, one.entry, _moved(one.entry, one.file, position + end, is_done=is_done))


def _paths_of(pattern: str) -> list[str]:
    if has_magic(pattern):
        return sorted(iglob(pattern, recursive=True))  # noqa: PTH207 - a whole path
    return [pattern]


def _moved(entry: Entry, file: BinaryIO, position: int, *, is_done: bool = False) -> Entry:
    """Return the entry at another position, with the hashes there."""
    head_bytes, head = entry.head_bytes, entry.head
    if head_bytes < _HASHED_BYTES and position > head_bytes:
        head_bytes = min(_HASHED_BYTES, position)
        head = _hash_of(file, 0, head_bytes)
    behind = _hash_of(file, max(0, position - _HASHED_BYTES), position)
    stat = os.fstat(file.fileno())
    return replace(
        entry,
        position=position,
        head_bytes=head_bytes,
        head=head,
        behind=behind,
        is_done=is_done,
        size=stat.st_size,
        modified_ns=stat.st_mtime_ns,
    )


def _hash_of(file: BinaryIO, start: int, end: int) -> str:
    """Return the hash of a range of a file; of fewer bytes where it is shorter."""
    file.seek(start)
    return blake2b(file.read(end - start), digest_size=16).hexdigest()


def _is_same(file: BinaryIO, entry: Entry) -> bool:
    """Return whether a file has the bytes that were read of an entry."""
    if not entry.position:
        return True
    try:
        return (
            _hash_of(file, 0, entry.head_bytes) == entry.head
            and _hash_of(file, max(0, entry.position - _HASHED_BYTES), entry.position)
            == entry.behind
        )
    except _UNREADABLE:
        return False


def _is_copy(file: BinaryIO, original: BinaryIO) -> bool:
    """Return whether a file is a copy of an open one, or the begin of a copy under way."""
    if is_packed(original):
        return False
    try:
        return _begins_alike(file, original)
    except _UNREADABLE:
        return False


def _begins_alike(file: BinaryIO, original: BinaryIO) -> bool:
    size = packed_size(file) if is_packed(file) else os.fstat(file.fileno()).st_size
    if not size or (is_packed(file) and size != os.fstat(original.fileno()).st_size % (1 << 32)):
        return False
    head, last = min(size, _HASHED_BYTES), max(0, size - _HASHED_BYTES)
    ranges = ((0, head),) if is_packed(file) else ((0, head), (last, size))
    return all(_hash_of(file, *one) == _hash_of(original, *one) for one in ranges)


def _last_line_start(file: BinaryIO) -> int:
    """Return where the last line without an end begins: the file's end where there is none."""
    try:
        end = file.seek(0, os.SEEK_END)
    except _UNREADABLE:
        return 0
    while end:
        start = max(0, end - (64 << 10))
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
