"""Detached processes: an id and a start time identify each, so no other process gets its signal."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL, SIGTERM

import pytest
from tests.integration.waiting import wait_for

from stratalog.adapters.detached import Detached, is_running, send, start_detached
from stratalog.adapters.free_ports import is_free

WAITS = [sys.executable, "-S", "-c", "print('here', flush=True); import time; time.sleep(60)"]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Detached]:
    started = start_detached(WAITS, str(tmp_path / "log"))
    yield started
    send(started, SIGKILL)
    wait_for(lambda: not is_running(started), "its end")


def test_a_process_runs_prints_into_its_log_and_ends_by_a_signal(
    process: Detached, tmp_path: Path
) -> None:
    wait_for(lambda: (tmp_path / "log").read_text() == "here\n", "its output")
    assert is_running(process)
    assert send(process, SIGTERM)
    wait_for(lambda: not is_running(process), "its end")
    assert not send(process, SIGTERM)


def test_a_later_process_with_the_same_id_is_not_signalled(
    process: Detached,
) -> None:
    earlier = replace(process, began="a boot ago 1")
    assert not is_running(earlier)
    assert not send(earlier, SIGKILL)
    assert is_running(process)


def test_a_process_whose_first_thread_alone_has_ended_runs_and_holds_its_port(
    tmp_path: Path,
) -> None:
    """`kill -9` leaves a process like this while another thread waits for the disk."""
    program = (
        "import ctypes, socket, threading, time\n"
        "port = socket.create_server(('127.0.0.1', 0))\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "print(port.getsockname()[1], flush=True)\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    log = tmp_path / "log"
    started = start_detached([sys.executable, "-S", "-c", program], str(log))
    wait_for(lambda: log.read_text().endswith("\n"), "its port")
    state = Path(f"/proc/{started.pid}/stat")
    wait_for(
        lambda: state.read_text().rpartition(")")[2].split()[0] == "Z", "the first thread's end"
    )
    assert not is_free(int(log.read_text()))
    assert is_running(started)
    assert send(started, SIGKILL)
    wait_for(lambda: not is_running(started), "its end")
    assert is_free(int(log.read_text()))


def test_a_process_outlives_its_parent(tmp_path: Path) -> None:
    program = (
        "import sys; from stratalog.adapters.detached import start_detached as start;"
        f"one = start({WAITS!r}, sys.argv[1]); print(one.pid, one.began)"
    )
    parent = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, str(tmp_path / "log")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert parent.stderr == ""
    pid, _, began = parent.stdout.strip().partition(" ")
    orphan = Detached(int(pid), began)
    assert is_running(orphan)
    assert send(orphan, SIGKILL)
    wait_for(lambda: not is_running(orphan), "its end")
