"""The file of the audit: lines of JSON, written by a thread of its own, of bounded size.

In: lines. Out: the file, and older ones beside it (`audit.log.1` is the newest of those). It never blocks and never
raises after it is open: lines that cannot be written are counted, and the node's log says so. A client whose lines are
a quarter of those that wait, while many wait, loses further ones, so that the others' lines have room.
"""

import json
import logging
import os
from collections import deque
from collections.abc import Hashable
from io import FileIO, TextIOWrapper
from logging.handlers import QueueListener, RotatingFileHandler
from queue import Full, Queue
from typing import Final

from stratalog.errors import UserError
from stratalog.shares import Shares

__all__ = ["AuditFile"]

_WAITING_MAX: Final = 10_000
"""Lines that wait at most."""
_WAITING_CHARACTERS_MAX: Final = 32 << 20
"""Their characters: a line of 20 denied resources has 10,000."""
_MODE: Final = 0o600


class AuditFile:
    """One node's audit file. At `bytes_max` it becomes the newest of the older files, of which `files - 1` stay."""

    def __init__(self, path: str, bytes_max: int, files: int) -> None:
        """Open or create the file. Raises UserError."""
        try:
            self._file = _RotatingFile(path, bytes_max, files)
        except OSError as error:
            raise UserError(
                f"audit.log.path: cannot write {path}: {error.strerror or error}; "
                "accepted: a file in a directory that the node may write to"
            ) from error
        self._lines: Queue[logging.LogRecord | None] = Queue(_WAITING_MAX)
        self._writer = _LineWriter(self._lines, self._file)
        self._dropped = 0
        self.lines_dropped = 0
        self._holders: deque[Hashable] = deque()
        """The clients of the lines that wait, and of some that are written."""
        self._waiting = Shares()
        self._taken = 0
        """Characters of all lines that were put among those that wait."""
        self._writer.start()

    def write(self, line: str, holder: Hashable = "") -> None:
        """Write a line later. While too many wait it is dropped, and a later line says how many were."""
        while len(self._holders) > self._lines.qsize():
            self._waiting.add(self._holders.popleft(), -1)
        if not self._is_written(line, holder):
            self._dropped += 1
            self.lines_dropped += 1

    def _is_written(self, line: str, holder: Hashable) -> bool:
        waiting = self._waiting.total
        if waiting > _WAITING_MAX // 2 and self._waiting.of(holder) > waiting // 4:
            return False
        if self._dropped:
            note = json.dumps({"event": "audit lines dropped", "lines": self._dropped})
            if not self._put(note, ""):
                return False
            self._dropped = 0
        return self._put(line, holder)

    def close(self) -> None:
        """Write the lines that wait, and close the file."""
        self._writer.stop()
        self._file.close()

    def _put(self, line: str, holder: Hashable) -> bool:
        if self._taken - self._writer.written > _WAITING_CHARACTERS_MAX:
            return False
        record = logging.LogRecord("audit", logging.INFO, "", 0, line, None, None)
        try:
            self._lines.put_nowait(record)
        except Full:
            return False
        self._taken += len(line)
        self._holders.append(holder)
        self._waiting.add(holder, 1)
        return True


class _LineWriter(QueueListener):
    def __init__(self, lines: Queue[logging.LogRecord | None], file: logging.Handler) -> None:
        super().__init__(lines, file)
        self._lines = lines
        self.written = 0
        """Characters of all lines that are written, or lost to a full disk."""

    def handle(self, record: logging.LogRecord) -> None:
        """Write a line."""
        super().handle(record)
        self.written += len(str(record.msg))

    def enqueue_sentinel(self) -> None:
        """Wait for room, where the standard library raises Full."""
        self._lines.put(None)


class _RotatingFile(RotatingFileHandler):
    def __init__(self, path: str, bytes_max: int, files: int) -> None:
        self._has_failed = False
        self._is_bad = False
        super().__init__(path, maxBytes=bytes_max, backupCount=files - 1, encoding="utf-8")

    def _open(self) -> TextIOWrapper:
        """Open the file, readable by its owner alone."""
        opened = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, _MODE)
        return TextIOWrapper(FileIO(opened, "a"), encoding=self.encoding, write_through=True)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        self._is_bad = False
        super().emit(record)
        self._has_failed = self._is_bad

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802 - logging's name
        """Log the first of several failures: a full disk must not fill the log too."""
        self._is_bad = True
        if not self._has_failed:
            # Commands that need a clock import this module: structlog takes a tenth of a second.
            import structlog  # noqa: PLC0415

            structlog.get_logger().warning("audit lines are not written", path=self.baseFilename)
