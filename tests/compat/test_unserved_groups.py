"""Groups of Apache Kafka that our brokers do not serve outlive our server and its cleaner.

Method: a consumer of KIP-848, a share consumer and a Streams application run against Apache Kafka, and leave their
groups. Its features are lowered, and it stops. Our server starts there, commits for a group of its own, and cleans
`__consumer_offsets`. Each record of the three kinds of groups must still be there. Apache Kafka starts again, its
features are raised, and it must list the same groups with the same offsets.
"""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from tests.compat.apache_kafka import properties
from tests.compat.test_kafka_directories import (
    FEATURES,
    SESSION,
    TIMEOUT_S,
    UNSERVED,
    client,
    commit,
    committed,
    kafka,
    ours_on,
    produce,
)
from tests.compat.test_streams import TOPICS as STREAMS_TOPICS
from tests.compat.tools import KAFKA_VERSION, java_command, java_environment, java_tool, kafka_jars

from stratalog.adapters.free_ports import free_ports
from stratalog.wire.batch import scan
from stratalog.wire.records import read_records

pytestmark = [pytest.mark.timeout(600), pytest.mark.serial, pytest.mark.big]
TOPIC = "plain"
CONSUMERS = "new-consumers"
SHARERS = "sharers"
CLASSIC_KINDS = (0, 1, 2)
"""Keys of offsets and classic groups; those above are of the other kinds."""
SETTINGS = {
    **SESSION,
    "offsets.topic.num.partitions": "1",
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.retention.check.interval.ms": "500",
    "share.coordinator.state.topic.num.partitions": "1",
}


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.5)


def consume(address: str, tool: str, group: str, *words: str) -> str:
    """Run one of Kafka's console consumers for some records, as a member of a group."""
    done = java_tool(
        f"org.apache.kafka.tools.consumer.{tool}",
        *("--bootstrap-server", address, "--topic", TOPIC, "--group", group),
        *("--max-messages", "10", "--timeout-ms", "30000", *words),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_streams(address: str, place: Path) -> None:
    """Run an application of Kafka Streams with the protocol of KIP-1071 until its group is stable, and kill it."""
    admin = AdminClient(client(address))
    topics = [NewTopic(name, 1, 1) for name in STREAMS_TOPICS]
    for future in admin.create_topics(topics).values():
        future.result(TIMEOUT_S)
    tests = [f"{name}:{KAFKA_VERSION}:test" for name in ("kafka-streams", "kafka-clients")]
    jars = (
        kafka_jars("kafka-streams", "kafka-streams"),
        kafka_jars("kafka-streams-tests", *tests, with_dependencies=False),
    )
    place.mkdir()
    lines = {
        "bootstrap.servers": address,
        "group.protocol": "streams",
        "processing.guarantee": "at_least_once",
        "state.dir": str(place),
    }
    file = place / "streams.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    main = "org.apache.kafka.streams.tests.StreamsSmokeTest"
    log = place / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            java_command(main, str(file), "process", heap="512m", jars=jars),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=java_environment(),
        )
    try:
        until(
            lambda: "REBALANCING -> RUNNING" in log.read_text(errors="replace"),
            "the application does not run",
        )
    finally:
        process.kill()
        process.wait()


def set_features(address: str, direction: str, level: int) -> None:
    named = [word for name in UNSERVED for word in ("--feature", f"{name}={level}")]
    done = java_tool(FEATURES, "--bootstrap-server", address, direction, *named)
    assert done.returncode == 0, done.stdout + done.stderr


def groups_of(address: str) -> set[tuple[str, ...]]:
    """Return name, type and protocol of each group, as Kafka lists them."""
    words = ("--bootstrap-server", address, "--list")
    done = java_tool("org.apache.kafka.tools.GroupsCommand", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return {tuple(line.split()) for line in done.stdout.splitlines()[1:] if line.strip()}


def set_configs(address: str, kind: ResourceType, name: str, changes: dict[str, str]) -> None:
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in changes.items()
    ]
    admin = AdminClient(client(address))
    resource = ConfigResource(kind, name, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(TIMEOUT_S)


def records_of(partition: Path, left_out: tuple[int, ...] = ()) -> dict[bytes, bytes]:
    """Return the last value of each key of a log, but of some kinds of keys."""
    found: dict[bytes, bytes | None] = {}
    for path in sorted(partition.glob("*.log")):
        data = memoryview(path.read_bytes())
        for at, header in scan(data):
            for one in () if header.is_control else read_records(data[at : at + header.size]):
                assert one.key is not None
                if int.from_bytes(one.key[:2], "big") not in left_out:
                    found[one.key] = one.value
    return {key: value for key, value in found.items() if value is not None}


def clean_offsets(address: str, output: Path) -> None:
    """Let our cleaner clean `__consumer_offsets`, up to the last closed segment."""
    topic = "__consumer_offsets"
    changes = {"segment.ms": "1000", "min.cleanable.dirty.ratio": "0.01"}
    set_configs(address, ResourceType.TOPIC, topic, changes)

    def is_cleaned() -> bool:
        commit(address, TOPIC, 17)
        said = output.read_text()
        return any("log cleaned" in line and topic in line for line in said.splitlines())

    until(is_cleaned, "the offsets are not cleaned")


def test_groups_that_are_not_served_are_kept(tmp_path: Path) -> None:
    ports = free_ports(2)
    file = tmp_path / "server.properties"
    file.write_text(properties(tmp_path, ports, SETTINGS))
    storage = "kafka.tools.StorageTool"
    cluster_id = java_tool(storage, "random-uuid").stdout.split()[-1]
    done = java_tool(storage, "format", "-t", cluster_id, "-c", str(file), "--standalone")
    assert done.returncode == 0, done.stdout + done.stderr
    offsets = tmp_path / "data" / "__consumer_offsets-0"
    states = tmp_path / "data" / "__share_group_state-0"
    with kafka(file, ports[0]) as address:
        produce(address, TOPIC, [f"a{number:02}" for number in range(50)])
        beginning = ("--consumer-property", "group.protocol=consumer", "--from-beginning")
        consume(address, "ConsoleConsumer", CONSUMERS, *beginning)
        set_configs(address, ResourceType.GROUP, SHARERS, {"share.auto.offset.reset": "earliest"})
        shared = consume(address, "ConsoleShareConsumer", SHARERS)
        run_streams(address, tmp_path / "streams")
        groups = groups_of(address)
        assert {one[1] for one in groups} == {"Consumer", "Share", "Streams"}, groups
        set_features(address, "downgrade", 0)
    before = records_of(offsets, CLASSIC_KINDS), records_of(states)
    kinds = {int.from_bytes(key[:2], "big") for key in before[0]}
    assert kinds >= {3, 11, 17}, kinds
    assert before[1]
    with ours_on(file, ports[0]) as address:
        clean_offsets(address, tmp_path / "ours.out")
        assert committed(address, TOPIC) == 17
    assert (records_of(offsets, CLASSIC_KINDS), records_of(states)) == before
    with kafka(file, ports[0]) as address:
        set_features(address, "upgrade", 1)
        assert groups_of(address) >= groups
        assert committed(address, TOPIC) == 17
        words = ("--bootstrap-server", address, "--describe", "--group", CONSUMERS)
        done = java_tool("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", *words)
        assert " 10 " in done.stdout, done.stdout + done.stderr
        more = consume(address, "ConsoleShareConsumer", SHARERS)
        assert not set(more.split()) & set(shared.split()), "a record was shared again"
