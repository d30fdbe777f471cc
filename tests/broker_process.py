"""A real broker in a process of its own, for tests: started, stopped, killed.

In: a directory and settings. Out: a broker on a free port of 127.0.0.1. It ends only the process it started.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.held_port import held_port

START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 30

# Defaults of tests: no wait takes minutes.
QUICK = {
    "node.id": "1",
    "remote.log.manager.task.interval.ms": "200",
    "log.retention.check.interval.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "3",
}


@dataclass
class BrokerProcess:
    """`start`, then `address`; `kill` is kill -9, `stop` is SIGTERM and gives the exit code."""

    directory: Path
    settings: dict[str, str] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    port: int = 0
    descriptors: int = 0
    """The process's limit of file descriptors, where it is another one than this process's."""

    def __post_init__(self) -> None:
        self.port = self.port or held_port(self)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def bucket_url(self) -> str:
        return (self.directory / "bucket").as_uri()

    @property
    def log_text(self) -> str:
        return (self.directory / "broker.log").read_text()

    def start(self) -> "BrokerProcess":
        """Start on the held port, at each start the same; return once the broker serves."""
        settings = {
            **QUICK,
            "log.dirs": str(self.data),
            "tier.url": self.bucket_url,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            **self.settings,
        }
        ready = self.directory / "ready.json"
        ready.unlink(missing_ok=True)
        self.directory.mkdir(parents=True, exist_ok=True)
        overrides = [f"--override={name}={value}" for name, value in settings.items()]
        limit = ["sh", "-c", f'ulimit -n {self.descriptors}; exec "$@"', "sh"]
        command = limit if self.descriptors else []
        command += [sys.executable, "-m", "stratalog.cli.main", "server", f"--ready-file={ready}"]
        with (self.directory / "broker.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *overrides],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environ},
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not ready.exists():
            assert self.process.poll() is None, self.log_text[-2000:]
            assert time.monotonic() < deadline, f"not ready: {self.log_text[-2000:]}"
            time.sleep(0.02)
        self.port = json.loads(ready.read_text())["port"]
        return self

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_TIMEOUT_S)

    def kill(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(STOP_TIMEOUT_S)


@contextmanager
def broker_process(
    directory: Path, environ: dict[str, str] | None = None, **settings: str
) -> Iterator[BrokerProcess]:
    """Yield a started broker and end it at any exit of the block. Double underscores stand for dots of settings."""
    named = {name.replace("__", "."): value for name, value in settings.items()}
    broker = BrokerProcess(directory, named, environ or {})
    try:
        yield broker.start()
    finally:
        if broker.process is not None and broker.process.poll() is None:
            broker.kill()
