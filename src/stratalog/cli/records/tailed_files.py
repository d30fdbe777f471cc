"""Follow growing files through their rotation, for `strata tail`.

In: patterns of paths, entries of an earlier run. Out: chunks of whole lines, and entries that say how far each file was
read. It never moves an entry by itself: the caller does (`keep`), once the chunk is safe.

`found_files.py` looks at the disk, `tracked.py` decides what each file is, this reads.
"""

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from os.path import split
from typing import Final, NamedTuple

from stratalog.adapters.file_facts import facts_of
from stratalog.cli.records.found_files import (
    Directory,
    FileContents,
    OpenFile,
    Paths,
    key_of,
    opened,
    paths_of,
)
from stratalog.cli.records.packed_files import UNREADABLE
from stratalog.cli.records.rotated_names import names_before
from stratalog.cli.records.tracked import Entry, FileKey, Look, Tracked

__all__ = ["Chunk", "Entry", "FileKey", "TailedFiles"]

_IDLE_S: Final = 60.0
_RECENT_S: Final = 5.0
"""A file that has grown so lately is read again before the next look."""
_DAMAGED_NS: Final = 60_000_000_000
"""A packed file that cannot be read is not whole yet; after so long without a change it is damaged."""


class Chunk(NamedTuple):
    """Whole lines with their ends; the last line of a file that ended, or before a hole, may lack its end.

    `after` holds once they are safe.
    """

    data: bytes
    before: Entry
    after: Entry
    start: int
    """Where `data` begins in the file: behind a hole, where there is one."""
    is_at_end: bool
    """Whether the file ends behind these lines by now."""
    is_full: bool
    """Whether more bytes of the file follow than a chunk may have."""
    is_cut: bool
    """Whether a hole follows: no record goes on behind it."""
    context: bytes
    """The bytes before `data`, up to two KiB."""


class _Size(NamedTuple):
    size: int
    since_s: float


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
    open_max: int = 512
    """How many files are open at a time."""
    notes: list[str] = field(default_factory=list)
    """Lines for a person; the caller prints and clears them."""
    _tracked: Tracked = field(init=False)
    _contents: FileContents = field(init=False)
    _open: dict[FileKey, OpenFile] = field(default_factory=dict)
    """Files that are open; the one that was read last is the last."""
    _sizes: dict[FileKey, _Size] = field(default_factory=dict)
    """The sizes of files that are read, and since when they have them."""
    _directories: dict[str, Directory] = field(default_factory=dict)
    _paths: Paths = field(default_factory=Paths)
    _found: Look | None = None
    _unreadable: set[str] = field(default_factory=set)
    """Paths that a note names already."""
    _now_s: float = 0.0
    _wall_s: float = 0.0
    _last_origin: str = ""

    def __post_init__(self) -> None:
        looked_ns = int(self.looked_s * 1e9)
        self._tracked = Tracked(
            self.entries, self.from_end, self.until_end, looked_ns, notes=self.notes
        )
        self._contents = FileContents(self._cannot_read, self._open)

    def look(self, now_s: float, wall_s: float) -> None:
        """Find new, renamed, replaced and truncated files. `wall_s` is epoch seconds.

        A file that cannot be read is a note, and it is tried again; with `until_end` it raises OSError.
        """
        self._now_s, self._wall_s = now_s, wall_s
        is_first = self._found is None
        self._look_again(())
        if is_first:
            self._name_absent()
        self._tracked.looked_ns = int(wall_s * 1e9)
        self.looked_s = self._tracked.first_undecided_ns / 1e9
        self._forget_sizes()

    def chunks(self, bytes_max: int) -> Iterator[Chunk]:
        """Yield the next chunk of each file, at most `bytes_max` of each.

        Of a file and its rotated forms the oldest goes first, so that their lines stay in order.
        """
        found = self._found
        groups: dict[str, list[FileKey]] = {}
        to_read = [self.entries[key] for key in self._tracked.to_read]
        for entry in sorted(to_read, key=lambda one: one.number):
            groups.setdefault(entry.origin, []).append(entry.key)
        origins = list(groups)
        if self._last_origin in groups:  # the others are next
            at = origins.index(self._last_origin) + 1
            origins = origins[at:] + origins[:at]
        for origin in origins:
            for key in groups[origin]:
                chunk, has_rest = self._chunk(key, bytes_max)
                if self._found is not found:  # a file began again: what is to be read is another
                    yield from self.chunks(bytes_max)
                    return
                if chunk is not None:
                    self._last_origin = origin
                    yield chunk
                if chunk is not None or has_rest:
                    break

    def shortened(self, chunk: Chunk, size: int) -> Chunk:
        """Return the chunk with its first `size` bytes alone."""
        data = chunk.data[:size]
        after = chunk.before.moved(chunk.context, data, chunk.start + size)
        return chunk._replace(data=data, after=after, is_at_end=False, is_cut=False)

    def quiet_s(self, key: FileKey) -> float:
        """Return for how many seconds a file has not grown."""
        return self._now_s - self._sizes[key].since_s

    def keep(self, chunk: Chunk) -> None:
        """Move a file's entry behind the chunk, which is safe now."""
        self._tracked.move(chunk.after)
        if chunk.after.is_done:
            self._close(chunk.after.key)
        skipped = chunk.start - chunk.before.position
        if skipped:
            self.notes.append(
                f"{chunk.before.path} has a hole of {skipped} NUL bytes before byte {chunk.start}, which is skipped"
            )

    def close(self) -> None:
        """Close every file."""
        for key in list(self._open):
            self._close(key)

    # -- looking

    def _look_again(self, overwritten: Collection[FileKey]) -> None:
        found = self._seen(overwritten)
        for key in overwritten:
            self._close(key)
        self._tracked.look(found, self._contents)
        self._found = found

    def _name_absent(self) -> None:
        """Note each pattern that names no file: it may be mistyped."""
        for pattern in self.patterns:
            if not any(key_of(path) for path in paths_of(pattern)):
                later = "" if self.until_end else " yet; it is looked for every second"
                self.notes.append(f"{pattern} names no regular file{later}")

    def _seen(self, overwritten: Collection[FileKey]) -> Look:
        """Look at the patterns' files, and at the directories of all known ones."""
        self._paths.clear()
        look = Look({}, [], {}, {}, set(), self._open.keys(), {}, overwritten, self._now_s)
        for pattern in self.patterns:
            for path in paths_of(pattern):
                sight = self._paths.sight(path)
                look.homes[path] = None if sight is None else sight.key
                real = os.path.realpath(path) if sight is None else sight.real
                look.bases.setdefault(real, path)
                if sight is not None:
                    look.named.setdefault(sight.key, sight)
        for entry in self.entries.values():
            if entry.home and entry.home not in look.homes:
                look.homes[entry.home] = key_of(entry.home)
        self._see_directories(look)
        return look

    def _see_directories(self, look: Look) -> None:
        """Find the files that no pattern names: known ones, and those that a rotation may have named."""
        wanted: dict[str, set[str]] = {}
        for real in look.bases:
            directory, name = split(real)
            wanted.setdefault(directory, set()).add(name)
        unnamed = []
        for key, entry in self.entries.items():
            directory, name = split(entry.real)
            wanted.setdefault(directory, set()).update(names_before(name))
            if key not in look.named:
                unnamed.append(entry)
        fresh = {one for one in wanted if self._directory(one).listed(int(self._wall_s * 1e9))}
        for entry in unnamed:
            self._place(entry, look, is_fresh=split(entry.real)[0] in fresh)
        seen = {one.real for one in look.named.values()}
        for directory in fresh:
            for name in self._directories[directory].names.values():
                path = f"{directory}/{name}"
                if path not in seen and not wanted[directory].isdisjoint(names_before(name)):
                    self._see_beside(path, look)
        for held in self._tracked.held.values():
            if split(held.real)[0] not in fresh:
                self._see_beside(held.real, look)

    def _see_beside(self, path: str, look: Look) -> None:
        sight = self._paths.sight(path)
        if sight is not None and sight.key not in look.named and sight.real == path:
            look.beside.append(sight)

    def _directory(self, path: str) -> Directory:
        found = self._directories.get(path)
        if found is None:
            found = self._directories[path] = Directory(path)
        return found

    def _place(self, entry: Entry, look: Look, *, is_fresh: bool) -> None:
        """Find a known file by its inode in its directory: its name there, or that it is gone."""
        key, before = entry.key, self._found
        is_over = entry.is_done and look.homes.get(entry.home) is not None
        if is_over and not is_fresh and before is not None and key in before.places:
            look.places[key] = before.places[key]
            return
        if not is_fresh and before is not None and key in before.gone:
            look.gone.add(key)
            return
        directory = self._directories[split(entry.real)[0]]
        name = directory.names.get(entry.inode)
        sight = None if name is None else self._paths.sight(f"{directory.path}/{name}")
        found = None if sight is None else self._tracked.entry_of(sight, self._contents)
        if sight is not None and found is not None and found.number == entry.number:
            look.places[found.key] = sight
        elif directory.device == entry.device:
            look.gone.add(key)

    # -- reading

    def _chunk(self, key: FileKey, bytes_max: int) -> tuple[Chunk | None, bool]:
        """Return a file's next chunk, and whether the file has a rest that must come before later files' lines."""
        entry = self.entries.get(key)
        if entry is None or key not in self._tracked.to_read:
            return None, False
        try:
            file = self._opened(entry)
            if (
                file is None
            ):  # it was renamed since: the next look finds its name, and later files wait
                return None, True
            facts = file.facts()
            read = file.read(entry, bytes_max)
        except UNREADABLE as error:
            self._cannot_go_on(entry, error)
            return None, False
        if read is None or (not entry.position and self._has_shrunk(key, facts.size)):
            self._look_again((key,))
            return None, True
        old = self._sizes.get(key)
        if old is None or old.size != facts.size:
            self._sizes[key] = _Size(facts.size, self._now_s)
        entry = replace(entry, size=facts.size, modified_ns=facts.modified_ns)
        is_replaced = file.is_packed or key in self._tracked.replaced
        has_ended = read.is_at_end and (
            self.until_end or (is_replaced and self.quiet_s(key) >= self.ends_after_s)
        )
        end = read.data.rfind(b"\n") + 1
        if has_ended or read.is_cut:
            end = len(read.data)
        elif not end and len(read.data) >= min(bytes_max, self.line_bytes_max):
            end = min(len(read.data), self.line_bytes_max)  # a line that is too long goes in parts
        is_done = has_ended and is_replaced
        if not end and not is_done:
            self.entries[key] = entry
            if not is_replaced:
                self._wait(key)
            return None, bool(read.data) and is_replaced
        start = entry.position + (read.skipped if end else 0)
        data = read.data[:end]
        after = replace(entry.moved(read.before, data, start + end), is_done=is_done)
        is_at_end = read.is_at_end and end == len(read.data)
        is_full = not read.is_at_end
        return Chunk(data, entry, after, start, is_at_end, is_full, read.is_cut, read.before), False

    def _has_shrunk(self, key: FileKey, size: int) -> bool:
        """Return whether a file is smaller than the last look saw it."""
        assert self._found is not None
        sight = self._found.named.get(key) or self._found.places.get(key)
        return sight is not None and size < sight.size

    def _opened(self, entry: Entry) -> OpenFile | None:
        """Return a file that is open, the last one that is closed. Raises as `UNREADABLE`."""
        key = entry.key
        file = self._open.pop(key, None)
        if file is None:
            file = opened(entry.real, key)
            if file is None:
                return None
            gone = () if self._found is None else self._found.gone
            closable = (one for one in list(self._open) if one not in gone)
            while len(self._open) >= self.open_max and (oldest := next(closable, None)) is not None:
                self._close(oldest)
            self._unreadable.discard(entry.path)
        self._open[key] = file
        return file

    def _close(self, key: FileKey) -> None:
        file = self._open.pop(key, None)
        if file is not None:
            file.close()

    def _wait(self, key: FileKey) -> None:
        """Leave a file that has not grown to the next look, and close it once it has been quiet for long."""
        quiet_s = self.quiet_s(key)
        if quiet_s >= _RECENT_S:
            self._tracked.to_read.pop(key)
        if quiet_s >= _IDLE_S:
            self._close(key)

    def _forget_sizes(self) -> None:
        """Forget the sizes of files that are not read now."""
        to_read = self._tracked.to_read
        if len(self._sizes) > 2 * len(to_read) + 1000:
            self._sizes = {key: one for key, one in self._sizes.items() if key in to_read}

    def _cannot_go_on(self, entry: Entry, error: Exception) -> None:
        """Close a file that cannot be read. A packed one that is written just now is read again, without a word."""
        file = self._open.get(entry.key)
        is_packed = not isinstance(error, OSError) if file is None else file.is_packed
        self._close(entry.key)
        facts = facts_of(entry.real)
        is_new = facts is not None and self._wall_s * 1e9 - facts.modified_ns < _DAMAGED_NS
        if self.until_end or not (is_packed and is_new):
            self._cannot_read(entry.path, error)

    def _cannot_read(self, path: str, error: Exception) -> None:
        """Note it once. Raises OSError with `until_end`, as the file is not tried again."""
        reason = getattr(error, "strerror", None) or str(error)
        if self.until_end:
            raise OSError(f"{path} cannot be read: {reason}") from error
        if path not in self._unreadable:
            self._unreadable.add(path)
            self.notes.append(f"{path} cannot be read: {reason}; it is tried again")
