"""`./run`'s job as a process, for tests.

In: its arguments, and variables beside the test's environment. Out: its exit code and output; the result of --json.
Never here: set-up; the test's own environment has everything.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

PIPELINE = Path(__file__).parent.parent.parent / "pipelines" / "access_log"
JOB = [sys.executable, str(PIPELINE / "job.py")]
TIMEOUT_S = 1500


def job(*arguments: object, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*JOB, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
        check=False,
    )


def answer(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    """Return the result of a job with --json."""
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def processes_that_name(place: Path) -> list[str]:
    """Return the command lines of all processes that contain `place`."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        command = " ".join(process.info["cmdline"] or [])
        if str(place) in command and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(command)
    return found
