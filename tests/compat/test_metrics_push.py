"""`strata metrics push` into a real InfluxDB 1: it holds what the monitor shows, by lines and by JSON."""

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from tests.compat.influxdb import InfluxDb, Series
from tests.integration.monitor_scrape import Scrape
from tests.integration.server_process import STRATA, Server, strata
from tests.integration.waiting import wait_for

WAIT_S = 60
pytestmark = [pytest.mark.big, pytest.mark.timeout(1500)]  # InfluxDB is built once


@pytest.fixture
def monitor(tmp_path: Path) -> Iterator[int]:
    settings = (
        "monitor.listener=127.0.0.1:0",
        "num.partitions=20",
        "auto.create.topics.enable=true",
    )
    with Server(tmp_path, settings) as server:
        producer = Producer({"bootstrap.servers": server.address, "log_level": 0})
        for topic in ("counted", "Other.Topic_2"):
            for number in range(700):
                producer.produce(topic, b"x" * 100, str(number))
        assert producer.flush(WAIT_S) == 0
        yield json.loads((tmp_path / "ready.json").read_text())["monitor_port"]


def scraped(port: int) -> dict[Series, float]:
    """The samples of a scrape as their series are named in OpenTSDB."""
    found: dict[Series, float] = {}
    for line in Scrape(port).text.splitlines():
        series, _, value = line.rpartition(" ")
        if line.startswith("#") or not value[-1].isdigit():
            continue
        name, _, labels = series.partition("{")
        tags = {
            (label, re.sub(r"[^\w./-]", "_", text))
            for label, text in re.findall(r'(\w+)="([^"]*)"', labels)
            if text
        }
        key = name, frozenset(tags | {("instance", f"127.0.0.1_{port}"), ("site", "here")})
        found[key] = float(value)
    return found


@pytest.mark.parametrize("scheme", ["opentsdb", "http"])
def test_influxdb_holds_what_was_scraped(monitor: int, tmp_path: Path, scheme: str) -> None:
    with InfluxDb(tmp_path) as influx:
        words = (f"{scheme}://127.0.0.1:{influx.port}", "--monitor", f"127.0.0.1:{monitor}")
        before = scraped(monitor)
        done = strata("metrics", "push", *words, "--tag", "site=here", "--once")
        assert done.returncode == 0, done.stderr
        after = scraped(monitor)
        still = {series: value for series, value in before.items() if after.get(series) == value}
        assert len(still) > 200, "nearly all samples are the same before and after"
        wait_for(lambda: influx.points().keys() >= before.keys(), "every series in InfluxDB")
        held = influx.points()
    assert {series: held[series] for series in still} == {s: [v] for s, v in still.items()}
    total = sum(map(len, held.values()))
    assert done.stderr.startswith(f"{total} point(s) sent, 0 refused, 0 dropped"), done.stderr


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    finally:
        process.kill()


@pytest.mark.parametrize("scheme", ["opentsdb", "http"])
def test_points_wait_for_a_receiver_that_is_away(monitor: int, tmp_path: Path, scheme: str) -> None:
    first = InfluxDb(tmp_path)
    words = (f"{scheme}://127.0.0.1:{first.port}", "--monitor", f"127.0.0.1:{monitor}")
    command = [*STRATA, "metrics", "push", *words, "--every", "1s"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as pushing, ended(pushing):
        assert pushing.stderr is not None
        assert "points wait" in pushing.stderr.readline()
        with first:
            wait_for(lambda: first.points("stratalog_ready"), "points")
        assert "points wait" in "".join(pushing.stderr.readline() for _ in range(2))
        with InfluxDb(tmp_path, first.ports) as second:
            assert "answers again" in pushing.stderr.readline()
            pushing.send_signal(signal.SIGTERM)
            said = pushing.stderr.read()
            sent = int(said.split()[0])

            def arrived() -> bool:
                count = sum(map(len, second.points().values()))
                # Lines have no answer that they are on disk: those of a server's last moments are lost with it.
                return count == sent if scheme == "http" else 0 < count <= sent

            wait_for(arrived, f"{sent} points")
            rounds = len(next(iter(second.points("stratalog_ready").values())))
            own = second.points("stratalog_push_points_dropped_total")
    assert "0 refused, 0 dropped, 0 not sent" in said
    assert own
    assert rounds
    if scheme == "http":
        assert [len(values) for values in own.values()] == [rounds], "its own counts, every round"
