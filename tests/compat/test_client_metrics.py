"""Goal: client metrics (KIP-714) mean on our broker what they mean on Apache Kafka, and Kafka's own tool manages them.

Method: one story runs against both brokers, and the answers must be the same. Kafka has no receiver here, so it does
not advertise the two APIs of clients; it serves them all the same.
"""

import re
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.broker_process import broker_process
from tests.compat.apache_kafka import apache_kafka, properties
from tests.compat.differential import Broker, Connection, answers_are_equal, api_versions, in_common
from tests.compat.test_kafka_directories import UNSERVED, kafka, ours_on
from tests.compat.tools import java_tool
from tests.integration.waiting import wait_for

from stratalog.adapters.free_ports import free_ports
from stratalog.wire.compression import GZIP, ZSTD, compress
from stratalog.wire.ids import ZERO_ID

CLIENT_METRICS = 16
TOOL = "org.apache.kafka.tools.ClientMetricsCommand"
SET, DELETE, APPEND, SUBTRACT = range(4)
Change = tuple[str, int, str | None]
METRICS = b"\x0a\x00"
"""One empty ResourceMetrics."""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Yield our address and Kafka's."""
    with (
        apache_kafka(tmp_path_factory.mktemp("kafka")) as theirs,
        broker_process(
            tmp_path_factory.mktemp("ours"), tier__url="", telemetry__series__enable="true"
        ) as ours,
    ):
        yield ours.address, theirs


def alter(ask: Connection, name: str, *changes: Change, validate_only: bool = False) -> None:
    configs = [
        {"name": setting, "config_operation": operation, "value": value}
        for setting, operation, value in changes
    ]
    resource = {"resource_type": CLIENT_METRICS, "resource_name": name, "configs": configs}
    ask.ask("IncrementalAlterConfigs", resources=[resource], validate_only=validate_only)


def replace(ask: Connection, name: str, **values: str) -> None:
    configs = [{"name": one.replace("__", "."), "value": values[one]} for one in values]
    resource = {"resource_type": CLIENT_METRICS, "resource_name": name, "configs": configs}
    ask.ask("AlterConfigs", resources=[resource], validate_only=False)


_marks = count(1000)


def await_changes(ask: Connection) -> None:
    """Wait until the broker knows every change that the controller has acknowledged: Kafka's learns of them later."""
    mark = str(next(_marks))
    config = {"name": "interval.ms", "config_operation": SET, "value": mark}
    marked = {"resource_type": CLIENT_METRICS, "resource_name": "mark"}
    ask.send(
        "IncrementalAlterConfigs", resources=[{**marked, "configs": [config]}], validate_only=False
    )
    assert not ask.receive(traced=False).responses[0].error_code

    def is_known() -> bool:
        ask.send("DescribeConfigs", resources=[{**marked, "configuration_keys": None}])
        configs = ask.receive(traced=False).results[0].configs
        return mark in {one.value for one in configs}

    wait_for(is_known, "a change that the broker knows")


def describe(ask: Connection, name: str, *keys: str) -> None:
    await_changes(ask)
    resource = {
        "resource_type": CLIENT_METRICS,
        "resource_name": name,
        "configuration_keys": list(keys) or None,
    }
    ask.ask("DescribeConfigs", resources=[resource], include_synonyms=True)


def listed(ask: Connection) -> None:
    await_changes(ask)
    ask.ask("ListConfigResources", resource_types=[CLIENT_METRICS])


def resources(broker: Broker) -> None:
    """Make, change, refuse, describe, list and remove resources."""
    ask = broker.connect()
    describe(ask, "absent")
    describe(ask, "")
    alter(ask, "", ("metrics", SET, "a"))
    alter(
        ask,
        "one",
        ("metrics", SET, "org.apache.kafka.producer."),
        ("interval.ms", SET, "1000"),
        ("match", SET, "client_id=app.*"),
    )
    describe(ask, "one")
    describe(ask, "one", "match", "nothing")
    alter(ask, "two", ("interval.ms", SET, "100"))
    describe(ask, "two")
    listed(ask)
    for name, values in {
        "nothing": ["1"],
        "interval.ms": ["99", "100", "3600001", "x", "", None, "2147483648", "+500", " 500 "],
        "metrics": [None, "", "a,", " a , b ", "*"],
        "match": [
            "client_id=a,client_id=b",
            "client_id",
            "client_id=",
            "=x",
            "client_id=a=b",
            "host=a",
            "client_id=(",
            "client_id=a{1,2}",
            "client_id=a=,",
            "client_id=a=",
            "",
            " client_id = a.* ",
        ],
    }.items():
        for value in values:
            alter(ask, "two", (name, SET, value))
    describe(ask, "two")
    for operation in (APPEND, SUBTRACT):
        for name in ("metrics", "match", "interval.ms", "nothing"):
            alter(ask, "two", (name, operation, "5"))
    alter(ask, "two", ("metrics", APPEND, None))
    alter(ask, "two", ("metrics", SET, "a"), ("metrics", SET, "b"))
    alter(ask, "two", ("nothing", DELETE, None))
    alter(ask, "dry", ("metrics", SET, "a"), validate_only=True)
    alter(ask, "empty", ("metrics", SET, ""))
    listed(ask)
    replace(ask, "one", metrics="w")
    describe(ask, "one")
    replace(ask, "one", interval__ms="1")
    replace(ask, "one")
    listed(ask)
    for name in ("two", "empty"):
        alter(ask, name, *((one, DELETE, None) for one in ("metrics", "interval.ms", "match")))
    describe(ask, "two")
    listed(ask)


def clients(broker: Broker) -> None:
    """Ask for subscriptions, and push in and out of turn."""
    admin = broker.connect()
    me = broker.connect("pusher")
    id_of = {name: UUID(int=number << 64 | 5) for number, name in enumerate("abcde", 1)}

    def ask(name: UUID) -> Any:
        me.send("GetTelemetrySubscriptions", client_instance_id=name)
        answer = me.receive(traced=False)
        broker.add("asked", answer.error_code)
        # The order of the metrics is Java's of a HashSet.
        fields = (answer.push_interval_ms, answer.telemetry_max_bytes, answer.delta_temporality)
        broker.add("answer", (*fields, list(answer.accepted_compression_types)))
        broker.add("metrics", sorted(answer.requested_metrics))
        if name != ZERO_ID and len(answer.requested_metrics) < 2:
            broker.add("id", answer.subscription_id)
        return answer

    def push(name: UUID, subscription: int, metrics: bytes = b"", **more: Any) -> None:
        me.send(
            "PushTelemetry",
            client_instance_id=name,
            subscription_id=subscription,
            terminating=more.get("last", False),
            compression_type=more.get("codec", 0),
            metrics=metrics,
        )
        broker.add("pushed", me.receive(traced=False).error_code)

    ask(ZERO_ID)
    assert ask(id_of["a"]).push_interval_ms == 300_000
    ask(id_of["a"])
    alter(admin, "one", ("metrics", SET, "org.apache.kafka."), ("interval.ms", SET, "60000"))
    until(lambda: ask_quietly(me, id_of["b"]).push_interval_ms == 60_000)
    found = ask(id_of["a"])
    push(id_of["a"], found.subscription_id, METRICS)
    push(id_of["a"], found.subscription_id, METRICS)
    ask(id_of["a"])
    push(id_of["a"], found.subscription_id, METRICS, last=True)
    push(id_of["a"], found.subscription_id, METRICS)
    for reserved in (ZERO_ID, UUID(int=1)):
        push(reserved, 0)
    # A push to a broker that does not know the instance, in its order: each has one error.
    push(id_of["c"], 7)
    ask(id_of["c"])
    push(id_of["c"], ask_quietly(me, id_of["c"]).subscription_id)
    refused(ask, push)
    for text in ("client_id=pusher", "client_id=push", "client_source_address=127\\.0\\.0\\.1"):
        alter(admin, "one", ("match", SET, text))
        alter(admin, "mark", ("interval.ms", SET, str(1000 + len(text))))
        until(lambda: ask_quietly(me, uuid4()).push_interval_ms == 1000 + len(text))  # noqa: B023
        ask(id_of["d"])
    alter(admin, "two", ("metrics", SET, "x,y"), ("interval.ms", SET, "500"))
    until(lambda: ask_quietly(me, uuid4()).push_interval_ms == 500)
    ask(id_of["d"])
    alter(admin, "three", ("metrics", SET, "*,z"), ("interval.ms", SET, "400"))
    until(lambda: ask_quietly(me, uuid4()).push_interval_ms == 400)
    ask(id_of["d"])
    for name in ("one", "two", "three", "mark"):
        alter(admin, name, *((one, DELETE, None) for one in ("metrics", "interval.ms", "match")))


def refused(ask: Callable[[UUID], Any], push: Callable[..., None]) -> None:
    """Push metrics of every codec, right and wrong, each as another instance."""
    for number, (metrics, codec) in enumerate(
        [
            (METRICS, 5),
            (METRICS, -1),
            (bytes((1 << 20) + 1), 0),
            (b"no gzip", GZIP),
            (compress(ZSTD, bytes(1 << 20)), ZSTD),
            (compress(ZSTD, bytes((1 << 20) + 1)), ZSTD),
            *((compress(codec, METRICS), codec) for codec in range(5)),
        ]
    ):
        name = UUID(int=number << 64 | 1000)
        if number == 4:  # Apache Kafka passes bytes on that are no OTLP
            continue
        push(name, ask(name).subscription_id, metrics, codec=codec)


def ask_quietly(ask: Connection, name: UUID) -> Any:
    """Return a subscription, without an entry in the trace."""
    ask.send("GetTelemetrySubscriptions", client_instance_id=name)
    return ask.receive(traced=False)


def until(holds: Callable[[], bool]) -> None:
    """Wait until the broker has taken a change: Kafka answers before."""
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.big
@pytest.mark.serial
@pytest.mark.timeout(300)
@pytest.mark.parametrize("tells", [resources, clients])
def test_client_metrics_mean_what_they_mean_on_apache_kafka(
    both: tuple[str, str], tells: Any
) -> None:
    common = {**in_common(*map(api_versions, both)), 71: (0, 0), 72: (0, 0)}
    answers_are_equal(both, tells, "", common, steps_min=20)


@pytest.mark.big
@pytest.mark.serial
@pytest.mark.timeout(300)
def test_kafkas_tool_makes_lists_describes_and_removes_resources(both: tuple[str, str]) -> None:
    outputs = []
    for address in both:
        said = ""
        for words in (
            "--alter --name tool --metrics org.apache.kafka.producer. --interval 2000 --match client_id=app.*",
            "--list",
            "--describe --name tool",
            "--alter --name tool --interval=",
            "--describe",
            "--delete --name tool",
            "--list",
        ):
            said += tool(address, *words.split())
        outputs.append(said)
        with pytest.raises(AssertionError, match="InvalidRequestException"):
            tool(address, "--alter", "--name", "tool", "--interval", "5")
    assert outputs[0] == outputs[1]
    assert re.search("client metrics.*tool", outputs[0], re.IGNORECASE)


@pytest.mark.big
@pytest.mark.serial
@pytest.mark.timeout(300)
def test_resources_of_apache_kafkas_directory_count_on_ours_and_back(tmp_path: Path) -> None:
    ports = free_ports(2)
    file = tmp_path / "server.properties"
    file.write_text(properties(tmp_path, ports, {}))
    storage = "kafka.tools.StorageTool"
    cluster_id = java_tool(storage, "random-uuid").stdout.split()[-1]
    features = [word for name in UNSERVED for word in ("--feature", f"{name}=0")]
    words = ("format", "-t", cluster_id, "-c", str(file), "--standalone", *features)
    done = java_tool(storage, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    with kafka(file, ports[0]) as address:
        tool(address, "--alter", "--name", "theirs", "--metrics", "a.", "--match", "client_id=x.*")
        theirs = tool(address, "--describe")
    with ours_on(file, ports[0]) as address:
        assert tool(address, "--describe") == theirs
        tool(address, "--alter", "--name", "ours", "--interval", "1000")
        ours = tool(address, "--describe", "--name", "ours")
        tool(address, "--delete", "--name", "theirs")
    with kafka(file, ports[0]) as address:
        assert tool(address, "--list").split() == ["ours"]
        assert tool(address, "--describe", "--name", "ours") == ours


def tool(address: str, *words: str) -> str:
    """Return the output of Kafka's `kafka-client-metrics.sh`."""
    done = java_tool(TOOL, "--bootstrap-server", address, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
