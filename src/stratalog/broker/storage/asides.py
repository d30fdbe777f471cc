"""Handle directories that are no partition's: deleted ones, and ones that were not loaded.

In: names of directories. Out: effects that free a name, and the removal of deleted directories. It never removes a
directory whose partition's deletion the metadata log does not record.

A deleted directory is renamed first, as Kafka does, so that its name is free at once, and removed later. A directory
that was not loaded stays until a partition needs its name, and is renamed then.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import structlog

from stratalog.broker.storage.directory import Failure, LogDirectory
from stratalog.broker.storage.survey import DELETE, STRAY, name_aside
from stratalog.log.effects import Effect, Program, RemoveTree, Rename, SyncDirectory
from stratalog.ports import Entropy

__all__ = ["Asides"]

_log: Final = structlog.get_logger()


class Asides:
    """The asides of all log directories of a node."""

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy
        self._kept: dict[LogDirectory, set[str]] = {}
        self._renaming = 0

    @property
    def is_deleting(self) -> bool:
        """Whether a crash now could leave a directory that only the metadata log knows to be deleted."""
        return self._renaming > 0

    def keep(self, directory: LogDirectory, names: Iterable[str]) -> None:
        """Note directories that were not loaded."""
        self._kept.setdefault(directory, set()).update(names)

    def free(self, directory: LogDirectory, name: str) -> list[Effect]:
        """Return effects that rename a directory that was not loaded, if there is one: a partition needs its name."""
        kept = self._kept.get(directory, set())
        if name not in kept:
            return []
        kept.remove(name)
        aside = self._aside(name, STRAY)
        _log.warning("stray partition", path=directory.path, partition=name, kept_as=aside)
        return [Rename(name, aside)]

    def discard(self, directory: LogDirectory, names: Sequence[str]) -> None:
        """Rename directories so that they no longer count as partitions; then remove them. Raises as `perform`."""
        asides = [self._aside(name, DELETE) for name in names]
        renames = [Rename(name, aside) for name, aside in zip(names, asides, strict=True)]

        def renamed(error: Failure) -> None:
            self._renaming -= 1
            if error is None:
                self.remove(directory, asides)
            else:
                _not_removed(directory, error)

        directory.perform([*renames, SyncDirectory("")], renamed)
        self._renaming += 1

    def rename_deleted(self, names: Iterable[str]) -> dict[str, str]:
        """Return the name that each directory of a deleted partition gets."""
        return {name: self._aside(name, DELETE) for name in names}

    def remove(self, directory: LogDirectory, asides: Sequence[str]) -> None:
        """Remove renamed directories, without delaying appends."""
        if directory.failure is None:
            work = directory.look(_remove_trees(asides))
            work.add_done_callback(lambda work: _not_removed(directory, work.exception()))

    def _aside(self, name: str, suffix: str) -> str:
        return name_aside(name, self._entropy.uuid().hex, suffix)


def _not_removed(directory: LogDirectory, error: Failure) -> None:
    if error is not None:
        _log.error("partitions not removed", path=directory.path, reason=str(error))


def _remove_trees(paths: Sequence[str]) -> Program[None]:
    for path in paths:
        yield RemoveTree(path)
