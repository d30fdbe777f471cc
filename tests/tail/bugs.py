"""Bugs that `strata tail` may have, each as a patch of the product, for `python -m tests.tail --bugs`.

In: the name of a bug. Out: a context in which the reader has that bug. Some seed must find each.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from tests.planting import Bug, Patch, named, planting

from stratalog.adapters.file_facts import FileFacts
from stratalog.cli.records import found_files, tailed_files, tracked
from stratalog.cli.records.found_files import FileContents, OpenFile, Paths
from stratalog.cli.records.tailed_files import TailedFiles
from stratalog.cli.records.tracked import Kind, Tracked


def births_are_ignored() -> Iterator[Patch]:
    """A file that gets the inode of another one counts as that one, where its bytes do not tell."""
    for name in ("facts_of", "facts_of_open"):
        real = getattr(found_files, name)

        def without(*words: Any, real: Any = real, **options: Any) -> FileFacts | None:
            found = real(*words, **options)
            return None if found is None else found._replace(born_ns=0)

        yield found_files, name, without


def fingerprints_are_ignored() -> Iterator[Patch]:
    """A truncated file is read on where it was left."""
    yield OpenFile, "holds", lambda *_: True
    yield tracked, "hash_of", lambda _: ""
    yield found_files, "hash_of", lambda _: ""


def a_copy_is_read_at_once() -> Iterator[Patch]:
    """A copy does not wait for the truncation of its original."""
    yield Tracked, "_copies", lambda *_: False


def a_copy_is_any_file_that_begins_alike() -> Iterator[Patch]:
    """A new file goes on for a known one with the same first bytes, also without a truncation."""
    real = Tracked._begin

    def begin(self: Any, sight: Any, relatives: Any, begun: Any, contents: Any) -> None:
        for entry in relatives:
            if entry.position and contents.holds(sight, entry):
                self._drop(entry)
                self._go_on(entry, sight)
                return
        real(self, sight, relatives, begun, contents)

    yield Tracked, "_begin", begin


def a_packed_file_is_a_new_file() -> Iterator[Patch]:
    """The packed form of a file is sent again."""
    yield Tracked, "_is_decided", lambda *_: False


def packed_bytes_are_lines() -> Iterator[Patch]:
    """A packed file is read as it is."""
    yield FileContents, "kind", lambda *_: Kind.PLAIN
    yield found_files, "kind_of", lambda *_: Kind.PLAIN


def links_are_not_resolved() -> Iterator[Patch]:
    """The rotated file is looked for beside the link."""
    yield Paths, "real", lambda _, path: path
    yield found_files.os.path, "realpath", lambda path: path


def renamed_files_are_lost() -> Iterator[Patch]:
    """A file without a name in the patterns counts as gone."""

    def place(_: Any, entry: Any, look: Any, *, is_fresh: bool) -> None:
        del is_fresh
        look.gone.add(entry.key)

    yield TailedFiles, "_place", place


def files_that_came_and_went_are_passed_over() -> Iterator[Patch]:
    """A file that was rotated away between two looks is of another time."""
    yield Tracked, "_is_since", lambda *_: False


def holes_are_lines() -> Iterator[Patch]:
    """The NULs of a hole are a record."""
    yield found_files, "HOLE_BYTES", 1 << 30

    def whole(self: Any, position: int, before: bytes, data: bytes, size: int) -> Any:
        del self, position
        return found_files.Bytes(before, 0, data, is_cut=False, is_at_end=len(data) < size)

    yield OpenFile, "_without_holes", whole


def the_youngest_file_is_read_first() -> Iterator[Patch]:
    """Of a log's files the last one goes first."""
    real = TailedFiles.chunks

    def chunks(self: Any, bytes_max: int) -> Any:
        for key, entry in list(self.entries.items()):
            self.entries[key] = tailed_files.replace(entry, number=-entry.number)
        try:
            yield from list(real(self, bytes_max))
        finally:
            for key, entry in list(self.entries.items()):
                self.entries[key] = tailed_files.replace(entry, number=-entry.number)

    yield TailedFiles, "chunks", chunks


def an_entry_moves_before_its_lines_are_safe() -> Iterator[Patch]:
    """A chunk that is read counts as sent, in the entries of the last commit too."""
    real = TailedFiles._chunk

    def chunk(self: Any, key: Any, bytes_max: int) -> Any:
        found, has_rest = real(self, key, bytes_max)
        if found is not None and len(found.data) > 1000:
            half = found.data[:1000].rfind(b"\n") + 1
            found = found._replace(data=found.data[:half] or found.data)
        return found, has_rest

    yield TailedFiles, "_chunk", chunk


BUGS: dict[str, Bug] = named(
    (
        births_are_ignored,
        fingerprints_are_ignored,
        a_copy_is_read_at_once,
        a_copy_is_any_file_that_begins_alike,
        a_packed_file_is_a_new_file,
        packed_bytes_are_lines,
        links_are_not_resolved,
        renamed_files_are_lost,
        files_that_came_and_went_are_passed_over,
        holes_are_lines,
        the_youngest_file_is_read_first,
        an_entry_moves_before_its_lines_are_safe,
    )
)


def planted(name: str) -> AbstractContextManager[None]:
    """Give the reader a bug during the block."""
    return planting(BUGS[name])
