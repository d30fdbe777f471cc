"""`strata perf` against a real broker: it counts exactly the records that it sent and read."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.integration.server_process import Server, strata

from stratalog.cli.speed.sweep import broker_cpu

CODECS = {"none", "gzip", "snappy", "lz4", "zstd"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("perf"), ["monitor.listener=127.0.0.1:0"]) as started:
        yield started


def ok(server: Server, *words: str) -> str:
    done = strata(*words, "-b", server.address)
    assert done.returncode == 0, done.stderr
    return done.stdout


def values(server: Server, topic: str, partitions: int, count: int) -> list[bytes]:
    """Return the values that a third-party client reads."""
    consumer = Consumer({"bootstrap.servers": server.address, "group.id": "looks"})
    try:
        consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
        found = consumer.consume(count, timeout=30)
        assert [message.error() for message in found] == [None] * count
        return [message.value() for message in found]
    finally:
        consumer.close()


def test_perf_consume_reads_all_that_perf_produce_sent(server: Server) -> None:
    ok(server, "topic", "create", "sent", "--partitions", "3")
    small = ("-X", "batch.size=4000", "-X", "acks=1", "-X", "compression.type=lz4")
    sent = json.loads(
        ok(server, "perf", "produce", "sent", "--num-records", "3000", "--record-size", "100")
        and ok(server, "perf", "produce", "sent", "--num-records", "2000", "--json", *small)
    )
    assert sent["records"] == 2000
    assert 0 < sent["latency_ms"]["p50"] <= sent["latency_ms"]["p99_9"] <= sent["latency_ms"]["max"]
    assert {len(value) for value in values(server, "sent", 3, 5000)} == {100, 1024}
    read = json.loads(ok(server, "perf", "consume", "sent", "--json"))
    assert read["records"] == 5000
    some = json.loads(ok(server, "perf", "consume", "sent", "--num-records", "10", "--json"))
    assert 10 <= some["records"] <= 5000
    assert " records read, " in ok(server, "perf", "consume", "sent")


def test_a_payload_file_is_sent_repeatedly(server: Server, tmp_path: Path) -> None:
    ok(server, "topic", "create", "file")
    (tmp_path / "lines").write_text("one\ntwo\nthree\n")
    line = ok(
        server,
        *("perf", "produce", "file", "--num-records", "7"),
        *("--payload-file", str(tmp_path / "lines"), "--throughput", "1000", "-X", "linger.ms=0"),
    )
    assert line.startswith("7 records sent, ")
    assert " ms 99.9th." in line
    assert values(server, "file", 1, 7) == [
        b"one",
        b"two",
        b"three",
        b"one",
        b"two",
        b"three",
        b"one",
    ]


def test_perf_consume_ends_when_no_record_comes(server: Server) -> None:
    ok(server, "topic", "create", "silent")
    done = strata(
        *("perf", "consume", "silent", "--num-records", "1", "--timeout", "50"),
        *("-b", server.address),
    )
    assert done.returncode == 0
    assert "nothing came for 50 ms: read 0 records" in done.stderr


def test_a_sweep_measures_every_codec_and_leaves_no_topic(server: Server, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text(
        "".join(f"line {n} says the same as others\n" for n in range(3000))
    )
    words = ("perf", "produce", "--sweep", str(tmp_path / "lines"), "--seconds", "0.1")
    rows = json.loads(ok(server, *words, "--json", "--broker-pid", str(server.pid)))
    assert {row["codec"] for row in rows} == CODECS
    assert [row["batch_bytes"] for row in rows[:2]] == [16384, 65536]
    assert len(rows) == 10  # the larger batches would hold the file twice
    for row in rows:
        assert (row["ratio"] > 2) == (row["codec"] != "none"), row
        assert row["records_s"] > 0
        assert row["broker_cpu"] is not None
        assert row["client_cpu"] > 0
    table = ok(server, *words)
    assert [line.split()[5] for line in table.splitlines()[1:]] == ["-"] * 10
    topics = {row["topic"] for row in json.loads(ok(server, "topic", "list", "--json"))}
    assert not [topic for topic in topics if topic.startswith("strata-perf")]


def test_the_brokers_cpu_time_by_pid_and_by_metrics_agree(server: Server, tmp_path: Path) -> None:
    port = json.loads((server.place / "ready.json").read_text())["monitor_port"]
    url = f"http://127.0.0.1:{port}/metrics"
    by_metrics, by_pid = broker_cpu(url, None), broker_cpu(None, server.pid)
    assert by_metrics is not None
    assert by_pid is not None
    tick_s = 0.02  # the system reports CPU time in hundredths of a second
    for _ in range(3):
        least = by_pid()
        reported = by_metrics()
        assert least - tick_s <= reported <= by_pid() + tick_s
    (tmp_path / "lines").write_text("one line\n" * 3000)
    words = ("perf", "produce", "--sweep", str(tmp_path / "lines"), "--seconds", "0.1")
    rows = json.loads(ok(server, *words, "--json", "--metrics", url))
    assert all(row["broker_cpu"] is not None for row in rows)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["perf", "produce"], "name a TOPIC, or give --sweep FILE"),
        (["perf", "produce", "t", "--sweep", "f"], "leave t out"),
        (["perf", "produce", "missing"], "topic missing does not exist"),
        (["perf", "consume", "missing"], "topic missing does not exist"),
        (["perf", "produce", "t", "--record-size", "1", "--payload-file", "f"], "give one of"),
        (["perf", "produce", "t", "--payload-file", "no"], "no: No such file"),
        (["perf", "consume", "t", "-X", "group.id=g"], "not a setting of this client"),
    ],
)
def test_a_users_mistake_is_one_line(server: Server, words: list[str], said: str) -> None:
    done = strata(*words, "-b", server.address)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert said in line


def test_an_unknown_cpu_time_is_reported(server: Server, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("a\n")
    words = ("perf", "produce", "--sweep", str(tmp_path / "lines"), "-b", server.address)
    gone = strata(*words, "--broker-pid", str(2**22 + 1))
    assert gone.returncode == 2
    assert "--broker-pid 4194305: the CPU time is not available" in gone.stderr
    assert "accepted: http://" in strata(*words, "--metrics", "file:///x").stderr
    assert (
        "the CPU time is not available" in strata(*words, "--metrics", "http://127.0.0.1:1/").stderr
    )
    assert os.getpid() != server.pid
