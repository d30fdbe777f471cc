"""Our server starts on the log directories of a real Apache Kafka, and Apache Kafka on ours afterwards.

Method: a node of Apache Kafka with topics, records, transactions, committed offsets and settings ends, cleanly
or by `kill -9`. `strata server` starts with the same properties on the same directory. All of it must be there. We add
to it and stop; then Apache Kafka starts there again and must find both.
"""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType
from tests.compat.apache_kafka import kafka_process, properties, wait_until_open
from tests.compat.tools import java_tool, kafka_tier_lib
from tests.integration.server_process import STRATA, strata
from tests.integration.waiting import wait_for

from stratalog.adapters.free_ports import free_ports
from stratalog.wire.batch import scan
from stratalog.wire.internal.metadata import decode_versioned
from stratalog.wire.internal.metadata_records import (
    BrokerRegistrationChangeRecord,
    RegisterBrokerRecord,
)
from stratalog.wire.records import read_records

pytestmark = [pytest.mark.timeout(300), pytest.mark.serial, pytest.mark.big]
TIMEOUT_S = 60
GROUP = "readers"
SESSION = {"broker.session.timeout.ms": "18000"}
"""Our node alone is not fenced at its stop; so Kafka's broker registers there once this has passed, in at most 60 s."""
UNSERVED = ("group.version", "share.version", "streams.version")
"""Features that Apache Kafka finalizes as it formats, and that our brokers do not serve: they refuse such a cluster."""


def client(address: str) -> dict[str, object]:
    return {"bootstrap.servers": address, "log_level": 0}


def produce(address: str, topic: str, values: list[str], **settings: object) -> None:
    producer = Producer(client(address) | {"enable.idempotence": True} | settings)
    if "transactional.id" in settings:
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, key=value[:3], partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    if "transactional.id" in settings:
        producer.commit_transaction(TIMEOUT_S)


def values_of(address: str, topic: str) -> list[str]:
    consumer = Consumer(client(address) | {"group.id": "x", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[str] = []
    while (message := consumer.poll(TIMEOUT_S)) is not None and message.error() is None:
        value = message.value()
        assert value is not None
        found.append(value.decode())
    consumer.close()
    return found


def commit(address: str, topic: str, offset: int) -> None:
    consumer = Consumer(client(address) | {"group.id": GROUP, "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def committed(address: str, topic: str) -> int:
    consumer = Consumer(client(address) | {"group.id": GROUP})
    (found,) = consumer.committed([TopicPartition(topic, 0)], TIMEOUT_S)
    consumer.close()
    return int(found.offset)


def ids_of(address: str) -> dict[str, str]:
    admin = AdminClient(client(address))
    names = [name for name in admin.list_topics(timeout=TIMEOUT_S).topics if name[0] != "_"]
    collection = admin.describe_topics(TopicCollection(names))
    return {name: str(one.result(TIMEOUT_S).topic_id) for name, one in collection.items()}


def config_of(address: str, topic: str, name: str) -> str:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin = AdminClient(client(address))
    found = admin.describe_configs([resource])[resource]
    return str(found.result(TIMEOUT_S)[name].value)


def inspected(directory: Path) -> tuple[int, str]:
    done = strata("migrate", "inspect", str(directory))
    return done.returncode, done.stdout


def contents(directory: Path) -> dict[str, bytes]:
    return {str(one): one.read_bytes() for one in directory.rglob("*") if one.is_file()}


def formatted(directory: Path, ports: list[int], *words: str, **settings: str) -> Path:
    """Format a directory of Apache Kafka's; return its properties file."""
    file = directory / "server.properties"
    named = {name.replace("__", "."): value for name, value in settings.items()}
    file.write_text(properties(directory, ports, SESSION | named))
    storage = "kafka.tools.StorageTool"
    cluster_id = java_tool(storage, "random-uuid").stdout.split()[-1]
    done = java_tool(storage, "format", "-t", cluster_id, "-c", str(file), "--standalone", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return file


@contextmanager
def kafka(file: Path, port: int, *jars: Path) -> Iterator[str]:
    with kafka_process(file, port, *jars) as process:
        yield f"127.0.0.1:{port}"
        process.send_signal(signal.SIGTERM)
        process.wait(TIMEOUT_S)


@contextmanager
def ours_on(file: Path, port: int) -> Iterator[str]:
    """Run our server with Apache Kafka's properties file."""
    output = file.parent / "ours.out"
    with output.open("wb") as out:
        process = subprocess.Popen(
            [*STRATA, "server", str(file)], stdout=out, stderr=out, stdin=subprocess.DEVNULL
        )
        try:
            wait_until_open(port, process, output)
            yield f"127.0.0.1:{port}"
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT_S) == 0, output.read_text()[-2000:]
        finally:
            process.kill()
            process.wait(TIMEOUT_S)


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_starts_where_apache_kafka_ended_and_back(tmp_path: Path, ending: int) -> None:
    ports = free_ports(2)
    port = ports[0]
    file = formatted(tmp_path, ports)
    address = f"127.0.0.1:{port}"
    theirs = [f"a{number:02}" for number in range(50)]
    with kafka_process(file, port) as process:
        admin = AdminClient(client(address))
        topics = [
            NewTopic("plain", 2, 1, config={"retention.ms": "86400000"}),
            NewTopic("table", 1, 1, config={"cleanup.policy": "compact"}),
        ]
        for future in admin.create_topics(topics).values():
            future.result(TIMEOUT_S)
        produce(address, "plain", theirs)
        produce(address, "table", theirs, **{"transactional.id": "t"})
        commit(address, "plain", 17)
        ids = ids_of(address)
        code, said = inspected(tmp_path / "data")
        assert code == 1, said
        assert all(f"kafka-features.sh downgrade --feature {name}=0" in said for name in UNSERVED)
        lower = [word for name in UNSERVED for word in ("--feature", f"{name}=0")]
        words = ("--bootstrap-server", address, "downgrade", *lower)
        done = java_tool("org.apache.kafka.tools.FeatureCommand", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        process.send_signal(ending)
        process.wait(TIMEOUT_S)
    before = contents(tmp_path / "data")
    code, said = inspected(tmp_path / "data")
    assert code == 0, said
    assert ("a crash" in said) == (ending == signal.SIGKILL), said
    assert contents(tmp_path / "data") == before, "an inspection changes nothing"
    ours = [f"b{number:02}" for number in range(20)]
    with ours_on(file, port):
        assert ids_of(address) == ids
        assert values_of(address, "plain") == theirs
        assert values_of(address, "table") == theirs
        assert committed(address, "plain") == 17
        assert config_of(address, "plain", "retention.ms") == "86400000"
        produce(address, "plain", ours)
        produce(address, "table", ours, **{"transactional.id": "t"})
        commit(address, "plain", 60)
    with kafka(file, port) as back:
        assert ids_of(back) == ids
        assert values_of(back, "plain") == theirs + ours
        assert values_of(back, "table") == theirs + ours
        assert committed(back, "plain") == 60
        assert config_of(back, "table", "cleanup.policy") == "compact"
        produce(back, "plain", ["c01"])
        assert values_of(back, "plain")[-1] == "c01"


FEATURES = "org.apache.kafka.tools.FeatureCommand"


def level_of(address: str) -> str:
    done = java_tool(FEATURES, "--bootstrap-server", address, "describe")
    (line,) = [one for one in done.stdout.splitlines() if "Feature: metadata.version" in one]
    return line.split("FinalizedVersionLevel:")[1].split()[0]


def set_level(address: str, direction: str, level: int) -> str:
    words = ("--bootstrap-server", address, direction, "--feature", f"metadata.version={level}")
    done = java_tool(FEATURES, *words)
    return "done" if done.returncode == 0 else done.stdout + done.stderr


def broker_records(directory: Path) -> set[tuple[str, int]]:
    """Return the names and versions of the brokers' records in the metadata log."""
    found = set()
    for path in (directory / "__cluster_metadata-0").glob("0*.log"):
        data = memoryview(path.read_bytes())
        for at, header in scan(data):
            for one in () if header.is_control else read_records(data[at : at + header.size]):
                assert one.value is not None
                record, version = decode_versioned(one.value)
                if isinstance(record, RegisterBrokerRecord | BrokerRegistrationChangeRecord):
                    found.add((type(record).__name__, version))
    return found


def test_a_log_of_kafka_4_0_stays_at_its_level_until_it_is_raised(tmp_path: Path) -> None:
    ports = free_ports(2)
    port = ports[0]
    file = formatted(tmp_path, ports, "--release-version", "4.0", "--feature", "group.version=0")
    address = f"127.0.0.1:{port}"
    with kafka(file, port):
        produce(address, "plain", ["a1"])
        assert level_of(address) == "4.0-IV3"
    with ours_on(file, port):
        assert level_of(address) == "4.0-IV3"
        assert set_level(address, "upgrade", 29) == "done"
        assert set_level(address, "downgrade", 25) == "done"
        assert set_level(address, "downgrade", 24) != "done"
        produce(address, "plain", ["b1"])
        produce(address, "ours", ["b2"])
    written = broker_records(tmp_path / "data")
    assert ("RegisterBrokerRecord", 3) in written
    assert not written & {("RegisterBrokerRecord", 4), ("BrokerRegistrationChangeRecord", 3)}
    with kafka(file, port):
        assert level_of(address) == "4.0-IV3"
        assert values_of(address, "plain") == ["a1", "b1"]
        assert values_of(address, "ours") == ["b2"]
    with ours_on(file, port):
        assert set_level(address, "upgrade", 30) == "done"
        assert set_level(address, "downgrade", 29) != "done"
        produce(address, "plain", ["b3"])
    with kafka(file, port):
        assert level_of(address) == "4.3-IV0"
        assert values_of(address, "plain") == ["a1", "b1", "b3"]


def test_a_directory_that_kafka_only_formatted_begins_at_its_level(tmp_path: Path) -> None:
    ports = free_ports(2)
    port = ports[0]
    file = formatted(tmp_path, ports, "--release-version", "4.0", "--feature", "group.version=0")
    code, said = inspected(tmp_path / "data")
    assert code == 0, said
    assert "bootstrap.checkpoint has metadata.version=25" in said
    address = f"127.0.0.1:{port}"
    with ours_on(file, port):
        assert level_of(address) == "4.0-IV3"
        produce(address, "plain", ["a1"])
    with kafka(file, port):
        assert level_of(address) == "4.0-IV3"
        assert values_of(address, "plain") == ["a1"]


def test_a_topic_in_the_store_of_kafkas_plugin_is_refused_by_name(tmp_path: Path) -> None:
    ports = free_ports(2)
    port = ports[0]
    plugin = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
    tier = {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": plugin,
        "rsm.config.dir": str(tmp_path / "tier"),
        "remote.log.metadata.manager.listener.name": "PLAINTEXT",
        "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
        "remote.log.manager.task.interval.ms": "500",
        "log.retention.check.interval.ms": "500",
    }
    lower = [word for name in UNSERVED for word in ("--feature", f"{name}=0")]
    file = formatted(tmp_path, ports, *lower, **tier)
    data = tmp_path / "data"
    small = {"segment.bytes": "1048576", "local.retention.bytes": "1", "file.delete.delay.ms": "0"}
    with kafka(file, port, kafka_tier_lib()) as address:
        admin = AdminClient(client(address))
        made = [
            NewTopic("archived", 1, 1, config=small | {"remote.storage.enable": "true"}),
            NewTopic("plain", 1, 1),
        ]
        for future in admin.create_topics(made).values():
            future.result(TIMEOUT_S)
        produce(address, "archived", [str(number) * 100 for number in range(30_000)])
        produce(address, "plain", ["a"])

        def is_tiered() -> bool:
            return not (data / "archived-0" / f"{0:020}.log").exists()

        wait_for(is_tiered, "the plugin of Kafka's has the first segment")
    before = contents(data)
    code, said = inspected(data)
    assert code == 1, said
    assert "archived-0: a plugin of Apache Kafka stores offsets 0 to " in said
    refused = strata("server", str(file))
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert "archived-0: a plugin of Apache Kafka stores offsets 0 to " in refused.stderr
    assert "Traceback" not in refused.stderr
    after = contents(data)
    assert [name for name in before if "archived-0" in name and before[name] != after[name]] == []
    # Its end may take a minute here, so it is killed.
    with kafka_process(file, port, kafka_tier_lib()) as process:
        first = ["0" * 100, "1" * 100]
        wait_for(lambda: values_of(address, "archived")[:2] == first, "Kafka has its list again")
        admin = AdminClient(client(address))
        admin.delete_topics(["archived"])["archived"].result(TIMEOUT_S)
        process.kill()
    with ours_on(file, port):
        assert values_of(address, "plain") == ["a"]
