"""The quick start of a server reads plain words as typer does, and imports only what it needs."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stratalog.cli.app import app
from stratalog.cli.node import server
from stratalog.cli.node.serving import ServerWords, plain_words

UNDERSTOOD = [
    [],
    ["broker.properties"],
    ["--override", "node.id=1"],
    ["--override=node.id=1", "--override", "log.dirs=a b"],
    ["--override=x=", "broker.properties", "--ready-file", "r.json"],
    ["--ready-file=a", "--ready-file=b"],
    ["--profile", "production", "--override=listeners=PLAINTEXT://:0"],
    ["--console", "broker.properties"],
]
"""Words that the quick parser understands; typer refuses, explains or reads differently those in `TYPERS`."""
TYPERS = [
    ["--help"],
    ["--override"],
    ["--override="],
    ["--override", "--help"],
    ["--overrid=node.id=1"],
    ["a", "b"],
    ["--", "a"],
    [""],
    ["-x"],
    ["a", "--help"],
    ["--console=yes"],
]


@pytest.mark.parametrize("words", UNDERSTOOD, ids=" ".join)
def test_plain_words_are_read_as_typer_reads_them(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[ServerWords] = []
    monkeypatch.setattr(server, "serve", asked.append)
    done = CliRunner().invoke(app, ["server", *words])
    assert done.exit_code == 0, done.output
    assert asked == [plain_words(words)]


@pytest.mark.parametrize("words", TYPERS, ids=" ".join)
def test_typer_reads_all_other_words(words: list[str]) -> None:
    assert plain_words(words) is None


HEAVY = {
    "anyio",
    "numba",
    "obstore",
    "prometheus_client",
    "pyarrow",
    "pydantic",
    "pygments",
    "rich.console",
    "starlette",
    "stratalog.cli.app",
    "stratalog.monitor",
    "stratalog.kernels",
    "stratalog.spark",
    "stratalog.tier",
    "typer",
    "uvicorn",
}
"""Modules that the first record does not need: no start may import them."""
WAITS = 1500


def server_words(tmp_path: Path, ready: Path) -> list[str]:
    words = ["--override=node.id=1", "--override=listeners=PLAINTEXT://127.0.0.1:0"]
    words += [f"--override=log.dirs={tmp_path / 'data'}", f"--ready-file={ready}"]
    return ["server", *words]


def test_a_server_serves_before_heavy_modules_are_imported(tmp_path: Path) -> None:
    """Imports take most of a start's time: the code that needs a listed module imports it later."""
    ready = tmp_path / "ready"
    strata = [sys.executable, "-X", "importtime", "-m", "stratalog.cli.main"]
    with subprocess.Popen(
        [*strata, *server_words(tmp_path, ready)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    ) as process:
        for _ in range(WAITS):
            if ready.exists() or process.poll() is not None:
                break
            time.sleep(0.02)
        process.terminate()
        _out, errors = process.communicate(timeout=60)
    assert ready.exists(), errors
    imported = {line.rpartition("|")[2].strip() for line in errors.splitlines() if "|" in line}
    assert "stratalog.node" in imported
    assert HEAVY & imported == set()


LOOKS = """
import os, pathlib, signal, sys, threading, time

from stratalog.cli.main import main

ready = pathlib.Path(sys.argv.pop())

def look():
    for _ in range(1500):
        if ready.exists():
            break
        time.sleep(0.02)
    print(ready.exists(), sys.getswitchinterval(), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=look).start()
main()
"""


def test_a_servers_threads_switch_after_less_than_pythons_default(tmp_path: Path) -> None:
    """With Python's five milliseconds each request waits for a computing thread (`adapters/threads.py`)."""
    ready = tmp_path / "ready"
    done = subprocess.run(
        [sys.executable, "-c", LOOKS, *server_words(tmp_path, ready), str(ready)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "True 0.0005" in done.stdout.splitlines(), done.stdout + done.stderr
