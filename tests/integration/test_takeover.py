"""A real web site's log through a killed node and a node restored from its bucket: third-party clients get the same
records, and each group continues at its committed offsets.

Method: real processes and a directory as the bucket; `kill -9`, `strata restore --takeover`, a server on the restored
directory.
"""

import json
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaTopicPartition
from tests.integration.server_process import STRATA, Server, strata
from tests.integration.waiting import wait_for
from tests.known_log import LOG, STATUS

from stratalog import read

PARTITIONS = 3
TIMEOUT_S = 30
TIER = (
    "tier.enable=true",
    "tier.max.lag.ms=300",
    "tier.state.interval.ms=300",
    "remote.log.manager.task.interval.ms=300",
    "log.local.retention.bytes=1",
    "log.retention.check.interval.ms=300",
    "group.initial.rebalance.delay.ms=0",
    "offsets.topic.num.partitions=3",
)


def server(place: Path, bucket: str) -> Server:
    place.mkdir(exist_ok=True)
    return Server(place, [*TIER, f"tier.url={bucket}"])


def create(address: str, *names: str, configs: Mapping[str, str] | None = None) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    topics = [NewTopic(name, PARTITIONS, 1, config=dict(configs or {})) for name in names]
    for made in admin.create_topics(topics).values():
        made.result(TIMEOUT_S)


def produce(address: str, topic: str, lines: Iterable[bytes]) -> None:
    failures = []
    producer = Producer(
        {
            "bootstrap.servers": address,
            "enable.idempotence": True,
            "queue.buffering.max.messages": 20_000,
        }
    )
    for number, line in enumerate(lines):
        producer.produce(
            topic,
            line,
            partition=number % PARTITIONS,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0
    assert failures == []


def consume(address: str, topic: str, group: str, count: int) -> dict[tuple[int, int], bytes]:
    """Read `count` records or more as a member of a group; commit their offsets."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    found: dict[tuple[int, int], bytes] = {}
    consumer.subscribe([topic])

    def some_more() -> bool:
        found.update(map(place_and_value, consumer.consume(500, timeout=0.2)))
        return len(found) >= count

    try:
        wait_for(some_more, f"{count} records")
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return found


def place_and_value(message: Message) -> tuple[tuple[int, int], bytes]:
    assert message.error() is None, message.error()
    at, offset, value = message.partition(), message.offset(), message.value()
    assert at is not None
    assert offset is not None
    assert isinstance(value, bytes)
    return (at, offset), value


def statuses(lines: Iterable[bytes]) -> dict[int, int]:
    """Return the word after the quoted request, as awk does."""
    return dict(sorted(Counter(int(line.split(b'" ')[1].split()[0]) for line in lines).items()))


def restorable(bucket: str) -> tuple[dict[str, dict[str, int]], dict[str, int]]:
    """Run `strata restore`; return its topics by name, and its other fields."""
    done = strata("restore", bucket, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    return {topic["topic"]: topic for topic in report.pop("topics")}, report


def test_clients_and_groups_continue_at_a_restored_node(tmp_path: Path) -> None:
    bucket = (tmp_path / "bucket").as_uri()
    lines = LOG.read_bytes().splitlines()
    assert len(lines) == 10_000
    with server(tmp_path / "old", bucket) as old:
        create(old.address, "access_log")
        create(old.address, "local", configs={"remote.storage.enable": "false"})
        produce(old.address, "access_log", lines)
        before = consume(old.address, "access_log", "readers", 4_000)
        produce(old.address, "local", lines[:99])
        wait_for(lambda: restorable(bucket)[0]["access_log"]["records"] == 10_000, "all is tiered")
        wait_for(
            lambda: restorable(bucket)[0]["local"]["missing"] == 99,
            "the bucket has the cluster's state",
        )
        committed = len({partition for partition, _ in before})
        wait_for(
            lambda: restorable(bucket)[1]["offsets"] == committed, "the bucket has the offsets"
        )
        old.kill()
    topics, report = restorable(bucket)
    assert topics["access_log"]["missing"] == 0
    assert (report["groups"], report["incarnation"], report["damaged"]) == (1, 0, [])

    new = tmp_path / "new"
    done = strata("restore", bucket, "--takeover", "--data", str(new / "data"))
    assert done.returncode == 0, done.stderr
    assert "99 offset(s) of that state are not in the bucket" in done.stderr
    with server(new, bucket) as heir:
        rest = consume(heir.address, "access_log", "readers", 10_000 - len(before))
        assert not before.keys() & rest.keys(), "the group must continue at its committed offsets"
        assert statuses([*before.values(), *rest.values()]) == STATUS
        whole = consume(heir.address, "access_log", "others", 10_000)
        assert whole == before | rest
        assert whole == by_kafka_python(heir.address, whole)
        produce(heir.address, "access_log", lines[:300])
        more = consume(heir.address, "access_log", "readers", 300)
        assert {place for place in more if place in whole} == set(), (
            "the new node must give no offset twice"
        )
        assert sorted(more.values()) == sorted(lines[:300])
        wait_for(lambda: restorable(bucket)[0]["access_log"]["records"] == 10_300, "tiered")
        assert heir.stop() == 0
    answer = read("access_log", tier_url=bucket, columns=["value"])
    values = [value for batch in answer for value in batch.column("value").to_pylist()]
    assert sorted(values) == sorted([*lines, *lines[:300]])
    verified = strata("tier", "verify", bucket)
    assert verified.returncode == 0, verified.stdout


def by_kafka_python(
    address: str, like: Mapping[tuple[int, int], bytes]
) -> dict[tuple[int, int], bytes]:
    consumer = KafkaConsumer(bootstrap_servers=address, consumer_timeout_ms=TIMEOUT_S * 1000)
    places = [KafkaTopicPartition("access_log", number) for number in range(PARTITIONS)]
    consumer.assign(places)
    consumer.seek_to_beginning(*places)
    found: dict[tuple[int, int], bytes] = {}
    for record in consumer:
        found[record.partition, record.offset] = record.value
        if len(found) == len(like):
            break
    consumer.close()
    return found


def test_the_running_old_server_logs_one_line_and_stops(tmp_path: Path) -> None:
    bucket = (tmp_path / "bucket").as_uri()
    with server(tmp_path / "old", bucket) as old:
        create(old.address, "t")
        produce(old.address, "t", [b"%d" % n for n in range(300)])
        wait_for(lambda: restorable(bucket)[0]["t"]["records"] == 300, "all is tiered")
        new = tmp_path / "new"
        done = strata("restore", bucket, "--takeover", "--data", str(new / "data"), "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["incarnation"] == 1
        with server(new, bucket) as heir:
            lost = Producer({"bootstrap.servers": old.address})
            lost.produce("t", b"lost")
            lost.flush(1)
            wait_for(lambda: old.exit_code is not None, "the old server stops")
            assert old.exit_code == 2
            said = old.output.read_text()
            assert said.count("fenced: the cluster was taken over") == 1
            assert "Traceback" not in said
            values = consume(heir.address, "t", "readers", 300).values()
            assert sorted(values) == sorted(b"%d" % n for n in range(300))
            refused = started(tmp_path / "old", bucket)
            assert refused.returncode == 2
            (line,) = [one for one in refused.stderr.splitlines() if one.startswith("strata: ")]
            assert "was taken over at " in line
            assert heir.stop() == 0


def started(place: Path, bucket: str) -> "subprocess.CompletedProcess[str]":
    """Start a server that must refuse to start."""
    settings = [f"log.dirs={place / 'data'}", f"tier.url={bucket}", "listeners=PLAINTEXT://:0"]
    words = [word for setting in settings for word in ("--override", setting)]
    return subprocess.run(
        [*STRATA, "server", *words], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def filled(tmp_path: Path) -> str:
    """Make a bucket with a topic."""
    bucket = (tmp_path / "bucket").as_uri()
    with server(tmp_path / "old", bucket) as old:
        create(old.address, "t")
        assert old.stop() == 0
    return bucket


def test_mistakes_are_one_line_each_and_change_nothing(filled: str, tmp_path: Path) -> None:
    held = tmp_path / "held"
    held.mkdir()
    (held / "mine").write_text("x")
    file = tmp_path / "file"
    file.write_text("x")
    nothing = (tmp_path / "nothing").as_uri()
    for words, message in (
        ((filled, "--takeover"), "--takeover needs --data DIR"),
        ((filled, "--data", str(held)), "--data is for --takeover"),
        ((filled, "--takeover", "--data", str(held)), f"log directory {held} is not empty (mine"),
        (
            (filled, "--takeover", "--data", str(tmp_path / "old" / "data")),
            "is node 1's of cluster",
        ),
        ((filled, "--takeover", "--data", str(file)), f"log directory {file}: "),
        (
            (filled, "--takeover", "--data", str(tmp_path / "x"), "--brokers", "2,3"),
            "--brokers: 2, 3 lack node 1, which is restored",
        ),
        (
            (filled, "--takeover", "--data", str(tmp_path / "x"), "--brokers", "1,two"),
            "--brokers: '1,two' is not accepted",
        ),
        (
            (filled, "--takeover", "--data", str(tmp_path / "x"), "--replication-factor", "2"),
            "--replication-factor: 2 is not 1 to 1, the number of --brokers",
        ),
        ((nothing,), "holds no bucket of stratalog"),
        ((nothing, "--takeover", "--data", str(tmp_path / "x")), "holds no bucket of stratalog"),
        (("memory://x",), "a bucket in memory is seen by its own process only"),
        (("nonsense",), "nonsense"),
    ):
        done = strata("restore", *words)
        assert done.returncode == 2, done
        (line,) = done.stderr.splitlines()
        assert message in line
    assert restorable(filled)[1]["incarnation"] == 0
