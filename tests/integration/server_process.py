"""A real `strata server` in a process of its own, for tests.

In: a place and settings. Out: its address, and ways to end it. The process is killed at the end in any case, so nothing
is left behind.
"""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import chdir, suppress
from functools import cache
from io import BytesIO, TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import Self
from unittest.mock import patch

import pytest
import typer.main
from tests.held_port import held_port

from stratalog.cli.main import main

START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 60
STRATA = [sys.executable, "-m", "stratalog.cli.main"]

parser_of = cache(typer.main.get_command)
"""typer makes its 150 parsers anew for each command line: 40 ms, which a process pays once and a run of tests once."""


def on_a_terminal(*words: str) -> str:
    """Run `strata` on a terminal of 80 columns; return what it shows."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*STRATA, *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "80"},
    ) as command:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # Linux reports the end of a pseudo-terminal as an error
            while piece := os.read(ours, 4096):
                shown += piece
        os.close(ours)
    assert command.returncode == 0, shown
    return shown.decode()


def use_unreachable_profile(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a profile current that reaches no broker, as a user's may be elsewhere."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config))
    properties = config / "client.properties"
    config.mkdir(exist_ok=True)
    properties.write_text("bootstrap.servers=127.0.0.1:1\nsecurity.protocol=SSL\n")
    for words in (("create", "elsewhere", str(properties)), ("use", "elsewhere")):
        done = strata("profile", *words)
        assert done.returncode == 0, done.stderr


class Server:
    """`with Server(tmp_path, ["num.partitions=3"]) as server: … server.address`.

    Data is in `place/data`; a second Server on the same place continues where the first ended.
    """

    def __init__(
        self,
        place: Path,
        overrides: Sequence[str] = (),
        *,
        port: int = 0,
        options: Sequence[str] = (),
    ) -> None:
        self.place = place
        self.data = place / "data"
        self.output = place / "server.log"
        self.port = port or held_port(self)
        self._ready = place / "ready.json"
        self._options = options
        self.overrides = [f"log.dirs={self.data}", *overrides]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> Self:
        """Start the server and wait until it serves. Raise AssertionError with its output if it does not."""
        self._ready.unlink(missing_ok=True)
        settings = [*self.overrides, f"listeners=PLAINTEXT://127.0.0.1:{self.port}"]
        words = [word for setting in settings for word in ("--override", setting)]
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                [*STRATA, "server", "--ready-file", str(self._ready), *self._options, *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._ready.exists():
            code = self._process.poll()
            assert code is None, f"ended with {code}: {self.said()}"
            assert time.monotonic() < deadline, f"not ready: {self.said()}"
            time.sleep(0.01)
        self.port = json.loads(self._ready.read_text())["port"]
        return self

    @property
    def exit_code(self) -> int | None:
        """Return the exit code, or None while the server runs."""
        assert self._process is not None
        return self._process.poll()

    def said(self) -> str:
        return self.output.read_text(errors="replace")[-2000:]

    def stop(self) -> int:
        """Send SIGTERM; return the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Wait for the server's end; return the exit code."""
        assert self._process is not None
        return self._process.wait(STOP_TIMEOUT_S)

    def kill(self) -> None:
        """Send SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(STOP_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()


def strata_process(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command to its end in a process of its own."""
    return subprocess.run(
        [*STRATA, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=cwd,
    )


def strata(
    *words: str,
    stdin: str | bytes = b"",
    environ: dict[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end inside this process, as its entry point does: much quicker than a new process."""
    given = TextIOWrapper(BytesIO(stdin.encode() if isinstance(stdin, str) else stdin))
    out, err = (
        TextIOWrapper(BytesIO(), encoding="utf-8"),
        TextIOWrapper(BytesIO(), encoding="utf-8"),
    )
    with (
        patch.object(typer.main, "get_command", parser_of),
        patch.object(sys, "argv", ["strata", *words]),
        patch.object(sys, "stdin", given),
        patch.object(sys, "stdout", out),
        patch.object(sys, "stderr", err),
        patch.dict(os.environ, environ or {}),
        chdir(cwd or Path.cwd()),
    ):
        code: object = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode(errors="replace"))  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(words, code if isinstance(code, int) else 1, *texts)
