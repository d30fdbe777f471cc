"""Grafana's dashboards against a real Prometheus that scrapes a loaded broker: no query is refused, and none is empty.

Grafana itself is not run: the files are checked as JSON, their queries by the server that answers them.
"""

import json
import re
import subprocess
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from confluent_kafka import Consumer, Producer
from tests.compat.test_prometheus import program
from tests.integration.console_process import console_process
from tests.integration.server_process import Server, strata
from tests.integration.waiting import wait_for

from stratalog.adapters.free_ports import free_ports
from stratalog.monitor.dashboards import DASHBOARDS, dashboard_json, queries_of
from stratalog.monitor.metrics import METRICS, QUERIES

WAIT_S = 120


class Prometheus:
    """A server that scrapes one monitor and one console every second."""

    def __init__(self, place: Path, monitor: int, console: int) -> None:
        (self.port,) = free_ports(1)
        config = place / "prometheus.yml"
        config.write_text(
            "scrape_configs: [{job_name: stratalog, scrape_interval: 1s, "
            f"static_configs: [{{targets: ['127.0.0.1:{monitor}']}}]}}, "
            "{job_name: queries, scrape_interval: 1s, metrics_path: /pipelines.prom, "
            f"static_configs: [{{targets: ['127.0.0.1:{console}']}}]}}]"
        )
        self.output = place / "output"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    program("prometheus"),
                    f"--config.file={config}",
                    f"--storage.tsdb.path={place / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                ],
                stdout=output,
                stderr=output,
                cwd=place,
            )

    def ask(self, query: str) -> list[dict[str, Any]]:
        """Return the series of a query now; none while the server starts."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            connection.request("GET", f"/api/v1/query?{urlencode({'query': query})}")
            answer = connection.getresponse()
            found = json.loads(answer.read())
        except OSError:
            assert self.process.poll() is None, self.output.read_text()
            return []
        finally:
            connection.close()
        assert found["status"] == "success", f"{query}: {found}"
        return list(found["data"]["result"])


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    place = tmp_path_factory.mktemp("dashboards")
    settings = (
        "monitor.listener=127.0.0.1:0",
        f"tier.url={(place / 'bucket').as_uri()}",
        "log.segment.bytes=1048576",
        "remote.log.storage.system.enable=true",
        "offsets.topic.num.partitions=1",
        "group.initial.rebalance.delay.ms=0",
    )
    with (
        Server(place, settings) as server,
        console_process(place / "console", server.address) as console,
    ):
        words = ("topic", "create", "loaded", "-c", "remote.storage.enable=true")
        assert strata(*words, "-b", server.address).returncode == 0
        monitor = json.loads((place / "ready.json").read_text())["monitor_port"]
        scraping = Prometheus(place, monitor, console.port)
        try:
            load(server.address)
            yield scraping
        finally:
            scraping.process.kill()
            scraping.process.wait(WAIT_S)


def load(address: str) -> None:
    """Fill three segments, read them as a group that commits, and report a query as Spark's listener does."""
    producer = Producer({"bootstrap.servers": address, "log_level": 0})
    for number in range(3_500):
        producer.produce("loaded", b"x" * 1000, str(number))
        producer.poll(0)
    progress = {
        "sources": [{"description": "loaded", "endOffset": json.dumps({"loaded": {"0": 3_000}})}],
        "inputRowsPerSecond": 12.5,
        "processedRowsPerSecond": 25.0,
        "batchDuration": 40,
    }
    record = {"event": "progress", "query": "q", "name": 'a "name"\n', "progress": progress}
    producer.produce("stratalog-progress", key="q", value=json.dumps(record))
    assert producer.flush(WAIT_S) == 0
    settings = {"bootstrap.servers": address, "group.id": "readers"}
    consumer = Consumer(settings | {"auto.offset.reset": "earliest"})
    consumer.subscribe(["loaded"])
    try:
        read = 0
        while read < 1_000:
            found = consumer.consume(500, 30)
            assert found
            read += len(found)
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()


def filled(query: str) -> str:
    """Return a query as Grafana sends it, with every value of each variable."""
    return re.sub(r"\$(job|instance|topic|group|query)", ".*", query).replace(
        "$__rate_interval", "30s"
    )


def test_no_query_of_a_dashboard_is_empty(prometheus: Prometheus) -> None:
    queries = {
        target["expr"]: (one.title, panel["title"])
        for one in DASHBOARDS
        for panel in dashboard_json(one)["panels"]
        if panel["type"] != "row"
        for target in panel["targets"]
    }
    deadline = time.monotonic() + WAIT_S
    while empty := [query for query in queries if not prometheus.ask(filled(query))]:
        assert time.monotonic() < deadline, [(queries[query], query) for query in empty]
        time.sleep(1)


def test_the_zero_of_a_metric_without_series_goes_with_its_first_series(
    prometheus: Prometheus,
) -> None:
    queries = {
        query
        for one in DASHBOARDS
        for _, metric, may_lack in one.metrics()
        if may_lack
        for query, _ in queries_of(metric, may_lack=True)
    }
    assert queries
    assert {query.rpartition(" or ")[2] for query in queries} == {"on() vector(0)"}
    wait_for(lambda: prometheus.ask("stratalog_ready"), "a scrape")
    (ready,) = prometheus.ask("stratalog_ready or on() vector(0)")
    assert ready["metric"]["__name__"] == "stratalog_ready"
    (zero,) = prometheus.ask("stratalog_absent or on() vector(0)")
    assert zero["metric"] == {}


def test_the_lag_of_a_query_is_in_records_and_in_time(prometheus: Prometheus) -> None:
    wait_for(lambda: prometheus.ask("stratalog_query_running"), "a scrape of the console")
    (lag,) = prometheus.ask("stratalog_query_lag_records")
    assert (lag["metric"]["name"], float(lag["value"][1])) == ('a "name"\n', 500)
    (age,) = prometheus.ask("stratalog_query_lag_seconds")
    assert 0 < float(age["value"][1]) < 2 * WAIT_S


def test_each_metric_has_a_panel() -> None:
    shown = [metric.name for one in DASHBOARDS for _, metric, _ in one.metrics()]
    assert sorted(shown) == sorted({metric.name for metric in (*METRICS, *QUERIES)}), "once each"


def test_the_command_writes_files_that_grafana_can_import(tmp_path: Path) -> None:
    done = strata("metrics", "dashboards", str(tmp_path / "new" / "place"), "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert len(rows) == len(DASHBOARDS)
    for row in rows:
        found = json.loads(Path(row["file"]).read_text())
        assert found["schemaVersion"] == 39
        ids = [panel["id"] for panel in found["panels"]]
        assert len(set(ids)) == len(ids)
        taken: set[tuple[int, int]] = set()
        for panel in found["panels"]:
            place = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert place["x"] + place["w"] <= 24
            assert not cells & taken, panel["title"]
            taken |= cells
            for target in panel.get("targets", ()):
                assert target["datasource"]["uid"] == "${datasource}"
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = strata("metrics", "dashboards", str(blocked))
    assert (done.returncode, str(blocked) in done.stderr) == (2, True), done.stderr


def test_the_rules_are_printed() -> None:
    done = strata("metrics", "rules")
    assert done.returncode == 0
    assert done.stdout.startswith("groups:\n")
