"""Three nodes in this process: records that outlive their leader, and replicas that move."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.integration.server_process import STRATA, on_a_terminal, strata
from tests.integration.waiting import wait_for

from stratalog.testing import TemporaryCluster, cluster

RECORDS = 50
SEGMENT_BYTES = 1 << 20
TIERED_RECORDS = 5500
"""Of a thousand bytes: five whole segments and a part of one."""

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def three() -> Iterator[TemporaryCluster]:
    with cluster(3) as started:
        yield started


def create(three: TemporaryCluster, name: str, factor: int = 3, partitions: int = 1) -> None:
    config = {"min.insync.replicas": "2"} if factor > 1 else {}
    admin = AdminClient({"bootstrap.servers": three.address})
    wanted = NewTopic(name, partitions, factor, config=config)
    for future in admin.create_topics([wanted]).values():
        future.result(30)


def produce(three: TemporaryCluster, topic: str, values: range) -> None:
    producer = Producer(
        {"bootstrap.servers": three.address, "enable.idempotence": True, "acks": "all"}
    )
    errors: list[object] = []
    for value in values:
        producer.produce(
            topic, str(value), partition=0, on_delivery=lambda error, _: errors.append(error)
        )
    assert producer.flush(60) == 0
    assert errors == [None] * len(values)


def consumed(three: TemporaryCluster, topic: str, count: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": three.address, "group.id": "g"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[int] = []
    try:
        while len(values) < count:
            message = consumer.poll(30)
            assert message is not None, values
            assert message.error() is None, message.error()
            values.append(int(message.value()))
    finally:
        consumer.close()
    return values


def json_of(three: TemporaryCluster, *words: str) -> Any:
    done = strata(*words, "-b", three.address, "--json")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()  # the nodes' log lines are among them
    return json.loads(next(line for line in lines if line.startswith(("{", "[{", "[]"))))


def partition_of(three: TemporaryCluster, topic: str) -> dict[str, Any]:
    return json_of(three, "partition", "list", topic)[0]


def test_acknowledged_records_survive_the_leader(three: TemporaryCluster) -> None:
    create(three, "orders")
    produce(three, "orders", range(RECORDS))
    leader = partition_of(three, "orders")["leader"]
    three.kill(leader)
    produce(three, "orders", range(RECORDS, 2 * RECORDS))
    assert consumed(three, "orders", 2 * RECORDS) == list(range(2 * RECORDS))
    row = partition_of(three, "orders")
    assert row["leader"] != leader
    assert row["state"] == "under-replicated"
    three.restart(leader)
    wait_for(lambda: partition_of(three, "orders")["state"] == "in sync", "the third replica")
    assert consumed(three, "orders", 2 * RECORDS) == list(range(2 * RECORDS))


def test_the_quorum_has_three_voters_that_keep_up(three: TemporaryCluster) -> None:
    create(three, "orders")
    found = json_of(three, "quorum", "describe")
    assert sorted(one["id"] for one in found["nodes"]) == [1, 2, 3]
    assert [one["role"] for one in found["nodes"]].count("leader") == 1
    rows = json_of(three, "broker", "list")
    assert [row["state"] for row in rows] == ["serving"] * 3
    assert [row["replicas"] for row in rows] == [1, 1, 1]


def test_each_broker_refuses_a_directory_that_it_does_not_have(three: TemporaryCluster) -> None:
    for node in (1, 2, 3):
        asked = ("config", "alter", "--broker", str(node), "-b", three.address, "-s")
        done = strata(*asked, "cordoned.log.dirs=/nowhere")
        assert done.returncode != 0
        assert "cordoned.log.dirs: '/nowhere' is not accepted; accepted: *, or of" in done.stderr
        assert strata(*asked, "cordoned.log.dirs=*").returncode == 0
        wait_for(lambda: state_of(three, node) == "cordoned", "a cordoned broker")  # noqa: B023


def test_a_factor_grows_and_a_broker_is_drained(three: TemporaryCluster) -> None:
    create(three, "orders", factor=1)
    produce(three, "orders", range(RECORDS))
    plan = json_of(
        three, "partition", "reassign", "orders", "--replication-factor", "2", "--dry-run"
    )
    assert plan["bytes"] > 0
    assert len(partition_of(three, "orders")["replicas"]) == 1
    throttled = ("--replication-factor", "2", "--throttle", "100MB/s")
    json_of(three, "partition", "reassign", "orders", *throttled)
    for where in (("--topic", "orders"), *(("--broker", str(node)) for node in (1, 2, 3))):
        described = ("config", "describe", *where, "-b", three.address)
        assert strata(*described).returncode == 0
        wait_for(lambda: "throttled" not in strata(*described).stdout, "limits that went")  # noqa: B023
    row = partition_of(three, "orders")
    assert len(row["replicas"]) == len(row["isr"]) == 2
    leader = row["leader"]
    json_of(three, "broker", "drain", str(leader))
    row = partition_of(three, "orders")
    assert leader not in row["replicas"]
    assert row["state"] == "in sync"
    assert consumed(three, "orders", RECORDS) == list(range(RECORDS))

    # The drained broker is cordoned: it gets no replica, until it is undrained.
    wait_for(lambda: state_of(three, leader) == "cordoned", "a cordoned broker")
    create(three, "two", factor=2, partitions=6)
    rows = json_of(three, "partition", "list", "two")
    assert all(leader not in row["replicas"] for row in rows)
    refused = strata("topic", "create", "three", "--replication-factor", "3", "-b", three.address)
    assert "replication factor 3 with 2 brokers registered and 1 cordoned" in refused.stderr
    asked = ("partition", "reassign", "two", "--replicas", f"{leader},{row['leader']}")
    assert f"broker {leader} is cordoned" in strata(*asked, "-b", three.address).stderr
    assert strata("broker", "undrain", str(leader), "-b", three.address).returncode == 0
    wait_for(lambda: state_of(three, leader) == "serving", "a broker for new replicas")
    create(three, "three", factor=3)


def test_a_move_shows_its_progress_on_a_terminal(three: TemporaryCluster) -> None:
    create(three, "orders", factor=1)
    produce(three, "orders", range(RECORDS))
    words = ("partition", "reassign", "orders", "--replication-factor", "3")
    shown = on_a_terminal(*words, "-b", three.address)
    assert "━" in shown
    assert "100%" in shown
    assert shown.rstrip().endswith("moved 1 partition(s)")


def state_of(three: TemporaryCluster, broker: int) -> str:
    return next(row["state"] for row in json_of(three, "broker", "list") if row["id"] == broker)


def test_the_limits_of_a_move_that_was_interrupted_are_removed_by_the_next_wait(
    three: TemporaryCluster,
) -> None:
    """The move cannot end while its new replica's broker is down."""
    create(three, "orders", factor=1)
    leader = partition_of(three, "orders")["leader"]
    down = leader % 3 + 1
    three.kill(down)
    words = ("partition", "reassign", "orders", "--replicas", f"{leader},{down}")
    moving = subprocess.Popen(
        [*STRATA, *words, "--throttle", "50MB/s", "-b", three.address],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: len(partition_of(three, "orders")["replicas"]) == 2, "the move's begin")
    moving.send_signal(signal.SIGINT)
    _, said = moving.communicate(timeout=60)
    assert "strata partition reassign --wait removes them" in said
    described = ("config", "describe", "-b", three.address)
    assert "throttled" in strata(*described, "--topic", "orders").stdout
    three.restart(down)
    done = strata("partition", "reassign", "--wait", "-b", three.address)
    assert done.returncode == 0, done.stderr
    assert partition_of(three, "orders")["state"] == "in sync"
    for where in (("--topic", "orders"), *(("--broker", str(node)) for node in (1, 2, 3))):
        wait_for(lambda: "throttled" not in strata(*described, *where).stdout, "no limit")  # noqa: B023


def test_a_dry_run_counts_the_bytes_that_then_move(tmp_path: Path) -> None:
    """The bucket has most of the partition, and the leader's disk has all of it: a new replica fetches the rest."""
    settings = {
        "tier.url": (tmp_path / "bucket").as_uri(),
        "remote.log.manager.task.interval.ms": 200,
        "follower.fetch.last.tiered.offset.enable": True,
    }
    with cluster(3, settings) as three:
        config = {"remote.storage.enable": "true", "segment.bytes": str(SEGMENT_BYTES)}
        admin = AdminClient({"bootstrap.servers": three.address})
        for future in admin.create_topics([NewTopic("orders", 1, 1, config=config)]).values():
            future.result(30)
        producer = Producer({"bootstrap.servers": three.address, "batch.size": 16384})
        for _ in range(TIERED_RECORDS):
            producer.produce("orders", b"x" * 1000)
            producer.poll(0)
        assert producer.flush(60) == 0
        leader = partition_of(three, "orders")["leader"]
        wait_for(
            lambda: len(in_bucket(tmp_path)) == TIERED_RECORDS * 1000 // SEGMENT_BYTES, "a tier"
        )
        words = ("partition", "reassign", "orders", "--replication-factor", "2")
        plan = json_of(three, *words, "--dry-run", "--throttle", "1MB/s")
        assert plan["bytes"] < 2 * SEGMENT_BYTES
        assert plan["seconds"] == pytest.approx(plan["bytes"] / 1e6)
        json_of(three, *words)
        (added,) = {*partition_of(three, "orders")["replicas"]} - {leader}
        assert set(plan["brokers"]) == {leader, added}
        held = {row["id"]: row["bytes"] for row in json_of(three, "broker", "list")}
        assert held[leader] > TIERED_RECORDS * 1000
        assert held[added] == pytest.approx(plan["bytes"], rel=0.1)


def in_bucket(place: Path) -> list[Path]:
    """Return the tiered segments; another object may be renamed at any moment."""
    found = (place / "bucket").rglob("*.seg")
    return [one for one in found if one.stat().st_size > SEGMENT_BYTES // 2]
