"""The job's own broker: `strata server` as a process, with all its files in one directory.

In: a directory for its data, the bucket's URL. Out: its address; its end, clean or by force. It never outlives the
`with` block, and never uses a fixed port.
"""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from secured import Secured

from stratalog.adapters.network import TcpNetwork
from stratalog.client.aio import Client
from stratalog.errors import Unavailable, UserError

START_S = 30.0
STOP_S = 60.0

# The tier works at once, because people are waiting; and segments roll by record time and size alone.
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "file.delete.delay.ms": "0",
    "log.initial.task.delay.ms": "200",
    "log.retention.check.interval.ms": "500",
    "remote.log.manager.task.interval.ms": "200",
    "tier.max.lag.ms": str(7 * 24 * 60 * 60 * 1000),
}


class Serving(Protocol):
    """A broker, or a cluster of them, at `address` (host:port,…) with the bucket at `tier_url`."""

    @property
    def address(self) -> str: ...
    @property
    def tier_url(self) -> str: ...
    @property
    def secured(self) -> Secured:
        """How clients reach it."""

    async def leader_data(self, topic: str) -> Path:
        """Return the log directory of the broker that leads the topic's first partition."""

    def stop(self) -> None:
        """Stop what runs. Raises UserError where a broker does not stop cleanly."""


@dataclass(frozen=True, slots=True)
class RunningBroker:
    """A broker that serves at `address` (host:port), data under `data`, bucket at `tier_url`."""

    process: "subprocess.Popen[bytes]"
    address: str
    data: Path
    tier_url: str
    log: Path
    secured: Secured

    async def leader_data(self, topic: str) -> Path:  # noqa: ARG002 - it leads all
        return self.data

    def stop(self) -> None:
        """Send SIGTERM, and wait. Raises UserError unless the broker exits with 0 and its port refuses connections."""
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            raise UserError(f"the broker did not stop in {STOP_S:g} s (log: {self.log})") from None
        if status != 0:
            raise UserError(f"the broker ended with {status}: {last_line(self.log)}")
        if asyncio.run(self._answers()):
            raise UserError(f"{self.address} still answers after the broker's end")

    async def _answers(self) -> bool:
        try:
            client = await Client.connect(
                TcpNetwork(), self.address, timeout_s=5, security=self.secured.security
            )
        except Unavailable:
            return False
        await client.close()
        return True


@contextmanager
def running_broker(
    data: Path, tier_url: str, log: Path, secured: Secured
) -> Iterator[RunningBroker]:
    """Start a broker, and end it with the block in any case. Raises UserError where it does not start."""
    ready_file = data.parent / f"{data.name}.ready"
    settings = {
        **SETTINGS,
        **secured.broker,
        "log.dirs": str(data.resolve()),
        "tier.url": tier_url,
    }
    command = [
        sys.executable,
        "-m",
        "stratalog.cli.main",
        "server",
        "--ready-file",
        str(ready_file),
    ]
    for name, value in settings.items():
        command += ["--override", f"{name}={value}"]
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - this very Python
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the job, which stops its broker itself
        )
    try:
        asyncio.run(_ready(process, ready_file, log))
        ready = json.loads(ready_file.read_text(encoding="utf-8"))
        address = f"{ready['host']}:{ready['port']}"
        yield RunningBroker(process, address, data, tier_url, log, secured)
    finally:
        ready_file.unlink(missing_ok=True)
        for how in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                process.send_signal(how)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(10)


async def _ready(process: "subprocess.Popen[bytes]", ready_file: Path, log: Path) -> None:
    try:
        async with asyncio.timeout(START_S):
            while not ready_file.exists():  # noqa: ASYNC240 - nothing else runs on this loop
                if process.poll() is not None:
                    raise UserError(f"the broker did not start: {last_line(log)}")
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise UserError(f"the broker was not ready in {START_S:g} s (log: {log})") from None


def last_line(log: Path) -> str:
    """Return the last line of a process's log."""
    said = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(said) if line.strip()), "it said nothing")
