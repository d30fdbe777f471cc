"""Write lines that any client can cause, so that no client fills the log.

In: events. Out: the first lines of each event in an interval, then one line with the count of the others. It never
delays a line that it writes.
"""

import asyncio
from typing import Any, Final

import structlog

__all__ = ["LimitedLog"]

_INTERVAL_S: Final = 10.0
_LINES_MAX: Final = 50


class LimitedLog:
    """A log of connections. Use it on the event loop."""

    def __init__(self) -> None:
        self._log = structlog.get_logger()
        self._lines: dict[str, int] = {}
        """By event: the lines of its interval, those left out included."""

    def warning(self, event: str, **fields: Any) -> None:
        """Log a warning, if its event has had few."""
        if self._takes(event):
            self._log.warning(event, **fields)

    def error(self, event: str, **fields: Any) -> None:
        """Log an error, if its event has had few."""
        if self._takes(event):
            self._log.error(event, **fields)

    def _takes(self, event: str) -> bool:
        lines = self._lines[event] = self._lines.get(event, 0) + 1
        if lines == 1:
            asyncio.get_running_loop().call_later(_INTERVAL_S, self._end, event)
        return lines <= _LINES_MAX

    def _end(self, event: str) -> None:
        left_out = self._lines.pop(event) - _LINES_MAX
        if left_out > 0:
            self._log.warning("lines left out", of=event, count=left_out)
