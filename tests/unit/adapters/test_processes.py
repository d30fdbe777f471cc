"""A process beside the broker ends with the broker, whatever it does.

Method: a parent starts a worker whose call never returns, and is killed with `kill -9`, as a broker that the kernel's
out-of-memory killer chose. The call's process must be gone soon after: it could still be writing to the broker's disk.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.adapters.processes import ProcessWorker
from stratalog.errors import Unavailable

WITHIN_S = 30.0
PARENT = """
import asyncio, sys
from functools import partial
from stratalog.adapters.processes import ProcessWorker

async def main():
    await ProcessWorker("test", 1).submit(partial(exec, sys.argv[1]))

asyncio.run(main())
"""
ENDLESS = {
    "computes": "while True: pass",
    "waits": "import time; time.sleep(600)",
}


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Return whether a process exists that has not ended: one that no parent waited for counts as ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_call_ends_with_the_broker_that_was_killed(tmp_path: Path, kind: str) -> None:
    noted = tmp_path / "pid"
    call = f"import os; open({str(noted)!r}, 'w').write(f'{{os.getpid()}}.'); {ENDLESS[kind]}"
    call = call.replace("; while", "\nwhile")
    parent = subprocess.Popen([sys.executable, "-c", PARENT, call])
    try:
        until(lambda: noted.exists() and noted.read_text().endswith("."), "the call began")
        child = int(noted.read_text()[:-1])
        assert is_alive(child)
        parent.send_signal(signal.SIGKILL)
        parent.wait(WITHIN_S)
        try:
            until(lambda: not is_alive(child), "the call's process ended")
        finally:
            if is_alive(child):
                os.kill(child, signal.SIGKILL)
    finally:
        parent.kill()
        parent.wait()


def priorities() -> tuple[int, str]:
    """Return this process's niceness, and its session's where the system schedules sessions."""
    autogroup = Path("/proc/self/autogroup")
    return os.nice(0), autogroup.read_text().split()[-1] if autogroup.exists() else ""


async def of_the_processes(*, background: bool) -> tuple[int, str]:
    worker = ProcessWorker("test", 1, background=background)
    try:
        found: tuple[int, str] = await worker.submit(priorities)
    finally:
        await worker.close()
    return found


def test_a_background_process_gives_way_to_others() -> None:
    plain, _ = asyncio.run(of_the_processes(background=False))
    nice, of_its_session = asyncio.run(of_the_processes(background=True))
    assert nice > plain
    assert of_its_session in {"", str(nice - plain)}


async def unreadable() -> str:
    """Submit a call that the other process cannot read: its module is not there."""
    worker = ProcessWorker("test", 1)
    module = types.ModuleType("module_of_this_process_alone")
    sys.modules[module.__name__] = module
    exec("def call(): return 1", module.__dict__)
    try:
        await asyncio.wait_for(worker.submit(module.call), WITHIN_S)
    except Unavailable as error:
        return str(error)
    finally:
        del sys.modules[module.__name__]
        await worker.close()
    return ""


def test_a_call_that_cannot_be_read_fails() -> None:
    assert "died" in asyncio.run(unreadable())
