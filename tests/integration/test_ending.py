"""Events that end a server, and events that must not: SIGHUP, a terminal that closes, a log that cannot be written."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.integration.server_process import START_TIMEOUT_S, STRATA, Server, strata

CLEAN = ".kafka_cleanshutdown"
ON_TERMINAL = "import os, sys; os.login_tty(int(sys.argv[1])); os.execv(sys.argv[2], sys.argv[2:])"
IGNORING = (
    "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN);"
    " os.execv(sys.argv[1], sys.argv[1:])"
)


def words_of(place: Path) -> list[str]:
    settings = ["listeners=PLAINTEXT://127.0.0.1:0", f"log.dirs={place / 'data'}"]
    overrides = [word for setting in settings for word in ("--override", setting)]
    return [*STRATA, "server", "--ready-file", str(place / "ready.json"), *overrides]


def wait_until_ready(place: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not (place / "ready.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_server_cleanly(number: signal.Signals, tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        assert strata("topic", "create", "t", "-b", server.address).returncode == 0
        os.kill(server.pid, number)
        assert server.wait() == 0
    assert (server.data / CLEAN).exists()
    assert "stopped" in server.output.read_text()


def test_a_signal_ends_a_start_that_waits_for_a_quorum(tmp_path: Path) -> None:
    """No other voter runs: port 1 has no listener."""
    settings = [
        "process.roles=broker,controller",
        "node.id=1",
        "listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
        "controller.listener.names=CONTROLLER",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.quorum.voters=1@127.0.0.1:1,2@127.0.0.1:1,3@127.0.0.1:1",
    ]
    words = [word for setting in settings for word in ("--override", setting)]
    where = ["--override", f"log.dirs={tmp_path / 'data'}"]
    assert strata("storage", "format", *where, *words).returncode == 0
    output = tmp_path / "output"
    with (
        output.open("wb") as file,
        subprocess.Popen([*words_of(tmp_path), *words], stdout=file, stderr=file) as process,
    ):
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            while "starting" not in output.read_text():
                assert process.poll() is None, output.read_text()
                assert time.monotonic() < deadline
                time.sleep(0.02)
            process.send_signal(signal.SIGTERM)
            assert process.wait(START_TIMEOUT_S) == 0, output.read_text()
        finally:
            process.kill()
    assert "stopped" in output.read_text()
    assert not (tmp_path / "ready.json").exists()


def test_a_server_that_was_started_to_ignore_sighup_continues(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", IGNORING, *words_of(tmp_path)], stdout=subprocess.DEVNULL
    ) as process:
        try:
            wait_until_ready(tmp_path)
            status = Path(f"/proc/{process.pid}/status").read_text()
            ignored = int(status.partition("SigIgn:")[2].split()[0], 16)
            assert ignored & 1 << (signal.SIGHUP - 1)
            process.send_signal(signal.SIGTERM)
            assert process.wait(START_TIMEOUT_S) == 0
        finally:
            process.kill()


def test_a_terminal_that_closes_ends_a_server_cleanly(tmp_path: Path) -> None:
    ours, its = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", ON_TERMINAL, str(its), *words_of(tmp_path)], pass_fds=(its,)
    ) as process:
        try:
            os.close(its)
            wait_until_ready(tmp_path)
            os.close(ours)  # SIGHUP; and from now on no line can be written
            assert process.wait(START_TIMEOUT_S) == 0
        finally:
            process.kill()
    assert (tmp_path / "data" / CLEAN).exists()


def test_a_server_continues_if_its_log_cannot_be_written(tmp_path: Path) -> None:
    with (
        Path("/dev/full").open("wb") as full,
        subprocess.Popen(words_of(tmp_path), stdout=full) as process,
    ):
        try:
            wait_until_ready(tmp_path)
            process.send_signal(signal.SIGTERM)
            assert process.wait(START_TIMEOUT_S) == 0
        finally:
            process.kill()
