"""A Cassandra of one node on this machine, for `./run --sink cassandra` and for tests: the real one, from Maven.

In: a directory for its files, a port. Out: its CQL address, once it answers. It never outlives the `with` block, and
keeps nothing outside its directory. The jars are fetched once, into the cache.

No user and no TLS, and therefore 127.0.0.1 alone. A write is acknowledged once the commit log is on disk
(`commitlog_sync: group`): Cassandra's default acknowledges before, and a single node that is killed then forgets what
others would remember for it.
"""

import json
import os
import socket  # noqa: TID251 - a free port for another project's server
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fetched import jars

from sinks.java_server import java_server
from stratalog.errors import UserError

VERSION = "5.0.8"
ARTIFACT = f"org.apache.cassandra:cassandra-all:{VERSION}"
DAEMON = "org.apache.cassandra.service.CassandraDaemon"
START_S = 240.0
HEAP = "512m"

EXPORTED = (
    "java.base/jdk.internal.misc java.management/com.sun.jmx.remote.security java.rmi/sun.rmi.registry "
    "java.rmi/sun.rmi.server java.sql/java.sql jdk.unsupported/sun.misc java.base/sun.nio.ch "
    "jdk.compiler/com.sun.tools.javac.file"
).split()
OPENED = (
    "java.base/java.io java.base/java.lang java.base/java.lang.module java.base/java.lang.reflect java.base/java.nio "
    "java.base/java.util java.base/java.util.concurrent java.base/java.util.concurrent.atomic "
    "java.base/jdk.internal.loader java.base/jdk.internal.math java.base/jdk.internal.module "
    "java.base/jdk.internal.ref java.base/jdk.internal.reflect java.base/jdk.internal.util.jar java.base/sun.nio.ch "
    "jdk.management/com.sun.management.internal"
).split()

LOGBACK = """\
<configuration>
  <appender name="all" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %-5level %logger{0}: %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="all"/></root>
</configuration>
"""


@dataclass(frozen=True, slots=True)
class RunningCassandra:
    """A server that answers CQL at `address` (127.0.0.1:port); `log` is its log file."""

    process: "subprocess.Popen[bytes]"
    address: str
    log: Path

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])


@contextmanager
def running_cassandra(
    root: Path, settings: Mapping[str, object] | None = None, *, port: int | None = None
) -> Iterator[RunningCassandra]:
    """Start a server on the data under `root`, which takes about 15 s; end it with the block, also after an error.

    `settings`: further ones of cassandra.yaml. `port`: the port to listen on again. Raises UserError if Cassandra
    cannot be fetched or does not start.
    """
    lib = jars(f"cassandra-{VERSION}", (ARTIFACT,))
    root.mkdir(parents=True, exist_ok=True)
    port = port or _free_port()
    options = _write_configuration(root.resolve(), port, settings or {})
    modules = [word for name in EXPORTED for word in ("--add-exports", f"{name}=ALL-UNNAMED")]
    modules += [word for name in OPENED for word in ("--add-opens", f"{name}=ALL-UNNAMED")]
    words = [f"-Xms{HEAP}", f"-Xmx{HEAP}", *options, *modules, "-cp", f"{lib}{os.sep}*", DAEMON]
    log = root / "cassandra.log"
    with java_server(words, directory=root, log=log) as process:
        _wait(process, port, log)
        yield RunningCassandra(process, f"127.0.0.1:{port}", log)


def _write_configuration(root: Path, port: int, settings: Mapping[str, object]) -> list[str]:
    """Write its files in `root`; return Java's arguments. JSON is YAML."""
    configuration = {
        "cluster_name": "stratalog",
        "num_tokens": 1,
        "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
        "endpoint_snitch": "SimpleSnitch",
        "seed_provider": [
            {
                "class_name": "org.apache.cassandra.locator.SimpleSeedProvider",
                "parameters": [{"seeds": "127.0.0.1"}],
            }
        ],
        "listen_address": "127.0.0.1",
        "rpc_address": "127.0.0.1",
        "storage_port": _free_port(),
        "native_transport_port": port,
        "start_native_transport": True,
        "auto_bootstrap": False,
        "commitlog_sync": "group",
        "commitlog_sync_group_window": "5ms",
        "commitlog_directory": str(root / "commitlog"),
        "data_file_directories": [str(root / "data")],
        "saved_caches_directory": str(root / "saved_caches"),
        "hints_directory": str(root / "hints"),
        "cdc_raw_directory": str(root / "cdc"),
        # It shares the machine, so its memory is limited.
        "memtable_heap_space": "64MiB",
        "memtable_offheap_space": "64MiB",
        "key_cache_size": "8MiB",
        "file_cache_size": "32MiB",
        "concurrent_reads": 8,
        "concurrent_writes": 8,
        "auto_snapshot": False,
        **settings,
    }
    (root / "cassandra.yaml").write_text(json.dumps(configuration, indent=2), encoding="utf-8")
    (root / "logback.xml").write_text(LOGBACK, encoding="utf-8")
    properties = {
        "cassandra.config": (root / "cassandra.yaml").as_uri(),
        "cassandra.storagedir": root,
        "logback.configurationFile": root / "logback.xml",
        "java.io.tmpdir": _made(root / "tmp"),
        "cassandra.ring_delay_ms": 0,
        "cassandra.skip_wait_for_gossip_to_settle": 0,
        "cassandra.superuser_setup_delay_ms": 0,
    }
    settings = [f"-D{name}={value}" for name, value in properties.items()]
    # Its threads are many, the machine's cores are not.
    return [
        "-XX:+UseSerialGC",
        "-Xss512k",
        "-Djdk.attach.allowAttachSelf=true",
        "-Djava.net.preferIPv4Stack=true",
        *settings,
    ]


def _made(directory: Path) -> Path:
    directory.mkdir(exist_ok=True)
    return directory


def _free_port() -> int:
    with closing(socket.socket()) as asked:
        asked.bind(("127.0.0.1", 0))
        port: int = asked.getsockname()[1]
        return port


def _wait(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    """Wait until CQL's port is open, the last step of Cassandra's start."""
    deadline = time.monotonic() + START_S  # noqa: TID251 - a process is waited for
    while time.monotonic() < deadline:  # noqa: TID251 - as above
        if process.poll() is not None:
            raise UserError(f"Cassandra did not start: {_last_error(log)} (log: {log})")
        with suppress(OSError), closing(socket.create_connection(("127.0.0.1", port), timeout=1)):
            return
        time.sleep(0.1)  # noqa: TID251 - as above
    raise UserError(f"Cassandra was not ready in {START_S:g} s (log: {log})")


def _last_error(log: Path) -> str:
    said = log.read_text(encoding="utf-8", errors="replace").splitlines()
    telling = [line for line in said if "ERROR" in line or "Exception" in line]
    return (telling or said or ["it said nothing"])[-1].strip()
