"""Spark's own Kafka connector as a foreign client, a job that moves from it to our source by its format alone, and our
source reading Apache Kafka itself, which has no tier of ours.

`./test --all tests/compat/test_spark_kafka.py` runs it: the connector's jars come from Maven.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from bench.spark_read import connector_jars
from tests.broker_process import BrokerProcess, broker_process
from tests.compat.apache_kafka import apache_kafka
from tests.integration.test_spark_broker import Driver, Serves, delete, produce, whole

pytestmark = [pytest.mark.big, pytest.mark.timeout(600), pytest.mark.xdist_group("spark")]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYSPARK_SUBMIT_ARGS", f"--jars {connector_jars()} pyspark-shell")
        started = Driver(tmp_path_factory.mktemp("driver"))
    yield started
    started.kill()


def options(broker: Serves, topic: str, **more: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": broker.address,
        "subscribe": topic,
        "startingOffsets": "earliest",
        **more,
    }


def read_through(
    driver: Driver, source: str, broker: BrokerProcess, place: Path, **more: str
) -> dict[str, Any]:
    """Run a stream of all present records, by either source, with one checkpoint and one sink."""
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


@dataclass(frozen=True)
class Peer:
    """A node of Apache Kafka."""

    address: str


def test_sparks_connector_reads_from_our_broker(tmp_path: Path, driver: Driver) -> None:
    with broker_process(tmp_path) as broker:
        produce(broker, "read", 0, 3000, partitions=2)
        found = driver.ask("batch", source="kafka", options=options(broker, "read"))
        for partition in (0, 1):
            whole(found, partition, 0, 3000)


def test_a_stream_continues_from_the_connectors_checkpoint(tmp_path: Path, driver: Driver) -> None:
    with broker_process(tmp_path) as broker:
        produce(broker, "moved", 0, 2000, partitions=2)
        read_through(driver, "kafka", broker, tmp_path)
        kept = (tmp_path / "checkpoint/offsets/0").read_text().splitlines()[-1]
        assert json.loads(kept) == {"moved": {"0": 2000, "1": 2000}}
        produce(broker, "moved", 2000, 3000, partitions=2)
        read_through(driver, "stratalog", broker, tmp_path)
        produce(broker, "moved", 3000, 3500, partitions=2)
        read_through(driver, "stratalog", broker, tmp_path)
        found = driver.ask("read_back", sink=str(tmp_path / "sink"))
        for partition in (0, 1):
            whole(found, partition, 0, 3500)


def test_apache_kafka_is_read_without_a_tier(tmp_path: Path, driver: Driver) -> None:
    """Batch, stream and sink; the same rows as Spark's own connector gives; a topic created again is another one."""
    place = {"checkpoint": str(tmp_path / "checkpoint"), "sink": str(tmp_path / "sink")}
    with apache_kafka(tmp_path) as address:
        peer = Peer(address)
        produce(peer, "plain", 0, 3000, partitions=2, configs={})
        ours = driver.ask("batch", options=options(peer, "plain", includeOrigin="true"))
        for partition in (0, 1):
            whole(ours, partition, 0, 3000)
        assert {part.pop("origin") for part in ours} == {"broker"}
        theirs = driver.ask("batch", source="kafka", options=options(peer, "plain"))
        assert {part.pop("origin") for part in theirs} == {"kafka"}
        assert ours == theirs
        limited = options(peer, "plain", maxOffsetsPerTrigger="2500")
        driver.ask("stream", options=limited, **place, wait=True)
        produce(peer, "plain", 3000, 3500, partitions=2)
        driver.ask("stream", options=limited, **place, wait=True)
        found = driver.ask("read_back", sink=place["sink"])
        for partition in (0, 1):
            whole(found, partition, 0, 3500)
        produce(peer, "copied", 0, 0, partitions=2, configs={})
        target = {"kafka.bootstrap.servers": address, "topic": "copied"}
        driver.ask("copy", options=options(peer, "plain"), sink=target, checkpoint=None)
        copied = driver.ask("batch", options=options(peer, "copied"))
        assert [part["records"] for part in copied] == [3500, 3500]
        delete(peer, "plain")
        produce(peer, "plain", 0, 50, partitions=2, configs={})
        error = driver.asked("stream", options=limited, **place, wait=True)["error"]
        assert "topic plain was deleted and created again" in error
