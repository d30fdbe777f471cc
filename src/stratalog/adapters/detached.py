"""Start processes that outlive their command, and find them again in a later command.

In: a command line; later a process id with the time at which that process began. Out: signals. It never signals another
process that has received the id since: on Linux the id is pinned (pidfd) before the beginning is compared.
"""

import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_BOOT: Final = "/proc/sys/kernel/random/boot_id"
_BEGAN: Final = 19
"""Place of `starttime` behind the name in /proc/PID/stat (proc(5))."""
_THREADS: Final = 17
"""Place of `num_threads` there."""
_ENDED: Final = (b"Z", b"X")


@dataclass(frozen=True, slots=True)
class Detached:
    """A process: `began` is a text that no other process with this id shares."""

    pid: int
    began: str


def start_detached(command: Sequence[str], log: str) -> Detached:
    """Start a process in a separate session; append its output to the file `log`. Raises OSError."""
    with open(log, "ab") as output:
        process = subprocess.Popen(  # noqa: S603 - the caller's own words
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    # It is this command's child until the command ends: no warning that nothing waits for it.
    process.returncode = 0
    return Detached(process.pid, _began(process.pid) or "")


def is_running(process: Detached) -> bool:
    """Return whether the process exists and has not ended."""
    return bool(process.began) and _began(process.pid) == process.began


def send(process: Detached, number: signal.Signals) -> bool:
    """Send a signal. False where the process has ended."""
    try:
        pinned = os.pidfd_open(process.pid)
    except AttributeError:  # not Linux
        pinned = -1
    except ProcessLookupError:
        return False
    try:
        if not is_running(process):
            return False
        if pinned < 0:
            os.kill(process.pid, number)
        else:
            signal.pidfd_send_signal(pinned, number)
    except ProcessLookupError:
        return False
    finally:
        if pinned >= 0:
            os.close(pinned)
    return True


def _began(pid: int) -> str | None:
    """Return when the process began; None for a missing process, or an ended one that its parent has not waited for.

    A killed process shows the state of its first thread. Other threads may still wait for the disk, and then the
    process holds its files, ports and locks. It has ended once no other thread is left.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        with open(_BOOT, encoding="ascii") as boot:
            has_ended = fields[0] in _ENDED and int(fields[_THREADS]) <= 1
            return None if has_ended else f"{boot.read().strip()} {int(fields[_BEGAN])}"
    except (FileNotFoundError, ProcessLookupError):
        return None if os.path.exists(_BOOT) else _began_elsewhere(pid)


def _began_elsewhere(pid: int) -> str | None:
    """Ask `ps`: systems other than Linux have no /proc."""
    listed = subprocess.run(  # noqa: S603 - fixed words
        ["/bin/ps", "-o", "state=,lstart=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split(maxsplit=1)
    return listed[1] if len(listed) == 2 and not listed[0].startswith("Z") else None
