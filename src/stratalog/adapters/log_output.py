"""Standard output as the destination of a server's log lines.

In: events. Out: one line of text each on standard output; a client's names move no terminal's cursor. It never raises:
a closed terminal, a reader that went away or a full disk costs log lines and not the server.
"""

import os
from contextlib import suppress
from typing import Final

import structlog
from structlog.typing import EventDict

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
    *others, renderer = structlog.get_config()["processors"]
    structlog.configure(
        processors=[*others, _printable, renderer],
        logger_factory=structlog.WriteLoggerFactory(_Output()),  # type: ignore[arg-type]
    )


def _printable(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Escape characters that a terminal obeys: clients choose the names of groups and members."""
    for name, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[name] = "".join(map(_shown, value))
    return event


def _shown(one: str) -> str:
    is_plain = one.isprintable() or one in "\n\r\t"  # the renderer quotes text with these
    return one if is_plain else ascii(one)[1:-1]
