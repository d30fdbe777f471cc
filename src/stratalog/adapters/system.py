"""The system's ports in one value: clock, random numbers, threads, processes, network, disks, object stores.

In: nothing. Out: `ports.Outside`. It never caches an answer of the system.
"""

import asyncio
import os
import random
import signal
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from stratalog.adapters.compiled_door import largest_timestamp, open_door
from stratalog.adapters.descriptors import descriptors_max
from stratalog.adapters.local_disk import LocalDisk
from stratalog.adapters.memory import buffer
from stratalog.adapters.network import TcpNetwork
from stratalog.adapters.object_store import open_store
from stratalog.adapters.paced_disk import PacedDisk
from stratalog.adapters.processes import ProcessWorker
from stratalog.adapters.threads import ThreadWorker
from stratalog.adapters.web_keys import read_web_keys
from stratalog.errors import UserError
from stratalog.ports import AuditLog, Outside

_PROCESSES_MAX: Final = 8
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


class SystemClock:
    """`ports.Clock`: milliseconds since the epoch, from the system's clock."""

    elapsed_ns = staticmethod(time.perf_counter_ns)

    def __init__(self) -> None:
        self._began_ns = time.time_ns() - time.monotonic_ns()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def steady_ms(self) -> int:
        return (self._began_ns + time.monotonic_ns()) // 1_000_000


def monotonic_s() -> float:
    """Return a steady clock's seconds, to the microsecond: uvloop's own time does not advance within a turn."""
    return time.perf_counter()


class SystemEntropy:
    """`ports.Entropy` from the system's generator."""

    def uuid(self) -> uuid.UUID:
        return uuid.uuid4()

    def uniform(self, low: float, high: float) -> float:
        return random.uniform(low, high)


class SystemWorkers:
    """`ports.Workers` with threads and processes. Processes use up to half of the machine's cores, because the broker
    needs one.
    """

    def start(self, name: str, threads: int = 1, *, background: bool = False) -> ThreadWorker:
        return ThreadWorker(name, threads, background=background)

    def start_processes(self, name: str, *, background: bool = False) -> ProcessWorker:
        processes = max(1, min(_PROCESSES_MAX, (os.cpu_count() or 1) // 2))
        return ProcessWorker(name, processes, background=background)


def outside() -> Outside:
    """Return the ports of a real process."""
    return Outside(
        clock=SystemClock(),
        entropy=SystemEntropy(),
        workers=SystemWorkers(),
        network=TcpNetwork(),
        disk=LocalDisk,
        paced_disk=PacedDisk,
        object_store=open_store,
        buffer=buffer,
        door=open_door,
        descriptors=descriptors_max(),
        largest_timestamp=largest_timestamp(),
        audit_log=_audit_log,
        token_keys=read_web_keys,
        post=_post,
    )


# Few nodes need these two, and their modules take as long as a twentieth of a start.


def _audit_log(path: str, bytes_max: int, files: int) -> AuditLog:
    from stratalog.adapters.audit_file import AuditFile  # noqa: PLC0415

    return AuditFile(path, bytes_max, files)


def _post(url: str, body: bytes, headers: Mapping[str, str], *, timeout_s: float) -> int:
    from stratalog.adapters.http_request import post  # noqa: PLC0415

    return post(url, body, headers, timeout_s=timeout_s)


def on_stop_signal(stop: Callable[[], None]) -> None:
    """Call `stop` on the event loop at SIGTERM, SIGINT and SIGHUP."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # As Java does, and for nohup: a SIGHUP that the process was started to ignore stays ignored.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(number, stop)


def write_ready_file(name: str, line: str) -> None:
    """Write the file whole or not at all: a reader may open it as soon as it exists. Raises UserError.

    The directory may be one where others write, as /tmp is: a link is replaced, and never followed.
    """
    path = Path(name)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        with os.fdopen(os.open(temporary, _NEW_FILE, 0o644), "w") as file:
            file.write(line + "\n")
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"--ready-file {path}: {error.strerror or error}") from error
