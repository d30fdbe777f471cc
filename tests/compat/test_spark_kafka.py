"""Spark's own Kafka connector as a foreign client, and a job that moves from it to our source by its format alone.

`./test --all tests/compat/test_spark_kafka.py` runs it: the connector's jars come from Maven.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.spark_read import connector_jars
from tests.broker_process import BrokerProcess, broker_process
from tests.integration.test_spark_broker import Driver, produce, whole

pytestmark = [pytest.mark.big, pytest.mark.timeout(600), pytest.mark.xdist_group("spark")]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYSPARK_SUBMIT_ARGS", f"--jars {connector_jars()} pyspark-shell")
        started = Driver(tmp_path_factory.mktemp("driver"))
    yield started
    started.kill()


def options(broker: BrokerProcess, topic: str, **more: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": broker.address,
        "subscribe": topic,
        "startingOffsets": "earliest",
        **more,
    }


def read_through(
    driver: Driver, source: str, broker: BrokerProcess, place: Path, **more: str
) -> dict[str, Any]:
    """A stream of all that is there now, by either source, on one checkpoint and into one sink."""
    asked = driver.ask(
        "stream",
        source=source,
        options=options(broker, "moved", **more),
        checkpoint=str(place / "checkpoint"),
        sink=str(place / "sink"),
        wait=True,
    )
    assert isinstance(asked, dict)
    return asked


def test_spark_s_connector_reads_from_us(tmp_path: Path, driver: Driver) -> None:
    with broker_process(tmp_path) as broker:
        produce(broker, "read", 0, 3000, partitions=2)
        found = driver.ask("batch", source="kafka", options=options(broker, "read"))
        for partition in (0, 1):
            whole(found, partition, 0, 3000)


def test_a_stream_goes_on_from_the_connector_s_checkpoint(tmp_path: Path, driver: Driver) -> None:
    with broker_process(tmp_path) as broker:
        produce(broker, "moved", 0, 2000, partitions=2)
        read_through(driver, "kafka", broker, tmp_path)
        kept = (tmp_path / "checkpoint/offsets/0").read_text().splitlines()[-1]
        assert json.loads(kept) == {"moved": {"0": 2000, "1": 2000}}
        produce(broker, "moved", 2000, 3000, partitions=2)
        read_through(driver, "stratalog", broker, tmp_path, groupIdPrefix="job")
        produce(broker, "moved", 3000, 3500, partitions=2)
        read_through(driver, "stratalog", broker, tmp_path)
        found = driver.ask("read_back", sink=str(tmp_path / "sink"))
        for partition in (0, 1):
            whole(found, partition, 0, 3500)
