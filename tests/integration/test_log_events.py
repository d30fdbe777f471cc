"""Goal: each notable event of a broker is one line in its log, and frequent events leave no line.

Method: a real node in this process, whose log events are captured. Each test names the line that must appear.
"""

import socket
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)
from structlog.testing import capture_logs
from tests.integration.waiting import wait_for

from stratalog.broker.storage.timed_disk import TimedDisk
from stratalog.testing.broker import TemporaryBroker

TIMEOUT_S = 30
SEGMENT_BYTES = 1 << 20
HOUR_MS = 3_600_000
Lines = list[MutableMapping[str, Any]]


@pytest.fixture
def lines() -> Iterator[Lines]:
    with capture_logs() as caught:
        yield caught


def named(lines: Lines, event: str, **fields: object) -> Lines:
    """Return an event's lines whose fields have these values."""
    return [
        line
        for line in lines
        if line["event"] == event and all(line.get(key) == fields[key] for key in fields)
    ]


def admin(broker: TemporaryBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.address})


def create(broker: TemporaryBroker, name: str, partitions: int = 1, **config: str) -> None:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    new = NewTopic(name, partitions, 1, config=settings)
    client = admin(broker)  # a variable keeps the client, whose requests end with it
    client.create_topics([new])[name].result(TIMEOUT_S)


def produce(broker: TemporaryBroker, topic: str, count: int, size: int = 1000) -> None:
    producer = Producer(
        {"bootstrap.servers": broker.address, "batch.num.messages": 100, "log_level": 0}
    )
    for _ in range(count):
        producer.produce(topic, bytes(size), partition=0)
    assert producer.flush(TIMEOUT_S) == 0


def test_start_and_stop_are_logged(lines: Lines, tmp_path: Path) -> None:
    with TemporaryBroker(directory=tmp_path) as broker:
        port = int(broker.address.rpartition(":")[2])
        assert named(lines, "starting", directories=[str(tmp_path)], log_level="info")
        [serving] = named(lines, "serving", node=1, port=port, log_level="info")
        assert len(serving["cluster"]) == 22
        broker.stop()
        assert named(lines, "stopped", node=1)


def test_changes_of_a_topic_are_logged(lines: Lines) -> None:
    with TemporaryBroker() as broker:
        create(broker, "t", 2, retention_ms="1000")
        [made] = named(lines, "topic created", topic="t", partitions=2)
        assert made["settings"] == {"retention.ms": "1000"}
        assert not named(lines, "config changed")
        client = admin(broker)
        client.create_partitions([NewPartitions("t", 5)])["t"].result(TIMEOUT_S)
        assert named(lines, "partitions added", topic="t", partitions=5)
        change = ConfigResource(
            ConfigResource.Type.TOPIC,
            "t",
            incremental_configs=[
                ConfigEntry("retention.bytes", "7", incremental_operation=AlterConfigOpType.SET),
                ConfigEntry("retention.ms", "", incremental_operation=AlterConfigOpType.DELETE),
            ],
        )
        [done] = client.incremental_alter_configs([change]).values()
        done.result(TIMEOUT_S)
        [changed] = named(lines, "config changed", resource="topic t")
        assert changed["settings"] == {"retention.bytes": "7", "retention.ms": None}
        client.delete_topics(["t"])["t"].result(TIMEOUT_S)
        assert named(lines, "topic deleted", topic="t", id=made["id"])


def test_retention_and_uploads_are_logged(lines: Lines, tmp_path: Path) -> None:
    settings = {
        "tier.url": tmp_path.as_uri(),
        "remote.log.manager.task.interval.ms": "100",
    }
    with TemporaryBroker(settings) as broker:
        create(broker, "local", segment_bytes=str(SEGMENT_BYTES), retention_ms=str(HOUR_MS))
        create(
            broker,
            "tiered",
            segment_bytes=str(SEGMENT_BYTES),
            retention_ms=str(HOUR_MS),
            remote_storage_enable="true",
        )
        for topic in ("local", "tiered"):
            produce(broker, topic, 2500)
        wait_for(lambda: named(lines, "segments tiered", partition="tiered-0", first=0), "a copy")
        assert not named(lines, "segments deleted")
        broker.advance(2 * HOUR_MS)
        [gone] = named(lines, "segments deleted", partition="local-0", first=0)
        assert gone["end"] == 2500
        wait_for(
            lambda: named(lines, "segments expired in the bucket", partition="tiered-0", first=0),
            "expired in the bucket",
        )


def test_changes_of_a_group_are_logged(lines: Lines) -> None:
    with TemporaryBroker() as broker:
        create(broker, "t")
        produce(broker, "t", 1)
        consumer = Consumer(
            {
                "bootstrap.servers": broker.address,
                "group.id": "g",
                "client.id": "me",
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe(["t"])
        assert consumer.poll(TIMEOUT_S) is not None
        [formed] = named(lines, "group rebalanced", group="g", generation=1, members=1)
        assert formed["reason"].startswith("member me-")
        assert formed["reason"].endswith(" joined")
        consumer.close()
        [left] = named(lines, "group rebalanced", group="g", members=0)
        assert left["reason"].endswith(" left")
        assert not named(lines, "member expired")


def test_a_torn_tail_is_logged(lines: Lines, tmp_path: Path) -> None:
    with TemporaryBroker(directory=tmp_path) as broker:
        create(broker, "t")
        produce(broker, "t", 10)
        broker.kill()
        with (tmp_path / "t-0" / f"{0:020}.log").open("ab") as log:
            log.write(bytes(33))
        broker.start()
        assert named(lines, "torn tail cut", partition="t-0", bytes=33, log_level="warning")


def test_a_failed_directory_is_logged(lines: Lines) -> None:
    with TemporaryBroker() as broker:
        node = broker._node

        async def fail() -> None:
            node.directories[0].fail(OSError("the drive is gone"))

        broker._run(fail())
        path = str(broker.directory)
        assert named(lines, "log directory failed", path=path, reason="the drive is gone")


def test_a_refused_connection_is_logged(lines: Lines) -> None:
    with TemporaryBroker({"max.connections": "1"}) as broker:
        host, port = broker.address.split(":")
        with socket.create_connection((host, int(port)), TIMEOUT_S) as first:
            first.sendall(bytes.fromhex("0000000a 0012 0000 00000001 ffff"))
            assert first.recv(4)
            with socket.create_connection((host, int(port)), TIMEOUT_S) as second:
                peer = "{}:{}".format(*second.getsockname())
                assert second.recv(1) == b""
        assert [line for line in lines if line.get("peer") == peer], "the refusal must be one line"


def test_a_slow_disk_is_logged(lines: Lines) -> None:
    with TemporaryBroker() as broker:
        node = broker._node
        now_ns = 0

        def elapsed_ns() -> int:
            nonlocal now_ns
            now_ns += 1_500_000_000
            return now_ns

        watch = TimedDisk("/d", node._watches[0].as_disk(), elapsed_ns)
        watch.append("some-file", 0, (b"x",))
        node._watches.append(watch)
        broker._run(node._log_slow_disks())
        event = {"path": "/d", "operation": "write", "file": "some-file", "ms": 1500}
        assert len(named(lines, "slow disk", **event)) == 1
        broker._run(node._log_slow_disks())
        assert len(named(lines, "slow disk")) == 1, "one slow write must be one line"


def test_requests_leave_no_line(lines: Lines) -> None:
    with TemporaryBroker() as broker:
        create(broker, "t")
        produce(broker, "t", 1)
        client, before = admin(broker), len(lines)
        for _ in range(20):
            produce(broker, "t", 5)
            client.list_topics(timeout=TIMEOUT_S)
        assert lines[before:] == []
