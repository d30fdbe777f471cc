"""A real InfluxDB 1 with its OpenTSDB listener, built by Go once.

In: a place. Out: a running server, its port for OpenTSDB's protocols, its series. It listens on the loopback alone.
"""

import json
import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from unittest.mock import patch
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from tests.compat.tools import go_program
from tests.integration.waiting import wait_for

from stratalog.adapters.free_ports import free_ports

STOP_S = 30
LINES_S = 3
Series = tuple[str, frozenset[tuple[str, str]]]


def influxd() -> Path:
    """The program; its query language has a library that needs Influx' own pkg-config, and Cargo."""
    wrapper = go_program("pkg-config", "github.com/influxdata/pkg-config@v0.2.8")
    with patch.dict(os.environ, PKG_CONFIG=str(wrapper)):
        return go_program("influxd", "github.com/influxdata/influxdb/cmd/influxd@v1.8.10")


class InfluxDb:
    """`with InfluxDb(tmp_path) as influx:`. A second one at the same place has the same data and ports."""

    def __init__(self, place: Path, ports: tuple[int, int, int] | None = None) -> None:
        self._api, self.port, rpc = self.ports = ports or tuple(free_ports(3))
        self._config = place / "influxdb.conf"
        self._output = place / "influxd.log"
        self._config.write_text(
            f"""
reporting-disabled = true
bind-address = "127.0.0.1:{rpc}"
[meta]
  dir = "{place}/meta"
[data]
  dir = "{place}/data"
  wal-dir = "{place}/wal"
[http]
  bind-address = "127.0.0.1:{self._api}"
  flux-enabled = false
[[opentsdb]]
  enabled = true
  bind-address = "127.0.0.1:{self.port}"
  batch-timeout = "100ms"
"""
        )

    def __enter__(self) -> Self:
        words = [str(influxd()), "run", "-config", str(self._config)]
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(words, stdout=output, stderr=output)
        wait_for(self._answers, "InfluxDB")
        self._ask("CREATE DATABASE opentsdb")  # its listener does so for lines alone
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(LINES_S)
        except subprocess.TimeoutExpired:
            # It waits for open connections with lines, without an end.
            self._process.kill()
            self._process.wait(STOP_S)

    def points(self, name: str = "/.*/") -> dict[Series, list[float]]:
        """Every series of a measurement, with the values of its points, oldest first."""
        found = self._ask(f"SELECT value FROM {name} GROUP BY *")
        return {
            (one["name"], frozenset((k, v) for k, v in one["tags"].items() if v)): [
                row[1] for row in one["values"]
            ]
            for one in found.get("series", ())
        }

    def _ask(self, query: str) -> dict[str, Any]:
        words = urlencode({"db": "opentsdb", "q": query}).encode()
        url = f"http://127.0.0.1:{self._api}/query"
        with urlopen(url, data=words, timeout=STOP_S) as answer:
            return dict(json.load(answer)["results"][0])

    def _answers(self) -> bool:
        assert self._process.poll() is None, self._output.read_text()[-2000:]
        try:
            with urlopen(f"http://127.0.0.1:{self._api}/ping", timeout=STOP_S) as answer:
                return answer.status == 204
        except URLError:
            return False
