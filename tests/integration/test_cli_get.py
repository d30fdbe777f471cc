"""`strata get` against a real broker with a bucket: history and tail, one key, one offset, mistakes in one line."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from confluent_kafka import Producer
from tests.cluster_processes import ClusterProcesses
from tests.integration.server_process import Server, strata

from stratalog.adapters.object_store import open_store
from stratalog.cli.records.get import bucket_of
from stratalog.tier.formats.key_filter import PAGE_BYTES
from stratalog.tier.reading.reader import open_bucket
from stratalog.wire.murmur2 import partition_of_key

PARTITIONS = 3
TIERED, RECORDS = 300, 360
CONFIGS = (
    "tier.key.filter=true",
    "remote.storage.enable=true",
    "tier.max.lag.ms=1000",
    "retention.ms=-1",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("get")


@pytest.fixture(scope="module")
def server(place: Path) -> Iterator[Server]:
    settings = [
        "tier.enable=true",
        f"tier.url={(place / 'bucket').as_uri()}",
        "remote.log.manager.task.interval.ms=100",
        f"num.partitions={PARTITIONS}",
    ]
    with Server(place, settings) as started:
        at = ("-b", started.address)
        made = strata("topic", "create", "orders", *(f"-c{one}" for one in CONFIGS), *at)
        assert made.returncode == 0, made.stderr
        produce(started, 0, TIERED)
        until_tiered(place)
        quiet = strata("config", "alter", "--topic", "orders", "--set", "tier.max.lag.ms=-1", *at)
        assert quiet.returncode == 0, quiet.stderr
        produce(started, TIERED, RECORDS)
        yield started


def produce(server: Server, first: int, end: int) -> None:
    """Records with the keys k0 to k9 in turn, which Java's partitioner places."""
    producer = Producer({"bootstrap.servers": server.address, "partitioner": "murmur2_random"})
    for number in range(first, end):
        producer.produce("orders", f"value-{number}", f"k{number % 10}", timestamp=1000 + number)
    assert producer.flush(60) == 0


def until_tiered(place: Path) -> None:
    bucket = open_bucket(open_store((place / "bucket").as_uri()))
    deadline = time.monotonic() + 60
    while True:
        topic = bucket.topic("orders")
        found = bucket.manifests(topic).values() if topic is not None else ()
        if sum(manifest.tiered_end for manifest in found) == TIERED:
            assert all(one.entry.key_pages for m in found for one in bucket.live(m))
            return
        assert time.monotonic() < deadline, "the segments are not in the bucket"
        time.sleep(0.1)


def got(server: Server, *words: str) -> list[dict[str, Any]]:
    done = strata("get", "orders", *words, "--json", "-b", server.address)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_last_record_of_a_key_is_printed(server: Server) -> None:
    done = strata("get", "orders", "k3", "-b", server.address)
    assert (done.returncode, done.stdout) == (0, "value-353\n")
    read = re.search(r"from the bucket (\d+) bytes in (\d+) requests", done.stderr)
    assert read is not None
    assert int(read[1]) == PAGE_BYTES * int(read[2]), "the tail has it: only pages are read"


@pytest.mark.parametrize("words", [(), ("--partitioner", "murmur2"), ("--tier-url", "none")])
def test_all_records_of_a_key_come_from_history_and_tail(
    server: Server, words: tuple[str, ...]
) -> None:
    found = got(server, "k3", "--all", *words)
    assert [one["value"] for one in found] == [f"value-{at}" for at in range(3, RECORDS, 10)]
    assert {one["partition"] for one in found} == {partition_of_key(b"k3", PARTITIONS)}
    other = (partition_of_key(b"k3", PARTITIONS) + 1) % PARTITIONS
    missed = strata("get", "orders", "k3", "--partition", str(other), "-b", server.address)
    assert missed.returncode == 2
    assert missed.stderr == f"strata: orders-{other} has no record with the key k3\n"


def test_a_key_that_another_partitioner_placed_is_explained(server: Server) -> None:
    at = ("-b", server.address)
    created = strata("topic", "create", "others", "--partitions", str(PARTITIONS), *at)
    assert created.returncode == 0, created.stderr
    keys = [f"k{number}" for number in range(50)]
    producer = Producer({"bootstrap.servers": server.address, "partitioner": "consistent"})
    for key in keys:
        producer.produce("others", "value", key)
    assert producer.flush(60) == 0
    missed = next(
        key
        for key in keys
        if crc32(key.encode()) % PARTITIONS != partition_of_key(key.encode(), PARTITIONS)
    )
    done = strata("get", "others", missed, "--partitioner", "murmur2", *at)
    assert done.returncode == 2
    assert done.stderr.startswith(
        f"strata: others has no record with the key {missed}; topic others: "
    )
    assert "and CRC32 (librdkafka's default) placed 50: read without a partitioner" in done.stderr


def test_an_offset_is_read_from_history_and_from_the_tail(server: Server) -> None:
    index = partition_of_key(b"k3", PARTITIONS)
    for record in (*got(server, "k3", "--all")[:2], *got(server, "k3")):
        place = ("--partition", str(index), "--offset", str(record["offset"]))
        assert got(server, *place) == [record]


def test_the_bucket_is_enough(server: Server, place: Path) -> None:
    url = (place / "bucket").as_uri()
    alone = ("--tier-url", url, "--tier-only")
    found = [one["value"] for one in got(server, "k3", "--all", *alone)]
    assert found == [f"value-{at}" for at in range(3, TIERED, 10)]
    done = strata("get", "orders", "absent", *alone)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "strata: orders has no record with the key absent\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "name a KEY, or a record by --partition and --offset"),
        (("k", "--offset", "3"), "name a KEY, or a record by --partition and --offset"),
        (("--offset", "3"), "--offset: each partition has its own; name one with --partition"),
        (
            ("--partition", "0", "--offset", "99999"),
            "orders-0: offset 100000 lies behind the log's end",
        ),
        (
            ("--partition", "0", "--offset", "0", "--partitioner", "murmur2"),
            "chooses a partition by the key",
        ),
        (("k", "--partition", "7"), "topic orders has no partition 7"),
        (("k", "--partitioner", "crc32"), "--partitioner"),
        (("k", "--tier-only"), "--tier-only: name the bucket with --tier-url"),
        (("k", "--tier-url", "nowhere"), "nowhere"),
    ],
)
def test_a_mistake_is_one_line(server: Server, words: tuple[str, ...], says: str) -> None:
    done = strata("get", "orders", *words, "-b", server.address)
    assert done.returncode == 2
    assert done.stdout == ""
    assert says in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


def test_a_topic_that_does_not_exist_is_named(server: Server) -> None:
    done = strata("get", "nothing", "k", "-b", server.address)
    assert done.returncode == 2
    assert done.stderr.startswith("strata: topic nothing does not exist")


def test_each_broker_of_a_cluster_leads_to_its_bucket(tmp_path: Path) -> None:
    """A broker knows only its own settings, and metadata names brokers in the order of their registrations."""
    url = (tmp_path / "bucket").as_uri()
    with closing(ClusterProcesses(tmp_path, 3, {"tier.enable": "true", "tier.url": url})) as nodes:
        nodes.start([2, 3])
        nodes.start([1])
        found = [bucket_of(address, None) for address in nodes.address.split(",")]
    assert found == [url] * 3
