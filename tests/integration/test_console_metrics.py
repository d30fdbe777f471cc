"""Charts of the brokers' metrics: a console scrapes a real monitor, and says which monitor is away."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.broker_process import BrokerProcess, broker_process
from tests.integration.console_process import Console, console_process
from tests.integration.server_process import strata_process

WAIT_S = 60


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    place = tmp_path_factory.mktemp("metrics")
    with broker_process(place, monitor__listener="127.0.0.1:0") as started:
        yield started


def monitor(broker: BrokerProcess) -> str:
    found = json.loads((broker.directory / "ready.json").read_text())
    return f"127.0.0.1:{found['monitor_port']}"


def metrics_when(console: Console, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    deadline = time.monotonic() + WAIT_S
    while not is_so(found := console.json("/metrics.json")):
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    return dict(found)


def is_asked(monitor: dict[str, Any]) -> bool:
    return bool(monitor["error"]) or monitor["scraped_ms"] > 0


def test_a_monitor_becomes_charts_and_one_that_is_away_is_named(broker: BrokerProcess) -> None:
    away = "127.0.0.1:1"
    options = ("--monitor", monitor(broker), "--monitor", away)
    with console_process(broker.directory / "console", broker.address, *options) as console:
        found = metrics_when(console, lambda one: all(map(is_asked, one["monitors"])))
        charts = {one["title"]: one for one in found["charts"]}
        (line,) = charts["Memory"]["lines"]
        assert line["name"] == monitor(broker)
        assert line["last"] > 10 << 20
        assert charts["Partitions out of sync"]["lines"][0]["last"] == 0
        (first, second) = found["monitors"]
        assert second["error"] == f"http://{away}/metrics: Connection refused"
        assert "monitor.listener" in second["remedy"]
        assert first["remedy"] == ""
        text = console.get("/metrics").text
        assert text.count(away) == 1
        assert second["remedy"] in text
        assert text.count("<svg") == sum(bool(one["lines"]) for one in found["charts"])
        assert "Nothing was measured yet" in text  # a rate needs two scrapes


def test_a_page_that_is_no_monitor_is_named(broker: BrokerProcess) -> None:
    place = broker.directory / "second"
    with console_process(place, broker.address, "--monitor", monitor(broker)) as first:
        options = ("--monitor", f"127.0.0.1:{first.port}")
        with console_process(place / "console", broker.address, *options) as console:
            found = metrics_when(console, lambda one: one["monitors"][0]["error"] != "")
            assert "not with metrics" in found["monitors"][0]["error"]


@pytest.mark.parametrize("address", ["nowhere", "host:port"])
def test_an_address_that_is_none_is_refused(address: str, tmp_path: Path) -> None:
    done = strata_process("console", "-b", "127.0.0.1:1", "--monitor", address)
    assert done.returncode == 2
    assert "--monitor" in done.stderr
    assert len(done.stderr.splitlines()) == 1
