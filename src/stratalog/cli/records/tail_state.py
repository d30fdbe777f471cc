"""The positions of `strata tail` on the disk.

In: entries of files. Out: one JSON file, replaced whole. A transaction is written down before it commits, with the
positions after it: which of the two holds is what the cluster committed.
"""

import fcntl
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from stratalog.cli.records.tracked import Entry, FileKey
from stratalog.errors import UserError

__all__ = ["TailState"]

_FORMAT: Final = 2
"""1 had no birth, path without links, first path and number of a file."""


@dataclass(slots=True)
class TailState:
    """`number` transactions have been committed; `pending` are the entries after the next one, if it was begun."""

    path: Path
    topic: str
    number: int = 0
    entries: dict[FileKey, Entry] = field(default_factory=dict)
    pending: dict[FileKey, Entry] | None = None
    is_new: bool = True
    lock: IO[str] | None = None
    looked_s: float = 0.0
    """When the files of `entries` were looked for last, in epoch seconds."""

    @classmethod
    def opened(cls, directory: Path, identity: str, topic: str) -> "TailState":
        """Read the state and lock it, until `close`.

        Raises UserError for one that is damaged, in use or of another topic; OSError.
        """
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / f"{identity}.lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            state = _read(directory / f"{identity}.json", topic)
        except BlockingIOError:
            lock.close()
            raise UserError(
                f"another strata tail --id {identity} runs with {directory}; choose another --id"
            ) from None
        except UserError:
            lock.close()
            raise
        state.lock = lock
        return state

    def close(self) -> None:
        """Unlock the state."""
        if self.lock is not None:
            self.lock.close()

    def decide(self, committed: int | None) -> None:
        """Take the entries that the cluster has: `committed` is the number of its last transaction, None for none.

        Raises UserError where the number is neither this state's nor the next one's.
        """
        if self.is_new:
            self.number = committed or 0
        elif committed == self.number + 1 and self.pending is not None:
            self.number, self.entries = committed, self.pending
        elif committed is None and self.number:
            pass  # the group's offset has expired: what is pending is written again
        elif (committed or 0) != self.number:
            raise UserError(
                f"the cluster is at transaction {committed or 0} of this --id, {self.path} at {self.number}: another "
                "machine uses the id, or the file is old; choose another --id"
            )
        self.pending = None

    def begin(self, entries: dict[FileKey, Entry], looked_s: float) -> None:
        """Write down what holds once the next transaction is committed, safely. Raises OSError."""
        # An older look is safe in any case: it only looks at more files.
        self.looked_s = self.looked_s or looked_s
        self.pending = entries
        self._write(is_safe=True)

    def commit(self, looked_s: float) -> None:
        """Note that the transaction is committed. A crash that loses this loses nothing: see `decide`."""
        assert self.pending is not None, "begun"
        self.number, self.entries, self.pending = self.number + 1, self.pending, None
        self.looked_s, self.is_new = looked_s, False
        self._write(is_safe=False)

    def _write(self, *, is_safe: bool) -> None:
        text = _encoded(
            {
                "format": _FORMAT,
                "topic": self.topic,
                "number": self.number,
                "looked_s": self.looked_s,
                "entries": list(self.entries.values()),
                "pending": None if self.pending is None else list(self.pending.values()),
            }
        )
        fresh = self.path.with_suffix(".new")
        with fresh.open("wb") as file:
            file.write(text)
            file.flush()
            if is_safe:
                os.fsync(file.fileno())  # noqa: TID251 - a command's own file, not a log's
        fresh.replace(self.path)


def _encoded(document: dict[str, Any]) -> bytes:
    """Return a document as JSON. A path may have bytes that are no UTF-8, which the fast encoder refuses."""
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:
        return json.dumps(document, default=asdict).encode()


def _read(path: Path, topic: str) -> TailState:
    """Return the state in a file, or a new one. Raises UserError."""
    if not path.exists():
        return TailState(path, topic)
    try:
        found = json.loads(path.read_bytes())
        if found["format"] > _FORMAT:
            raise UserError(
                f"{path} is of a newer strata (format {found['format']}, not {_FORMAT}); use that one"
            )
        pending = found["pending"]
        state = TailState(
            path,
            found["topic"],
            int(found["number"]),
            _entries(found["entries"]),
            None if pending is None else _entries(pending),
            is_new=False,
            looked_s=float(found["looked_s"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is damaged ({error}); remove it to read the files again from --from"
        ) from None
    if state.topic != topic:
        raise UserError(
            f"{path} is of topic {state.topic}, not {topic}; choose another --id for another topic"
        )
    return state


def _entries(rows: Iterable[dict[str, Any]]) -> dict[FileKey, Entry]:
    found = [Entry(**row) for row in rows]
    if found and not found[-1].number:  # format 1
        found = [_completed(one, number) for number, one in enumerate(found, 1)]
    return {one.key: one for one in found}


def _completed(entry: Entry, number: int) -> Entry:
    """Return an entry of format 1 with what it lacks."""
    real = os.path.realpath(entry.path)
    return replace(entry, real=real, home=entry.origin, number=number)
