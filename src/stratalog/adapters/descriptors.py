"""File descriptors: how many this process may have open, and how to go on when none is free.

In: calls that open files. Out: their results, once a descriptor is free. It closes nothing of others.

Descriptors are short for a while only: connections have a part of them (`broker/network/connections.py`), and come and
go. So a file that cannot be opened now is no failure of its drive.
"""

import errno
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

__all__ = ["descriptors_max", "raise_descriptors", "with_descriptor"]

T = TypeVar("T")
_NONE_FREE: Final = (errno.EMFILE, errno.ENFILE)
_MOST: Final = 1 << 20
_PAUSE_S: Final = 0.005
_PAUSE_S_MAX: Final = 0.5
_NOTE_S: Final = 10.0


def raise_descriptors() -> None:
    """Raise the process's limit to the hard one: the usual soft limit is for programs that use `select`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # macOS refuses more than OPEN_MAX
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def descriptors_max() -> int:
    """Return how many descriptors this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else int(soft)


def with_descriptor(call: Callable[[], T], let_go: Callable[[], None] = lambda: None) -> T:
    """Return the result of a call that opens a file; while no descriptor is free, `let_go` of some and try again.

    It waits as long as it takes, with a line in the log, so not on the event loop. Raises what else `call` raises.
    """
    pause_s, waited_s, note_s = _PAUSE_S, 0.0, _PAUSE_S_MAX
    while True:
        try:
            return call()
        except OSError as error:
            if error.errno not in _NONE_FREE:
                raise
            reason = error.strerror
        let_go()
        if waited_s >= note_s:
            note_s = waited_s + _NOTE_S
            # Commands that need a disk import this module: structlog takes a tenth of a second.
            import structlog  # noqa: PLC0415

            structlog.get_logger().warning(
                "waiting for a file descriptor",
                reason=reason,
                limit=descriptors_max(),
                remedy="raise ulimit -n",
            )
        time.sleep(pause_s)
        waited_s += pause_s
        pause_s = min(2 * pause_s, _PAUSE_S_MAX)
