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
    """The file for structlog. It does not buffer, because Python would retry the failed text at exit."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            os.write(_STANDARD_OUTPUT, text.encode(errors="replace"))
        return len(text)

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""


def keep_logging() -> None:
    """Let structlog write its lines to this process's standard output, and continue where that fails."""
    structlog.configure(logger_factory=structlog.WriteLoggerFactory(_Output()))  # type: ignore[arg-type]
