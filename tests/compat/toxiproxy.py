"""A proxy that slows, cuts and swallows connections: toxiproxy, built once by `go install`.

In: ports to pass on to. Out: for each a port to connect to instead, and toxics to add and remove. Its process ends with
the `with` block.
"""

import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.compat.tools import go_program

from stratalog.adapters.free_ports import free_ports

TOXIPROXY = "github.com/Shopify/toxiproxy/v2/cmd/server@v2.5.0"
START_TIMEOUT_S = 30


@dataclass
class Proxy:
    """One proxied port. Toxics work on answers (`downstream`), `timeout` on both ways."""

    admin_port: int
    port: int
    name: str = "it"

    def ask(self, method: str, path: str, body: object = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.admin_port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read() or b"null")

    @contextmanager
    def toxic(self, kind: str, stream: str = "downstream", **attributes: int) -> Iterator[None]:
        """Apply a toxic during the block: latency, bandwidth, slow_close, timeout, reset_peer, limit_data."""
        body = {"type": kind, "stream": stream, "attributes": attributes}
        name = f"{kind}_{stream}"
        self.ask("POST", f"/proxies/{self.name}/toxics", {"name": name, **body})
        try:
            yield
        finally:
            self.ask("DELETE", f"/proxies/{self.name}/toxics/{name}")


@contextmanager
def toxiproxy(target_port: int, place: Path) -> Iterator[Proxy]:
    """Run a proxy in front of a port of 127.0.0.1; skip the test if toxiproxy is not available."""
    with toxiproxies({"it": (free_ports(1)[0], target_port)}, place) as proxies:
        yield proxies["it"]


@contextmanager
def toxiproxies(ports: Mapping[str, tuple[int, int]], place: Path) -> Iterator[dict[str, Proxy]]:
    """Run proxies by name, each from its first port to its second one; skip the test if toxiproxy is not available."""
    program = go_program("toxiproxy", TOXIPROXY)
    (admin_port,) = free_ports(1)
    with (place / "toxiproxy.log").open("ab") as output:
        process = subprocess.Popen(
            [str(program), "-host", "127.0.0.1", "-port", str(admin_port)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        proxies = {name: Proxy(admin_port, port, name) for name, (port, _) in ports.items()}
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                next(iter(proxies.values())).ask("GET", "/proxies")
                break
            except (OSError, ValueError):
                assert process.poll() is None, output.name
                assert time.monotonic() < deadline, output.name
                time.sleep(0.05)
        for name, (port, target) in ports.items():
            listen, upstream = f"127.0.0.1:{port}", f"127.0.0.1:{target}"
            proxies[name].ask(
                "POST", "/proxies", {"name": name, "listen": listen, "upstream": upstream}
            )
        yield proxies
    finally:
        process.kill()
        process.wait(30)
