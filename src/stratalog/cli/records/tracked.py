"""Decide what each file of a directory is, for `strata tail`: a known one, a new one, a rotated form of a known one.

In: what one look found (names, inodes, births, sizes), the entries that were kept, and a port that compares contents.
Out: entries, and the files that have something to read. It never opens a file, and it never moves an entry forward.

A file is its device, inode and birth. A fingerprint (a hash of its first bytes, one of the bytes before the position)
shows that its bytes were replaced. Another file goes on for it in two cases only: it was truncated, and a copy of it
lies beside it; or it is gone, and a packed form of it lies beside it. Any other file of the same content is a file of
its own.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from enum import Enum
from hashlib import blake2b
from os.path import split
from typing import Final, NamedTuple, Protocol

from stratalog.cli.records.rotated_names import names_before, unpacked_name

__all__ = ["HASHED_BYTES", "Contents", "Entry", "FileKey", "Kind", "Look", "Sight", "Tracked"]

HASHED_BYTES: Final = 1024
HELD_S: Final = 60.0
"""A copy that no truncation followed for so long is a file of its own."""
SLACK_NS: Final = 2_000_000_000
"""Some file systems keep times in whole seconds, or two."""
GONE_MAX: Final = 1_000
"""Entries of ended files that are gone: a packed form of one may appear later."""
_SECOND_NS: Final = 1_000_000_000


class FileKey(NamedTuple):
    """What a file is while it exists. `born_ns` is 0 where the system does not know it."""

    device: int
    inode: int
    born_ns: int = 0


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
    """When it was written last, as of the last read, in epoch ns."""
    origin: str = ""
    """The path at which it was first met, which its rotated forms keep."""
    born_ns: int = 0
    real: str = ""
    """Its path without links, as of the last look."""
    home: str = ""
    """The pattern's path that named it first, or named it before it was rotated."""
    number: int = 0
    """Files are numbered as they are met, and a rotated form keeps the number: the lower one is read first."""

    @property
    def key(self) -> FileKey:
        return FileKey(self.device, self.inode, self.born_ns)

    def moved(self, before: bytes, data: bytes, position: int) -> "Entry":
        """Return the entry at a later position. `before`: the bytes before its own position, up to a KiB; `data`: the
        bytes from there to the new one, or enough of their end.
        """
        head_bytes, head = self.head_bytes, self.head
        if head_bytes < HASHED_BYTES and position > head_bytes:
            head_bytes = min(HASHED_BYTES, position)
            head = hash_of((before + data[:HASHED_BYTES])[:head_bytes])
        last = data[-HASHED_BYTES:]
        if len(last) < HASHED_BYTES:
            last = (before + last)[-HASHED_BYTES:]
        return replace(
            self, position=position, head_bytes=head_bytes, head=head, behind=hash_of(last)
        )


class Sight(NamedTuple):
    """A regular file as a look finds it. `real` is its path without links."""

    path: str
    real: str
    key: FileKey
    size: int
    modified_ns: int


class Kind(Enum):
    """How a file is read."""

    PLAIN = "plain"
    PACKED = "packed"
    FOREIGN = "foreign"
    """Packed by a program whose format is not read here."""
    UNFINISHED = "unfinished"
    """Too short to say, or it cannot be read now."""


class Contents(Protocol):
    """What the core asks of the files themselves. None: it cannot be known now, as the file is not whole yet."""

    def kind(self, sight: Sight) -> Kind: ...

    def holds(self, sight: Sight, entry: Entry) -> bool | None:
        """Return whether a file has the bytes that were read of an entry."""

    def is_part(self, sight: Sight, entry: Entry) -> bool | None:
        """Return whether all of a file is what the entry's file begins with."""

    def at_end(self, entry: Entry) -> Entry:
        """Return a new file's entry at the begin of its last line without an end: at its end where there is none."""


@dataclass(slots=True)
class Look:
    """What one look at the disk found."""

    named: dict[FileKey, Sight]
    """The files of the patterns, in their order."""
    beside: list[Sight]
    """Other files of their directories that a rotation may have named; those that are decided may be left out."""
    bases: dict[str, str]
    """The patterns' paths by the same without links; a path that names nothing now is one, too."""
    places: dict[FileKey, Sight]
    """Known files that no pattern names and that exist."""
    gone: set[FileKey]
    """Known files that exist no longer."""
    opened: Collection[FileKey]
    """Files that are open: they can be read also without a name."""
    homes: dict[str, FileKey | None]
    """What the paths name by now that named known files first."""
    overwritten: Collection[FileKey]
    """Files whose bytes were replaced, as their reading showed."""
    now_s: float


class _Held(NamedTuple):
    """A file that may be a copy of a known one, or that is not whole yet: it is not read."""

    real: str
    original: FileKey | None
    size: int
    modified_ns: int
    since_s: float
    looked_ns: int
    """When the last look was before this file was found."""


@dataclass(slots=True)
class Tracked:
    """`look` at what was found; then read `to_read`, and `move` entries. All of it is look-ups by key or by name."""

    entries: dict[FileKey, Entry]
    from_end: bool
    """Whether files that exist at the first look are read from their ends."""
    until_end: bool = False
    """Whether nothing will be read later, so that nothing can wait."""
    looked_ns: int = 0
    """When the last look was, in epoch ns; 0 for never."""
    to_read: dict[FileKey, None] = field(default_factory=dict)
    """Files that may have something to read."""
    replaced: set[FileKey] = field(default_factory=set)
    """Files whose path names another file by now, and those that exist no longer: they were rotated away.

    A file whose path names nothing yet is written on: its writer has not begun the next one.
    """
    notes: list[str] = field(default_factory=list)
    """Lines for a person; the caller prints and clears them."""
    held: dict[FileKey, _Held] = field(default_factory=dict)
    """Files that wait for a decision."""
    _look: Look = field(init=False)
    _has_looked: bool = False
    _by_inode: dict[tuple[int, int], FileKey] = field(default_factory=dict)
    _by_place: dict[str, FileKey] = field(default_factory=dict)
    """Entries of an earlier run, by path and inode."""
    _passed_over: set[FileKey] = field(default_factory=set)
    """Files that this reader leaves alone: of another time, or of a format that it does not read."""
    _families: dict[tuple[str, str], list[FileKey]] = field(default_factory=dict)
    """Entries by directory and each name that they may have had."""
    _next: int = 1

    def __post_init__(self) -> None:
        for key, one in self.entries.items():
            if key.born_ns >= 0:
                self._by_inode[key.device, key.inode] = key
            self._by_place[f"{one.inode} {one.real}"] = key
            self._next = max(self._next, one.number + 1)

    @property
    def first_undecided_ns(self) -> int:
        """Return when the last look was before which all files are decided: another run looks on from there."""
        return min(
            [self.looked_ns, *(one.looked_ns or self.looked_ns for one in self.held.values())]
        )

    def look(self, look: Look, contents: Contents) -> None:
        """Find new, renamed and replaced files, and those that have something to read."""
        self._look = look
        self.to_read.clear()
        self._find_replaced()
        unknown = self._meet_named(contents)
        for sight in look.beside:
            if sight.key not in look.named and self.entry_of(sight, contents) is None:
                unknown[sight.key] = sight
        for key in self._passed_over & unknown.keys():
            del unknown[key]
        self.held = {key: one for key, one in self.held.items() if key in unknown}
        self._follow_unnamed()
        begun: list[tuple[Sight, Entry]] = []
        if unknown or look.overwritten:
            self._index()
            self._decide_packed(unknown, contents)
            self._begin_truncated(unknown, begun, contents)
            # A log before its rotated files, so that a copy is met after its original.
            for sight in sorted(
                unknown.values(), key=lambda one: (_is_rotated(one), *_by_age(one))
            ):
                self._meet(sight, begun, contents)
        for _, entry in sorted(begun, key=lambda one: (not _is_rotated(one[0]), *_by_age(one[0]))):
            if entry.key in self.entries:
                self.entries[entry.key] = replace(self.entries[entry.key], number=self._next)
                self._next += 1
        if unknown or begun:
            self._find_replaced()  # new files may have the places of others
        self._forget_gone()
        self._has_looked = True

    def move(self, entry: Entry) -> None:
        """Take an entry, as its bytes are safe."""
        self.entries[entry.key] = entry
        if entry.is_done:
            self.to_read.pop(entry.key, None)

    # -- known files

    def _meet_named(self, contents: Contents) -> dict[FileKey, Sight]:
        """Note where known files are by now; return the files that are not known."""
        unknown: dict[FileKey, Sight] = {}
        for sight in self._look.named.values():
            entry = self.entry_of(sight, contents)
            if entry is None:
                unknown[sight.key] = sight
                continue
            if (entry.path, entry.real) != (sight.path, sight.real):
                entry = self.entries[entry.key] = replace(entry, path=sight.path, real=sight.real)
            is_changed = (sight.size, sight.modified_ns) != (entry.size, entry.modified_ns)
            if is_changed and entry.is_done:
                entry = self.entries[entry.key] = replace(entry, is_done=False)
            self._ask_to_read(entry, is_changed=is_changed)
        return unknown

    def _ask_to_read(self, entry: Entry, *, is_changed: bool) -> None:
        """Have a file read that has grown, has a rest, or is about to end."""
        if is_changed or (
            not entry.is_done
            and (
                entry.position != entry.size
                or entry.key in self._look.opened
                or entry.key in self.replaced
            )
        ):
            self.to_read[entry.key] = None

    def entry_of(self, sight: Sight, contents: Contents) -> Entry | None:
        """Return the entry of a file; None where its inode was another file's, or no known one's."""
        key = sight.key
        entry = self.entries.get(key)
        if entry is not None:
            return entry
        old = self._by_inode.get((key.device, key.inode))
        if old is not None and _may_be_one_birth(old, key):
            # An older release kept no birth, or the system does not know it: the bytes decide as they are read.
            return self._rekeyed(self.entries[old], key)
        if old is None and (old := self._by_place.get(f"{key.inode} {sight.real}")) is not None:
            # A device may have another number after a boot: then path, inode and bytes agree.
            entry = self.entries.get(old)
            if (
                entry is not None
                and entry.position
                and _may_be_one_birth(old, key)
                and contents.holds(sight, entry)
            ):
                return self._rekeyed(entry, key)
        return None

    def _rekeyed(self, entry: Entry, key: FileKey) -> Entry:
        self._drop(entry)
        entry = replace(entry, device=key.device, inode=key.inode, born_ns=key.born_ns)
        self.entries[key] = entry
        self._by_inode[key.device, key.inode] = key
        return entry

    def _follow_unnamed(self) -> None:
        """Note the new names of files that no pattern names; those that did not end are read on."""
        look = self._look
        for key, sight in look.places.items():
            entry = self.entries.get(key)
            if entry is not None:
                if entry.real != sight.real:
                    self.entries[key] = entry = replace(entry, real=sight.real)
                is_changed = (sight.size, sight.modified_ns) != (entry.size, entry.modified_ns)
                if entry.is_done and is_changed and not look.homes.get(entry.home):
                    # Its path names nothing yet: its writer may have it open still.
                    self.entries[key] = entry = replace(entry, is_done=False)
                if not entry.is_done:
                    self._ask_to_read(entry, is_changed=is_changed)
        for key in look.opened:
            if key in look.gone and key in self.entries and not self.entries[key].is_done:
                self.to_read[key] = None

    def _find_replaced(self) -> None:
        now, gone = self._look.homes, self._look.gone
        last: dict[str, int] = {}
        """Of logs whose path names nothing now: the number of the last file of each."""
        for key, one in self.entries.items():
            if not now.get(one.home) and key not in gone and unpacked_name(one.real) == one.real:
                last[one.home] = max(last.get(one.home, 0), one.number)
        self.replaced = {
            key
            for key, one in self.entries.items()
            if key in gone
            or (now.get(one.home) or key) != key
            or one.number < last.get(one.home, 0)
        }

    def _forget_gone(self) -> None:
        """End entries of files that are gone, and drop the oldest of them."""
        look = self._look
        gone = [
            entry
            for key in look.gone
            if key not in look.opened and (entry := self.entries.get(key)) is not None
        ]
        for entry in gone:
            if not entry.is_done:
                if not self._has_looked and entry.position:
                    self.notes.append(
                        f"{entry.real or entry.path} is gone, and its directory has no packed form of it: lines "
                        f"behind byte {entry.position}, if there were any, are lost"
                    )
                self.entries[entry.key] = replace(entry, is_done=True)
        if len(gone) > GONE_MAX:
            gone.sort(key=lambda one: one.number)
            for entry in gone[:-GONE_MAX]:
                self._drop(entry)

    def _add(self, entry: Entry) -> None:
        self.entries[entry.key] = entry
        self._index_one(entry)
        if entry.born_ns >= 0:
            self._by_inode[entry.device, entry.inode] = entry.key
        if not entry.is_done:
            self.to_read[entry.key] = None

    def _drop(self, entry: Entry) -> None:
        del self.entries[entry.key]
        self.to_read.pop(entry.key, None)
        if self._by_inode.get((entry.device, entry.inode)) == entry.key:
            del self._by_inode[entry.device, entry.inode]

    # -- truncated files

    def _begin_truncated(
        self,
        unknown: dict[FileKey, Sight],
        begun: list[tuple[Sight, Entry]],
        contents: Contents,
    ) -> None:
        """Begin files again whose bytes were replaced: those that a reading showed, and those with a relative that may
        be their copy. The others show as they are read.
        """
        seen = self._look.places | self._look.named
        for key in self._look.overwritten:
            entry = self.entries.get(key)
            if entry is not None:
                sight = seen.get(key) or Sight(entry.path, entry.real, key, 0, 0)
                self._begin_again(entry, sight, unknown, begun, contents)
        read: dict[str, int] = {}
        """By log, the number of the last file of which something was read."""
        for entry in self.entries.values():
            if entry.position:
                read[entry.home] = max(read.get(entry.home, 0), entry.number)
        suspects = dict.fromkeys(
            entry.key
            for sight in unknown.values()
            for entry in self._relatives(sight)
            if entry.key in seen and entry.key in self.to_read
        )
        for key in suspects:
            entry = self.entries[key]
            if not entry.position:
                # It may be truncated: its order is by its age, unless a later one was read already.
                if entry.number > read.get(entry.home, 0):
                    begun.append((seen[key], entry))
            elif contents.holds(seen[key], entry) is False:
                self._begin_again(entry, seen[key], unknown, begun, contents)

    def _begin_again(
        self,
        entry: Entry,
        sight: Sight,
        unknown: dict[FileKey, Sight],
        begun: list[tuple[Sight, Entry]],
        contents: Contents,
    ) -> None:
        """Begin a truncated file from its beginning; a copy of it goes on where it was left."""
        self._drop(entry)
        fresh = _new(sight, entry.origin, entry.home)
        begun.append((sight, fresh))
        self._add(fresh)  # without its number yet: a file beside it may be a copy of it
        found = not entry.position
        copies = [one for one in unknown.values() if self._may_go_on(one, entry)]
        # A file that waited as its copy is the first one.
        copies.sort(key=lambda one: (not self._is_held_for(one, entry), *_by_age(one)))
        for copy in copies if entry.position else ():
            if contents.holds(copy, entry):
                del unknown[copy.key]
                self._go_on(entry, copy)
                found = True
                break
        else:
            if entry.is_done and not sight.key.born_ns:
                # Another file has its inode, and a packed form of it may come.
                self._add(replace(entry, born_ns=-entry.number))
                found = True
        for key, held in list(self.held.items()):
            if held.original == entry.key and key in unknown and entry.position:
                # This copy has no more than was read of its original.
                part = unknown.pop(key)
                ended = contents.at_end(_new(part, entry.origin, entry.home))
                self._add(replace(ended, is_done=True, number=entry.number))
                found = True
        if not found:
            self.notes.append(
                f"{entry.path} was truncated or replaced, and its directory has no copy of it: lines behind byte "
                f"{entry.position}, if there were any, are lost; it is read from its beginning"
            )

    def _is_held_for(self, sight: Sight, entry: Entry) -> bool:
        held = self.held.get(sight.key)
        return held is not None and held.original == entry.key

    def _may_go_on(self, sight: Sight, entry: Entry) -> bool:
        """Return whether a file may be a copy or a packed form of an entry's, by directory, names and times."""
        directory, name = split(entry.real)
        beside, other = split(sight.real)
        return (
            beside == directory
            and not set(names_before(name)).isdisjoint(names_before(other))
            and _is_later(sight, entry)
        )

    def _go_on(self, entry: Entry, sight: Sight) -> None:
        """Let a file go on for an entry whose own bytes are gone."""
        device, inode, born_ns = sight.key
        self.held.pop(sight.key, None)
        self._add(
            replace(
                entry,
                path=sight.path,
                real=sight.real,
                device=device,
                inode=inode,
                born_ns=born_ns,
                is_done=False,
            )
        )

    # -- files that were not known

    def _index(self) -> None:
        self._families = {}
        for entry in self.entries.values():
            self._index_one(entry)

    def _index_one(self, entry: Entry) -> None:
        directory, name = split(entry.real)
        for before in names_before(name):
            self._families.setdefault((directory, before), []).append(entry.key)

    def _relatives(self, sight: Sight) -> list[Entry]:
        """Return the entries of a file's directory that share a name with it, the oldest first."""
        directory, name = split(sight.real)
        found = {
            key: self.entries[key]
            for before in names_before(name)
            for key in self._families.get((directory, before), ())
            if key in self.entries
        }
        return sorted(found.values(), key=lambda one: one.number)

    def _meet(self, sight: Sight, begun: list[tuple[Sight, Entry]], contents: Contents) -> None:
        """Decide what a file is that was not known: a rotated form, one that waits, or a new file."""
        kind = contents.kind(sight)
        if kind is Kind.FOREIGN:
            self._passed_over.add(sight.key)
            if sight.key in self._look.named:
                self.notes.append(
                    f"{sight.path} is left alone: it is packed in a format that is not read here"
                )
            return
        if kind is Kind.UNFINISHED:
            if sight.key in self._look.named or self._is_since(sight):
                self._hold(sight, None, is_limited=False)
            return
        relatives = self._relatives(sight)
        decide = self._packs if kind is Kind.PACKED else self._copies
        if not decide(sight, relatives, contents):
            self._begin(sight, relatives, begun, contents)

    def _decide_packed(self, unknown: dict[FileKey, Sight], contents: Contents) -> None:
        """Take packed files of known ones out of the unknown files: those that go on for one that is gone, and those
        beside the one that they pack.
        """
        for sight in sorted(unknown.values(), key=_by_age):
            if contents.kind(sight) is Kind.PACKED and self._is_decided(sight, contents):
                del unknown[sight.key]

    def _is_decided(self, sight: Sight, contents: Contents) -> bool:
        # Of several files with the same first bytes it packs the one of which most was read.
        for entry in sorted(self._relatives(sight), key=lambda one: -one.position):
            is_gone = self._is_gone(entry)
            is_open = is_gone and entry.key in self._look.opened and not entry.is_done
            is_beside = entry.real == unpacked_name(sight.real)
            if is_open or (not is_gone and is_beside):
                # That one is read to its end, also without a name; then the packed file goes on for it.
                part = self._is_part(sight, entry, contents)
                if part and contents.holds(sight, entry) is False:
                    continue  # it has less than was read already
                if part or (part is None and not self.until_end):
                    return self._hold(sight, entry.key if part else None, is_limited=not part)
            elif (
                is_gone
                # Of one that was not read its bytes say nothing: then its name does.
                and (entry.position or (is_beside and not entry.is_done))
                and _is_later(sight, entry)
                and contents.holds(sight, entry)
            ):
                self._drop(entry)
                self._go_on(entry, sight)
                return True
        return False

    def _is_gone(self, entry: Entry) -> bool:
        return entry.key in self._look.gone or entry.born_ns < 0

    def _packs(self, sight: Sight, relatives: list[Entry], contents: Contents) -> bool:
        """Return whether a packed file waits: for its end, or as a copy of a file that may be truncated next."""
        is_unsure = False
        for entry in relatives:
            if self._is_gone(entry):
                is_unsure = is_unsure or contents.holds(sight, entry) is None
            elif self._may_copy(sight, entry):
                part = self._is_part(sight, entry, contents)
                if part and self._hold(sight, entry.key, is_limited=True):
                    return True
                is_unsure = is_unsure or part is None
        return is_unsure and self._hold(sight, None, is_limited=True)

    def _copies(self, sight: Sight, relatives: list[Entry], contents: Contents) -> bool:
        """Return whether a file may be the copy of a known one that is truncated next."""
        for entry in relatives:
            if entry.key in self._look.gone or not self._may_copy(sight, entry):
                continue
            if not sight.size:
                return self._hold(sight, None, is_limited=True)
            if contents.is_part(sight, entry):
                return self._hold(sight, entry.key, is_limited=True)
            now = Sight(entry.path, entry.real, entry.key, 0, 0)
            if entry.position and contents.holds(now, entry) is False:
                return self._hold(sight, None, is_limited=True)  # truncated just now
        return False

    def _may_copy(self, sight: Sight, entry: Entry) -> bool:
        """Return whether a file has a rotated name of a file that lives, and is the younger one."""
        name, sight_name = split(entry.real)[1], split(sight.real)[1]
        born, other = entry.born_ns, sight.key.born_ns
        return (
            entry.key not in self.replaced
            and name != sight_name
            and name in names_before(sight_name)
            and (not born or not other or other > born)
        )

    def _is_part(self, sight: Sight, entry: Entry, contents: Contents) -> bool | None:
        """Return whether a packed file is a part of an entry's file; it is unpacked only once."""
        held = self.held.get(sight.key)
        if (
            held is not None
            and held.original == entry.key
            and (held.size, held.modified_ns) == (sight.size, sight.modified_ns)
        ):
            return True
        return contents.is_part(sight, entry)

    def _hold(self, sight: Sight, original: FileKey | None, *, is_limited: bool) -> bool:
        """Let a file wait; return False where it has waited long enough."""
        now_s = self._look.now_s
        held = self.held.get(sight.key)
        is_same = held is not None and held[2:4] == (sight.size, sight.modified_ns)
        since_s = held.since_s if held is not None and is_same else now_s
        if is_limited and (self.until_end or now_s - since_s >= HELD_S):
            return False
        looked_ns = self.looked_ns if held is None else held.looked_ns
        self.held[sight.key] = _Held(
            sight.real, original, sight.size, sight.modified_ns, since_s, looked_ns
        )
        return True

    def _begin(
        self,
        sight: Sight,
        relatives: list[Entry],
        begun: list[tuple[Sight, Entry]],
        contents: Contents,
    ) -> None:
        """Begin a new file. One without a pattern is this reader's if it came and was rotated since the last look."""
        origin = ""
        if self._is_since(sight):
            directory, name = split(sight.real)
            predecessors = names_before(name)[1:]
            found = [self._look.bases.get(f"{directory}/{one}", "") for one in predecessors]
            found += [one.origin for one in relatives if split(one.home)[1] in predecessors]
            if sight.key not in self._look.named:
                found += [one.origin for one in relatives]
            origin = next(filter(None, found), "")
        self.held.pop(sight.key, None)
        if sight.key in self._look.named:
            live = self._look.homes.get(origin)
            is_rotated = origin and (live is None or 0 < sight.key.born_ns < live.born_ns)
            entry = _new(sight, origin or sight.path, origin if is_rotated else sight.path)
        elif origin:
            entry = _new(sight, origin, origin)
        else:
            self._passed_over.add(sight.key)
            return
        if self.from_end and not self._has_looked:
            entry = contents.at_end(entry)
        begun.append((sight, entry))
        self._add(entry)  # without its number yet: the next file may be a copy of it

    def _is_since(self, sight: Sight) -> bool:
        """Return whether a file was born and written since the look before it was found."""
        held = self.held.get(sight.key)
        looked_ns = self.looked_ns if held is None else held.looked_ns
        born_ns = sight.key.born_ns or sight.modified_ns
        return bool(looked_ns) and min(sight.modified_ns, born_ns) >= looked_ns - SLACK_NS


def hash_of(data: bytes) -> str:
    """Return the hash of some bytes, as an entry keeps it."""
    return blake2b(data, digest_size=16).hexdigest()


def _new(sight: Sight, origin: str, home: str) -> Entry:
    device, inode, born_ns = sight.key
    return Entry(
        sight.path, device, inode, origin=origin, born_ns=born_ns, real=sight.real, home=home
    )


def _by_age(sight: Sight) -> tuple[int, int]:
    return sight.modified_ns, sight.key.born_ns


def _is_rotated(sight: Sight) -> bool:
    """Return whether a rotation may have given a file its name."""
    return len(names_before(split(sight.real)[1])) > 1


def _is_later(sight: Sight, entry: Entry) -> bool:
    """Return whether a file may be a later form of an entry's: packers keep the time of the last write, some in whole
    seconds, and a copy has a later one.
    """
    return sight.modified_ns // _SECOND_NS >= entry.modified_ns // _SECOND_NS


def _may_be_one_birth(one: FileKey, other: FileKey) -> bool:
    return not one.born_ns or not other.born_ns or one.born_ns == other.born_ns
