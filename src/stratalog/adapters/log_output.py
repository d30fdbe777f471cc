"""Standard output as the destination of a server's log lines.

In: text. Out: the same text on standard output. It never raises: a closed terminal, a reader that went away or a full
disk costs log lines and not the server.
"""

import os
from contextlib import suppress
from typing import Final

import structlog

__all__ = ["keep_logging"]

_STANDARD_OUTPUT: Final = 1


class _Output:
    """What structlog writes to. Unbuffered, or the text that failed would be tried again at the exit."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            os.write(_STANDARD_OUTPUT, text.encode(errors="replace"))
        return len(text)

    def flush(self) -> None:
        """Nothing is kept."""


def keep_logging() -> None:
    """Have structlog write its lines to this process's standard output, and go on where that fails."""
    structlog.configure(logger_factory=structlog.WriteLoggerFactory(_Output()))  # type: ignore[arg-type]
