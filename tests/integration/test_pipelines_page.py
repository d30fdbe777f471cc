"""The console's page of pipelines, with real queries of Spark that report to a broker's topic."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.broker_process import BrokerProcess, broker_process
from tests.integration.console_process import Console, console_process
from tests.integration.test_spark_broker import Driver

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("spark")]
WAIT_S = 240  # a query starts within seconds unless the machine is loaded


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path / "broker") as started:
        yield started


@pytest.fixture
def console(broker: BrokerProcess) -> Iterator[Console]:
    with console_process(broker.directory / "console", broker.address) as started:
        yield started


def produce(broker: BrokerProcess, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.address})
    for number in range(count):
        producer.produce(topic, value=b"%d" % number)
    assert producer.flush(WAIT_S) == 0


def query_when(
    console: Console, name: str, is_so: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    deadline = time.monotonic() + WAIT_S
    while True:
        found = {one["name"]: one for one in console.json("/pipelines.json")["queries"]}
        if name in found and is_so(found[name]):
            return found[name]
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def test_without_a_query_the_page_says_how_one_reports(console: Console) -> None:
    assert console.json("/pipelines.json") == {
        "topic": "stratalog-progress",
        "exists": False,
        "queries": [],
    }
    assert "ProgressListener" in console.get("/pipelines").text


def test_queries_show_their_rows_their_lag_and_their_last_error(
    broker: BrokerProcess, console: Console, tmp_path: Path
) -> None:
    produce(broker, "events", 7)
    options = {
        "kafka.bootstrap.servers": broker.address,
        "subscribe": "events",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "2",
    }
    driver = Driver(tmp_path / "driver")
    try:
        driver.ask("reported", options=options, checkpoint=str(tmp_path / "broken"), fails=True)
        broken = query_when(console, "broken", lambda one: one["state"] == "failed")
        assert "a broken <row>" in broken["error"]
        driver.ask("reported", options=options, checkpoint=str(tmp_path / "count"), fails=False)
        counted = query_when(console, "count", lambda one: one["batch"] == 3 and one["lag"] == 0)
    finally:
        driver.kill()
    assert counted["state"] == "running"
    assert counted["rows_in"] in {0, 1}  # the last batch, or idle since
    assert counted["rows_done_per_second"] is not None
    assert [one["topics"] for one in counted["sources"]] == [["events"]]
    assert len(counted["chart"]["lines"][0]["points"]) >= 4
    produce(broker, "events", 5)
    behind = query_when(console, "count", lambda one: one["lag"] == 5)
    assert behind["sources"][0]["lag"] == 5
    assert 0 < behind["lag_seconds"] < WAIT_S
    assert counted["lag_seconds"] == 0
    lines = console.get("/pipelines.prom").text.splitlines()
    of_count = [line for line in lines if 'name="count"' in line]
    assert f'stratalog_query_lag_records{{query="{behind["id"]}",name="count"}} 5' in of_count
    assert len(of_count) == 6
    page = console.get("/pipelines").text
    assert "a broken &lt;row&gt;" in page
    assert "a broken <row>" not in page
    assert "5 records behind the log" in page


def test_a_record_that_is_none_of_progress_is_left_out(
    broker: BrokerProcess, console: Console
) -> None:
    producer = Producer({"bootstrap.servers": broker.address})
    for value in (b"\xff", b"[]", b"{}", b'{"event": 1}', None):
        producer.produce("stratalog-progress", key=b"foreign", value=value)
    odd = b'{"event":"progress","query":"odd","progress":'
    odd += b'{"sources":[1,{"endOffset":"{"}],"sink":2,"timestamp":3,"batchId":1e999}}'
    producer.produce("stratalog-progress", key=b"odd", value=odd)
    assert producer.flush(WAIT_S) == 0
    found = {one["id"]: one for one in console.json("/pipelines.json")["queries"]}
    assert "" not in found
    assert found["odd"]["lag"] is None
    assert console.get("/pipelines").status == 200
