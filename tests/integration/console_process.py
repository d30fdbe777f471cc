"""A real `strata console` in a process of its own, for tests, and requests to it.

In: a cluster's address, options. Out: statuses, headers and bodies. The process is ended at the end in any case.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

START_TIMEOUT_S = 60
TIMEOUT_S = 60


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    text: str


@dataclass
class Console:
    """`get`, `json` and `post` by path; `token` is the one in this console's forms."""

    port: int
    pid: int
    output: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def request(self, method: str, path: str, body: str | None = None, **headers: str) -> Answer:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, named)
            answer = connection.getresponse()
            lowered = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, lowered, answer.read().decode())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.request("GET", path, **headers)

    def json(self, path: str) -> Any:
        answer = self.get(path)
        assert answer.status == 200, answer.text
        return json.loads(answer.text)

    def post(self, path: str, form: dict[str, Any], **headers: str) -> Answer:
        kind = {"content_type": "application/x-www-form-urlencoded"}
        return self.request("POST", path, urlencode(form), **kind, **headers)

    def token(self, path: str) -> str:
        """The token in the forms of a page."""
        found = re.search(r'name="token" value="([0-9a-f]+)"', self.get(path).text)
        assert found, f"{path} has no form"
        return found[1]


@contextmanager
def console_process(
    place: Path, bootstrap: str, *options: str, environ: Mapping[str, str] | None = None
) -> Iterator[Console]:
    """`environ` is added to this process's environment."""
    place.mkdir(parents=True, exist_ok=True)
    ready, output = place / "console.json", place / "console.log"
    ready.unlink(missing_ok=True)
    command = [sys.executable, "-m", "stratalog.cli.main", "console", "-b", bootstrap]
    command += ["--listen", "127.0.0.1:0", "--ready-file", str(ready), *options]
    with output.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **(environ or {})},
        )
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not ready.exists():
            assert process.poll() is None, output.read_text()
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(0.02)
        found = json.loads(ready.read_text())
        assert found["pid"] == process.pid
        yield Console(int(found["url"].rpartition(":")[2]), process.pid, output)
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGTERM)
        code = process.wait(TIMEOUT_S)
    assert code == 0, output.read_text()
    assert "Traceback" not in output.read_text()
