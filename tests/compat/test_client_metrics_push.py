"""Goal: real clients push their metrics to a real server (KIP-714), which shows them and passes them on.

Method: a resource asks for every metric each 200 ms, of clients that live for seconds. Prometheus' own parser reads
`/metrics`; a receiver keeps what it is sent.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka import Producer
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from prometheus_client.parser import text_string_to_metric_families
from tests.broker_process import BrokerProcess, broker_process
from tests.compat.differential import Broker, api_versions
from tests.compat.tools import java_tool, kafka_lib

TIMEOUT_S = 60
MESSAGES = 50
Values = dict[tuple[str, str], float]


class Receiver(ThreadingHTTPServer):
    """Takes OTLP over HTTP, and keeps it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taking)
        self.pushes: list[ExportMetricsServiceRequest] = []


class _Taking(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.headers["Content-Type"] == "application/x-protobuf"
        assert isinstance(self.server, Receiver)
        self.server.pushes.append(ExportMetricsServiceRequest.FromString(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
        pass


@contextmanager
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, Receiver]]:
    with (
        receiver() as taking,
        broker_process(
            tmp_path_factory.mktemp("broker"),
            tier__url="",
            monitor__listener="127.0.0.1:0",
            telemetry__series__enable="true",
            telemetry__otlp__url=f"http://127.0.0.1:{taking.server_port}/v1/metrics",
        ) as server,
    ):
        subscribe(server.address)
        yield server, taking


def subscribe(address: str) -> None:
    broker = Broker(address, "", api_versions(address))
    configs = [
        {"name": name, "config_operation": 0, "value": value}
        for name, value in (("metrics", "*"), ("interval.ms", "200"))
    ]
    resource = {"resource_type": 16, "resource_name": "every", "configs": configs}
    answer = broker.connect().ask(
        "IncrementalAlterConfigs", resources=[resource], validate_only=False
    )
    assert answer.responses[0].error_code == 0
    broker.close()


def series(server: BrokerProcess) -> Values:
    """Return the values of clients' series, by name and client id."""
    ready = json.loads((server.directory / "ready.json").read_text())
    with urlopen(f"http://127.0.0.1:{ready['monitor_port']}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return {
        (sample.name.removeprefix("kafka_client_"), sample.labels["client_id"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("kafka_client_")
    }


def wait_for(what: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + TIMEOUT_S
    while not (found := what()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return found


def passed_on(taking: Receiver, client_id: str) -> set[str]:
    """Return the names of the metrics of a client that the receiver got."""
    return {
        metric.name
        for push in list(taking.pushes)
        for resource in push.resource_metrics
        if ("client_id", client_id)
        in [(one.key, one.value.string_value) for one in resource.resource.attributes]
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_a_java_producer_and_consumer_push(
    running: tuple[BrokerProcess, Receiver], tmp_path: Path
) -> None:
    kafka_lib()
    server, taking = running
    topic = ("--topic", "java", "--bootstrap-server", server.address)
    config = tmp_path / "client.properties"
    config.write_text("client.id=java-p\nenable.metrics.push=true\n")
    done = java_tool(
        "org.apache.kafka.tools.VerifiableProducer",
        *topic,
        *("--max-messages", f"{MESSAGES}", "--throughput", "10", "--command-config", f"{config}"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    done = java_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *topic,
        *("--from-beginning", "--timeout-ms", "15000", "--command-property", "client.id=java-c"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = series(server)
    # A producer may end before it has pushed the last of its records.
    assert MESSAGES // 2 < found["producer_record_send_total", "java-p"] <= MESSAGES
    assert found["consumer_fetch_manager_records_consumed_total", "java-c"] == MESSAGES
    assert "org.apache.kafka.producer.record.send.total" in wait_for(
        lambda: passed_on(taking, "java-p")
    )


def test_a_producer_of_librdkafka_pushes(running: tuple[BrokerProcess, Receiver]) -> None:
    server, taking = running
    producer = Producer(
        {"bootstrap.servers": server.address, "client.id": "rd", "enable.metrics.push": True}
    )
    producer.produce("rd", b"value")
    assert producer.flush(TIMEOUT_S) == 0
    names = wait_for(lambda: {name for name, client in series(server) if client == "rd"})
    assert "producer_connection_creation_total" in names
    wait_for(
        lambda: any(one.startswith("org.apache.kafka.producer.") for one in passed_on(taking, "rd"))
    )


def test_a_hung_receiver_holds_up_no_client(tmp_path: Path) -> None:
    """The receiver accepts connections and never answers; pushes are taken meanwhile, and the server stops in time."""
    from socket import create_server

    with (
        create_server(("127.0.0.1", 0)) as hung,
        broker_process(
            tmp_path,
            tier__url="",
            monitor__listener="127.0.0.1:0",
            telemetry__series__enable="true",
            telemetry__otlp__url=f"http://127.0.0.1:{hung.getsockname()[1]}/",
        ) as server,
    ):
        subscribe(server.address)
        producer = Producer({"bootstrap.servers": server.address, "client.id": "rd"})
        total = ("producer_connection_creation_rate", "rd")
        wait_for(lambda: total in series(server))
        producer.produce("rd", b"value")
        assert producer.flush(TIMEOUT_S) == 0
        began_s = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began_s < 20
