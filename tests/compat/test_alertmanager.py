"""The alert rules end to end: a broker that dies becomes a message of a real Alertmanager, and so does its return.

Method: Debian's Prometheus and Alertmanager with the shipped rules, whose waits (`for:`) are cut to a second. A healthy
broker sends nothing.
"""

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.request import urlopen

import pytest
from tests.broker_process import broker_process
from tests.compat.test_prometheus import RULES, program, promtool
from tests.compat.tools import debian_packages
from tests.integration.waiting import wait_for

from stratalog.adapters.free_ports import free_ports

TIMEOUT_S = 60
QUIET_S = 4.0
Message = tuple[str, str]


@contextmanager
def receiver() -> Iterator[tuple[int, list[Message]]]:
    """A webhook: its port, and the (status, alert) pairs that it was sent."""
    messages: list[Message] = []

    class Webhook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            messages.extend((one["status"], one["labels"]["alertname"]) for one in body["alerts"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Webhook)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port, messages
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def running(place: Path, *words: str) -> Iterator[None]:
    with (place / f"{Path(words[0]).name}.log").open("wb") as output:
        process = subprocess.Popen(words, stdout=output, stderr=output, cwd=place)
    try:
        yield
    finally:
        process.kill()
        process.wait(TIMEOUT_S)


def alertmanager() -> list[str]:
    """Its command. Debian's build reads a template below /usr/share, where the unpacked package is only for itself."""
    root = debian_packages("prometheus-alertmanager")
    command = (
        'mount --bind "$0/usr/share" /usr/share && exec "$0/usr/bin/prometheus-alertmanager" "$@"'
    )
    root_here = ["--map-root-user"] if os.geteuid() else []
    return ["unshare", "--mount", *root_here, "sh", "-c", command, str(root)]


@contextmanager
def alerting(place: Path, monitor: int, webhook: int) -> Iterator[int]:
    """Prometheus and Alertmanager that watch a monitor; yield Prometheus' port."""
    prometheus_port, alert_port = free_ports(2)
    (place / "stratalog.rules.yml").write_text(re.sub(r"for: \w+", "for: 1s", RULES.read_text()))
    (place / "prometheus.yml").write_text(
        f"""
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [stratalog.rules.yml]
alerting: {{alertmanagers: [{{static_configs: [{{targets: ["127.0.0.1:{alert_port}"]}}]}}]}}
scrape_configs:
  - job_name: stratalog
    static_configs: [{{targets: ["127.0.0.1:{monitor}"]}}]
"""
    )
    (place / "alertmanager.yml").write_text(
        f"""
route: {{receiver: hook, group_by: [alertname], group_wait: 1s, group_interval: 1s, repeat_interval: 1h}}
receivers: [{{name: hook, webhook_configs: [{{url: "http://127.0.0.1:{webhook}/"}}]}}]
"""
    )
    promtool("check", "config", str(place / "prometheus.yml"))
    watching = running(
        place,
        program("prometheus"),
        f"--config.file={place / 'prometheus.yml'}",
        f"--storage.tsdb.path={place / 'data'}",
        f"--web.listen-address=127.0.0.1:{prometheus_port}",
    )
    sending = running(
        place,
        *alertmanager(),
        f"--config.file={place / 'alertmanager.yml'}",
        f"--storage.path={place / 'alerts'}",
        f"--web.listen-address=127.0.0.1:{alert_port}",
        "--cluster.listen-address=",
    )
    with sending, watching:
        yield prometheus_port


def is_up(port: int) -> bool:
    """Whether Prometheus has scraped the monitor."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/api/v1/query?query=up", timeout=5) as answer:
            found = json.load(answer)["data"]["result"]
    except OSError:
        return False
    return bool(found) and found[0]["value"][1] == "1"


@pytest.mark.timeout(300)
def test_a_dead_broker_and_its_return_become_messages(tmp_path: Path) -> None:
    (monitor,) = free_ports(1)
    settings = {"monitor__listener": f"127.0.0.1:{monitor}"}
    with (
        receiver() as (webhook, messages),
        broker_process(tmp_path / "broker", **settings) as broker,
        alerting(tmp_path, monitor, webhook) as prometheus,
    ):
        wait_for(lambda: is_up(prometheus), "the first scrape")
        time.sleep(QUIET_S)
        assert messages == [], "a healthy broker"
        broker.kill()
        wait_for(lambda: ("firing", "StratalogNotReady") in messages, "the alert")
        broker.start()
        wait_for(lambda: ("resolved", "StratalogNotReady") in messages, "its end")
