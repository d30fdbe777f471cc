"""Start, measure and stop the two compared brokers, and build the client that loads them.

In: a scratch directory. Out: servers with an address, CPU seconds, memory. It ends only what it started.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

import psutil
from pipelines.access_log.fetched import fetching
from tests.compat.tools import java, kafka_lib, kafka_tier_lib

from stratalog.adapters.free_ports import free_ports

RDKAFKA = "node-rdkafka@3.6.1"
START_TIMEOUT_S = 600
"""Three nodes of Apache Kafka with 10,000 partitions took more than 120 s on a busy machine."""
STOP_TIMEOUT_S = 300
KAFKA_OPTIONS = [
    "-Xms1g",
    "-Xmx1g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-Djava.awt.headless=true",
]


KAFKA_TIER = """remote.log.storage.system.enable=true
remote.log.storage.manager.class.name=org.apache.kafka.server.log.remote.storage.LocalTieredStorage
rsm.config.dir={directory}/tier
remote.log.metadata.manager.listener.name=PLAINTEXT
rlmm.config.remote.log.metadata.topic.replication.factor=1
rlmm.config.remote.log.metadata.topic.num.partitions=1
remote.log.manager.task.interval.ms=500
log.retention.check.interval.ms=500
"""


@dataclass
class Server:
    """A running broker."""

    name: str
    port: int
    process: subprocess.Popen[bytes]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.process.pid)

    def resident_mb(self) -> float:
        return float(psutil.Process(self.process.pid).memory_info().rss / 1e6)

    def stop(self) -> None:
        if self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def kill(self) -> None:
        """End the broker as `kill -9` does."""
        self.process.kill()
        self.process.wait()


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process' threads, ended ones too, in steps of a nanosecond: psutil's steps are 10 ms."""
    return time.clock_gettime((~pid << 3) | 2)  # as clock_getcpuclockid(3) makes it on Linux


@cache
def product_command() -> str:
    """Return `strata` of an environment that is made once, and has only what the product needs.

    pip compiles the modules that it installs. So starts read bytecode, as those of an installed product do, whatever
    PYTHONDONTWRITEBYTECODE says here.
    """
    checkout = Path(__file__).resolve().parent.parent
    pinned = checkout / "requirements"
    wanted = (pinned / "build.txt").read_bytes() + (pinned / "core.txt").read_bytes()
    # One environment for each list of packages and each Python: an older one would lack the compiler of `wire/walk.py`.
    wanted += f"{sys.base_prefix} {sys.version}".encode()
    with fetching(f"product-{sha256(wanted).hexdigest()[:12]}") as environment:
        command = environment / "bin" / "strata"
        pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps"]
        if not command.exists():
            venv = [sys.executable, "-m", "venv", str(environment)]
            for step in (
                venv,
                [*pip, "--require-hashes", "-r", str(pinned / "build.txt")],
                [*pip, "--require-hashes", "-r", str(pinned / "core.txt")],
            ):
                subprocess.run(step, check=True, timeout=600)
        subprocess.run(
            [*pip, "--no-build-isolation", "--force-reinstall", str(checkout)],
            check=True,
            timeout=600,
        )
        compiled = list(environment.glob("lib/*/site-packages/stratalog/wire/walk.*.so"))
        assert compiled, (
            "walk.py is not compiled: the measurements would not be those of an installed broker"
        )
        return str(command)


@contextmanager
def strata(directory: Path, command: str = "", **settings: str) -> Iterator[Server]:
    """Yield our broker, ready to serve; with the data of its earlier runs in this directory.

    `command` is the `strata` of another installation; by default this checkout is installed and runs.
    """
    ready = directory / "ready.json"
    directory.mkdir(parents=True, exist_ok=True)
    ready.unlink(missing_ok=True)
    values = {
        "node.id": "1",
        "log.dirs": str(directory / "data"),
        "listeners": "PLAINTEXT://127.0.0.1:0",
    }
    values.update({name.replace("__", "."): value for name, value in settings.items()})
    overrides = [f"--override={name}={value}" for name, value in values.items()]
    with (directory / "log").open("wb") as log:
        words = [command or product_command(), "server", f"--ready-file={ready}", *overrides]
        process = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        wait_until(ready.exists, process, directory / "log")
        yield Server("stratalog", json.loads(ready.read_text())["port"], process)
    finally:
        Server("stratalog", 0, process).stop()


@contextmanager
def kafka(directory: Path, *, tiered: bool = False, tls: str = "") -> Iterator[Server]:
    """Yield Apache Kafka, ready to serve; with the data and ports of its earlier runs in this directory.

    `tiered`: with its own tier in a directory (`LocalTieredStorage`). `tls`: another listener, `SSL://host:port`, and
    lines of settings for it.
    """
    prepare_kafka(directory, tiered=tiered, tls=tls)
    properties = directory / "server.properties"
    (port,) = re.findall(r"PLAINTEXT://127.0.0.1:(\d+)", properties.read_text())
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [*java_command(tiered=tiered), "kafka.Kafka", str(properties)],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
    try:
        wait_until(lambda: accepts(int(port)), process, directory / "log")
        yield Server("Apache Kafka", int(port), process)
    finally:
        Server("Apache Kafka", 0, process).stop()


def java_command(*, tiered: bool = False) -> list[str]:
    path = f"{kafka_lib()}/*" + (f"{os.pathsep}{kafka_tier_lib()}/*" if tiered else "")
    return [java(), *KAFKA_OPTIONS, "-cp", path]


def prepare_kafka(directory: Path, *, tiered: bool = False, tls: str = "") -> None:
    """Choose ports and format the data directory, unless that was done."""
    properties = directory / "server.properties"
    if properties.exists():
        return
    directory.mkdir(parents=True, exist_ok=True)
    port, controller = free_ports(2)
    listener, _, settings = tls.partition("\n")
    properties.write_text(
        f"process.roles=broker,controller\nnode.id=1\nlog.dirs={directory / 'data'}\n"
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}"
        f"{',' * bool(listener)}{listener}\n{settings}"
        f"controller.quorum.bootstrap.servers=127.0.0.1:{controller}\ncontroller.listener.names=CONTROLLER\n"
        "offsets.topic.replication.factor=1\ntransaction.state.log.replication.factor=1\n"
        # Kafka removes deleted topics at once, as we do: so no broker keeps page cache of an earlier round.
        "group.initial.rebalance.delay.ms=0\nlog.segment.delete.delay.ms=0\n"
        + (KAFKA_TIER.format(directory=directory) if tiered else "")
    )
    storage = [*java_command(), "kafka.tools.StorageTool"]
    made = subprocess.run(
        [*storage, "random-uuid"], capture_output=True, text=True, check=True, timeout=60
    )
    cluster = made.stdout.split()[-1]
    formatted = [*storage, "format", "-t", cluster, "-c", str(properties), "--standalone"]
    subprocess.run(formatted, capture_output=True, check=True, timeout=60)


def accepts(port: int) -> bool:
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(
                f"{log}: the broker did not start. The log ends: {log.read_text()[-2000:]}"
            )
        time.sleep(0.01)


def rdkafka_performance() -> Path:
    """Return librdkafka's load generator, built once into the cache from the sources inside an npm package.

    It needs OpenSSL's headers (Debian: libssl-dev).
    """
    with fetching(f"rdkafka-ssl-{RDKAFKA.rpartition('@')[2]}") as target:
        built = target / "examples" / "rdkafka_performance"
        if not built.exists():
            target.mkdir(parents=True, exist_ok=True)
            packed = subprocess.run(
                ["npm", "pack", "--silent", RDKAFKA],
                cwd=target,
                capture_output=True,
                text=True,
                check=True,
            )
            with tarfile.open(target / packed.stdout.split()[-1]) as archive:
                for member in archive.getmembers():
                    if member.name.startswith("package/deps/librdkafka/"):
                        member.name = member.name.removeprefix("package/deps/librdkafka/")
                        archive.extract(member, target, filter="tar")
            for step in (
                ["./configure", "--disable-sasl", "--enable-ssl"],
                ["make", "-j2", "-C", "src", "librdkafka.a"],
                ["make", "-C", "examples", "rdkafka_performance"],
            ):
                subprocess.run(
                    step, cwd=target, capture_output=True, check=True, env={**os.environ}
                )
        return built
