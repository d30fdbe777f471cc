"""Run a temporary broker in a separate process, for a command.

In: a directory, settings. Out: the broker's address and process id. The broker never outlives the command. It writes
only in the directory, except for its log after a failure.
"""

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stratalog.cli.shared.client_config import use_none
from stratalog.cli.shared.terminal import note

if TYPE_CHECKING:
    from asyncio.subprocess import Process

PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class Started:
    """A broker that serves: `address` is host:port, and so is `monitor`; that is empty without `monitor.listener`."""

    address: str
    pid: int
    monitor: str


@asynccontextmanager
async def broker(place: Path, settings: Sequence[str]) -> AsyncIterator[Started]:
    """Run a broker on a free port of 127.0.0.1 with its data in `place`; `settings` are NAME=VALUE. Stop it at the end.

    From here on the command connects without the user's profile. Where the body fails, the broker's log stays beside
    `place`, and a note names the file. Raises Unavailable with the broker's last line where it does not start, or
    ends before the body, which is cancelled then.
    """
    from asyncio import CancelledError, create_subprocess_exec, create_task, current_task
    from asyncio.subprocess import DEVNULL

    from stratalog.errors import Unavailable

    use_none()
    ready = place / "ready.json"
    all_settings = [
        "listeners=PLAINTEXT://127.0.0.1:0",
        f"log.dirs={place / 'data'}",
        *settings,
    ]
    overrides = [word for setting in all_settings for word in ("--override", setting)]
    log = place / "broker.log"
    with log.open("wb") as output:
        process = await create_subprocess_exec(
            sys.executable,
            "-m",
            "stratalog.cli.main",
            "server",
            "--ready-file",
            str(ready),
            *overrides,
            stdin=DEVNULL,
            stdout=output,
            stderr=output,
        )
    body = current_task()
    assert body is not None
    has_ended = False

    async def watch() -> None:
        nonlocal has_ended
        await process.wait()
        has_ended = True
        body.cancel()

    failed, watching = True, None
    try:
        started = await _started(process, ready, log)
        watching = create_task(watch())
        yield started
        failed = False
    except CancelledError:
        if has_ended and not body.uncancel():
            failed = (process.returncode or 0) >= 0  # of one that was killed the log says nothing
            raise Unavailable(f"the broker {_how(process)}: {_last_line(log)}") from None
        failed = False  # Ctrl-C
        raise
    finally:
        if watching is not None:
            watching.cancel()
        if process.returncode is None:
            process.terminate()
        await process.wait()
        if failed:
            _keep(log, place.with_name(f"{place.name}.log"))


async def _started(process: "Process", ready: Path, log: Path) -> Started:
    """Wait until the broker serves."""
    from asyncio import get_running_loop, sleep

    from stratalog.errors import Unavailable

    deadline = get_running_loop().time() + PATIENCE_S
    while (served := _served(ready)) is None:
        if process.returncode is not None or get_running_loop().time() > deadline:
            raise Unavailable(f"the broker did not start: {_last_line(log)}")
        await sleep(0.02)
    address, monitor = served
    return Started(address, process.pid, monitor)


def _served(ready: Path) -> tuple[str, str] | None:
    """Return the addresses of broker and monitor in a ready file; None before the file exists."""
    import json

    try:
        ready_file = json.loads(ready.read_text())
    except FileNotFoundError:
        return None
    monitor = ready_file["monitor_port"]
    address = f"{ready_file['host']}:{ready_file['port']}"
    return address, f"127.0.0.1:{monitor}" if monitor else ""


def _how(process: "Process") -> str:
    """Return how a process ended."""
    from signal import Signals

    code = process.returncode or 0
    return f"was ended by {Signals(-code).name}" if code < 0 else f"ended with code {code}"


def _keep(log: Path, kept: Path) -> None:
    """Move the log out of the directory before its removal; a move works on a full disk, too."""
    last = _last_line(log)
    log.replace(kept)
    note(f"the broker's log is kept: {kept}; it ends with: {last}")


def _last_line(log: Path) -> str:
    """Return the last line of a broker's output."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
