"""The source and sink through Spark Connect: the client has no JVM; the server plans and runs batches and streams."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.broker_process import BrokerProcess, broker_process
from tests.integration.spark_cluster import connect_server, environment
from tests.integration.spark_driver import CONF
from tests.integration.test_spark_broker import Driver, both, produce, wait_until_tiered, whole

pytestmark = [pytest.mark.big, pytest.mark.timeout(900), pytest.mark.xdist_group("spark")]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("connect")) as made:
        yield made


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    place = tmp_path_factory.mktemp("spark")
    with connect_server(place, CONF, environment(Path(sys.executable).parent)) as remote:
        made = Driver(place / "client", {"spark.remote": remote}, environment())
        yield made
        made.kill()


def test_a_topic_is_read_written_and_streamed(
    broker: BrokerProcess, client: Driver, tmp_path: Path
) -> None:
    produce(broker, "remote", 0, 3000, partitions=2)
    wait_until_tiered(broker, "remote", 1000)
    found = client.ask("batch", options=both(broker, "remote"))
    for partition in (0, 1):
        whole(found, partition, 0, 3000)
    assert {part["origin"] for part in found} == {"bucket", "broker"}
    options = both(broker, "remote", startingOffsets="earliest", maxOffsetsPerTrigger="2500")
    where = {"checkpoint": str(tmp_path / "checkpoint"), "sink": str(tmp_path / "sink")}
    ended = client.ask("stream", options=options, **where, wait=True)
    assert ended["batches"] >= 3
    produce(broker, "remote", 3000, 3500, partitions=2)
    client.ask("stream", options=options, **where, wait=True)
    found = client.ask("read_back", sink=where["sink"])
    for partition in (0, 1):
        whole(found, partition, 0, 3500)
    produce(broker, "written", 0, 0, partitions=2)
    sink = {"kafka.bootstrap.servers": broker.address, "topic": "written"}
    client.ask("copy", options=both(broker, "remote"), sink=sink, checkpoint=None)
    checkpoint = str(tmp_path / "copied")
    client.ask("copy", options=options, sink=sink, checkpoint=checkpoint)
    found = client.ask("batch", options={**sink_place(broker), "subscribe": "written"})
    assert [part["records"] for part in found] == [7000, 7000], (
        "each partition must be written twice"
    )
    writes = client.ask("write_headers", options={**sink_place(broker), "subscribe": "written"})
    assert all(one["records"] == one["different"] for one in writes), writes


def sink_place(broker: BrokerProcess) -> dict[str, str]:
    return {"kafka.bootstrap.servers": broker.address}


def test_the_client_receives_the_error_of_a_wrong_option(
    broker: BrokerProcess, client: Driver
) -> None:
    for options, says in (
        (both(broker, "t", startingOffset="latest"), "did you mean 'startingOffsets'?"),
        (both(broker, "nowhere"), "topic nowhere does not exist"),
    ):
        error = client.asked("batch", options=options)["error"]
        assert says in error.replace("\\'", "'"), error
