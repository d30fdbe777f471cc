"""A standalone Spark cluster and its Connect server, for tests: JVMs from the installed pyspark.

In: a directory, an environment for each kind of process. Out: addresses of the servers, which end when the block ends.
Each server listens on 127.0.0.1, on a free port that its log names.
"""

import os
import re
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from site import getsitepackages

import pyspark
from tests.spark_scratch import scratch

SPARK_HOME = Path(pyspark.__file__).parent
START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 30
QUIET = """
rootLogger.level = info
rootLogger.appenderRef.stdout.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


def environment(path: Path | None = None, **more: str) -> dict[str, str]:
    """Return this process's environment without the variables that lead to our packages; `path` comes first in PATH."""
    hidden = {"CLASSPATH", "PYTHONPATH", "VIRTUAL_ENV", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"}
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    if path is not None:
        kept["PATH"] = f"{path}{os.pathsep}{kept['PATH']}"
    return {**kept, "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1", **more}


def bare_python(place: Path) -> Path:
    """Make an interpreter without our packages; return the directory of its `python3`."""
    venv.create(place, with_pip=False, symlinks=True)
    found = subprocess.run(
        [place / "bin/python3", "-c", "import stratalog"],
        env=environment(),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert b"ModuleNotFoundError" in found.stderr, found
    return place / "bin"


def driver_python(place: Path) -> Path:
    """Make an interpreter with all packages of this one, without a variable that Spark would pass to executors."""
    venv.create(place, with_pip=False, symlinks=True)
    (library,) = place.glob("lib/python3*/site-packages")
    (library / "all.pth").write_text("\n".join([*getsitepackages(), *sys.path[1:]]))
    return place / "bin"


@dataclass
class Daemon:
    """One of Spark's JVMs and its log."""

    process: "subprocess.Popen[bytes]"
    log: Path

    def said(self, pattern: str) -> str:
        """Return the first group of the first line that matches. Raises AssertionError if no line does in time."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            text = self.log.read_text()
            found = re.search(pattern, text)
            if found is not None:
                return found[1]
            assert self.process.poll() is None, text[-3000:]
            assert time.monotonic() < deadline, text[-3000:]
            time.sleep(0.1)


@contextmanager
def daemon(
    place: Path, name: str, words: list[str], variables: Mapping[str, str]
) -> Iterator[Daemon]:
    """Run one of Spark's classes: `spark-class WORDS`, or `spark-submit WORDS` if they begin with `--`."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "conf").mkdir(exist_ok=True)
    (place / "conf/log4j2.properties").write_text(QUIET)
    submitted = words[0].startswith("--")
    program, memory = ("spark-submit", "512m") if submitted else ("spark-class", "192m")
    log = place / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(SPARK_HOME / "bin" / program), *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=place,
            env={
                **variables,
                **scratch(place),
                "SPARK_CONF_DIR": str(place / "conf"),
                "SPARK_DAEMON_MEMORY": memory,
            },
        )
    try:
        yield Daemon(process, log)
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_TIMEOUT_S)


@dataclass(frozen=True)
class Cluster:
    """`url` for `spark.master`; `web` is the master's page."""

    url: str
    web: str


@contextmanager
def standalone(
    place: Path, workers: int, variables: Mapping[str, str], hosts: Sequence[str] = ("127.0.0.1",)
) -> Iterator[Cluster]:
    """Run a master and workers of one core each, on the hosts in turn. `variables` is the environment of workers and
    executors.
    """
    with ExitStack() as stack:
        words = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0"]
        words += ["--webui-port", "0"]
        master = stack.enter_context(daemon(place, "master", words, environment()))
        url = master.said(r"Starting Spark master at (spark://\S+)")
        web = master.said(r"Bound MasterWebUI to \S+, and started at (http://\S+)")
        for number in range(workers):
            host = hosts[number % len(hosts)]
            words = ["org.apache.spark.deploy.worker.Worker", "--host", host, "--port", "0"]
            words += ["--webui-port", "0", "--cores", "1", "--memory", "700m"]
            words += ["--work-dir", str(place / f"work-{number}"), url]
            worker = stack.enter_context(daemon(place, f"worker-{number}", words, variables))
            worker.said(r"Successfully registered with master (\S+)")
        yield Cluster(url, web)


@contextmanager
def connect_server(
    place: Path, conf: Mapping[str, str], variables: Mapping[str, str]
) -> Iterator[str]:
    """Run Spark's Connect server; yield the address for `spark.remote`."""
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        **conf,
    }
    words = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    for name, value in settings.items():
        words += ["--conf", f"{name}={value}"]
    with daemon(place, "connect", [*words, "spark-internal"], variables) as server:
        port = server.said(r"Spark Connect server started at: 127\.0\.0\.1:(\d+)")
        yield f"sc://127.0.0.1:{port}"
