"""The command against a real broker: an hour's normal use, and mistakes."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.server_process import STRATA, Server, strata, strata_process

from stratalog.adapters.free_ports import free_ports

TIER = (
    "remote.log.manager.task.interval.ms=100",
    "log.retention.check.interval.ms=100",
    "log.segment.delete.delay.ms=0",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("cli")
    with Server(place, [*TIER, f"tier.url={(place / 'bucket').as_uri()}"]) as started:
        yield started


@pytest.fixture
def topic(server: Server, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("[", "-").replace("]", "")[:80]
    made = strata("topic", "create", name, "-b", server.address)
    assert made.returncode == 0, made.stderr
    return name


def test_topics_are_created_listed_described_and_deleted(server: Server) -> None:
    at = ("-b", server.address)
    made = strata(
        "topic", "create", "life", "--partitions", "3", "-c", "retention.ms=-1", "--json", *at
    )
    assert made.returncode == 0, made.stderr
    row = json.loads(made.stdout)
    assert (row["topic"], row["partitions"], row["replicas"]) == ("life", 3, 1)
    assert len(row["id"]) == 22

    listed = json.loads(strata("topic", "list", "--json", *at).stdout)
    assert row in [{**topic, "topic": topic["topic"]} for topic in listed]
    assert "life" in strata("topic", "list", *at).stdout

    described = json.loads(strata("topic", "describe", "life", "--json", *at).stdout)
    assert described["configs"] == {"retention.ms": "-1"}
    assert [p["partition"] for p in described["partitions"]] == [0, 1, 2]
    assert all(p["start"] == p["end"] == 0 and p["isr"] == [1] for p in described["partitions"])

    assert strata("topic", "delete", "life", *at).returncode == 0
    assert "life" not in [
        topic["topic"] for topic in json.loads(strata("topic", "list", "--json", *at).stdout)
    ]


def test_lines_are_produced_and_consumed_unchanged(
    server: Server, topic: str, tmp_path: Path
) -> None:
    lines = [f"k{i % 7}\tvalue {i} é" for i in range(2000)]
    (tmp_path / "lines").write_text("\n".join(lines))
    at = ("-b", server.address)
    sent = strata(
        "produce",
        topic,
        str(tmp_path / "lines"),
        "--key-separator",
        "\t",
        "--compression",
        "zstd",
        *at,
    )
    assert sent.returncode == 0, sent.stderr
    assert "2000 record(s)" in sent.stderr

    read = strata(
        "consume", topic, "--from", "beginning", "--until-end", "--key-separator", "\t", *at
    )
    assert read.returncode == 0, read.stderr
    assert read.stdout.splitlines() == lines

    some = strata("consume", topic, "--from", "1990", "--max-messages", "3", "--json", *at)
    records = [json.loads(line) for line in some.stdout.splitlines()]
    assert [(r["offset"], r["key"], r["value"]) for r in records] == [
        (i, f"k{i % 7}", f"value {i} é") for i in (1990, 1991, 1992)
    ]


def test_keys_go_to_the_partition_kafka_chooses(server: Server) -> None:
    at = ("-b", server.address)
    strata("topic", "create", "spread", "--partitions", "4", *at)
    strata(
        "produce",
        "spread",
        "--key-separator",
        ":",
        *at,
        stdin="".join(f"key-{i}:{i}\n" for i in range(40)),
    )
    read = strata("consume", "spread", "--from", "beginning", "--until-end", "--json", *at)
    partitions = {r["key"]: r["partition"] for r in map(json.loads, read.stdout.splitlines())}
    assert len(partitions) == 40
    # Facts of Kafka's default partitioner: murmur2 of the key, modulo the count.
    from stratalog.wire.murmur2 import partition_of_key

    assert partitions == {key: partition_of_key(key.encode(), 4) for key in partitions}
    only = strata(
        "consume", "spread", "--partition", "2", "--from", "beginning", "--until-end", "--json", *at
    )
    assert {json.loads(line)["partition"] for line in only.stdout.splitlines()} == {2}


def test_bytes_that_are_not_text_are_consumed_unchanged(server: Server, topic: str) -> None:
    at = ("-b", server.address)
    strata("produce", topic, *at, stdin=b"\xff\x00\xfe\n")
    (line,) = strata(
        "consume", topic, "--from", "beginning", "--until-end", "--json", *at
    ).stdout.splitlines()
    assert json.loads(line)["value_base64"] == "/wD+"


def test_timestamps_outside_retention_warn(server: Server, topic: str) -> None:
    at = ("-b", server.address)
    old = strata(
        "produce", topic, "--timestamp-separator", " ", *at, stdin="1431821106000 from 2015\n"
    )
    assert old.returncode == 0, old.stderr
    assert "warning: 1 record(s) are older than" in old.stderr
    assert "retention.ms=604800000" in old.stderr
    new = strata("produce", topic, *at, stdin="now\n")
    assert "warning" not in new.stderr
    far = strata("produce", topic, "--timestamp", str(2**42 * 3), *at, stdin="the year 2388\n")
    assert far.returncode == 2
    assert "message.timestamp.after.max.ms" in far.stderr


def test_consume_starts_at_a_time(server: Server, topic: str) -> None:
    at = ("-b", server.address)
    now_ms = time.time_ns() // 1_000_000
    lines = "".join(f"{now_ms - 10_000 + i * 1000} line {i}\n" for i in range(5))
    strata("produce", topic, "--timestamp-separator", " ", *at, stdin=lines)
    # All lines may be in one batch: the search must end at the record, not at its batch.
    read = strata("consume", topic, "--from", f"@{now_ms - 8000}", "--until-end", *at)
    assert read.stdout.splitlines() == ["line 2", "line 3", "line 4"]


def test_consume_until_interrupted(server: Server, topic: str) -> None:
    command = [*STRATA, "consume", topic, "--from", "beginning", "-b", server.address]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as reader:
        strata("produce", topic, "-b", server.address, stdin="one\ntwo\n")
        assert reader.stdout is not None
        assert [reader.stdout.readline(), reader.stdout.readline()] == ["one\n", "two\n"]
        reader.send_signal(signal.SIGINT)
        _, said = reader.communicate(timeout=30)
    assert reader.returncode == 0
    assert "2 record(s)" in said
    assert "Traceback" not in said


def test_a_reader_that_closes_the_output_is_not_an_error(server: Server, topic: str) -> None:
    strata("produce", topic, "-b", server.address, stdin="x" * 100 + "\n" + "y\n" * 200_000)
    command = [*STRATA, "consume", topic, "--from", "beginning", "-b", server.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"x" * 100 + b"\n"
        reader.stdout.close()
        assert reader.stderr is not None
        assert reader.stderr.read() == b""
    assert reader.returncode == 0


def tiered(server: Server, name: str) -> Path:
    """A topic with two tiered segments; the bucket."""
    at = ("-b", server.address)
    configs = [
        "remote.storage.enable=true",
        "segment.bytes=1048576",
        "local.retention.ms=0",
        "retention.ms=-1",
    ]
    made = strata("topic", "create", name, *[w for c in configs for w in ("-c", c)], *at)
    assert made.returncode == 0, made.stderr
    strata("produce", name, *at, stdin="".join(f"{i:06d} {'z' * 990}\n" for i in range(3000)))
    bucket = server.place / "bucket"
    deadline = time.monotonic() + 60
    while len(objects_of(bucket, name)) < 2:
        assert time.monotonic() < deadline, server.said()
        time.sleep(0.05)
    return bucket


def objects_of(bucket: Path, name: str) -> list[str]:
    """Return the entries of the newest manifests."""
    done = strata("tier", "describe", bucket.as_uri(), name, "--json")
    if done.returncode != 0:
        return []
    return [s["object"] for manifest in json.loads(done.stdout) for s in manifest["segments"]]


def test_the_bucket_is_listed_and_described(server: Server) -> None:
    bucket = tiered(server, "listed")
    (row,) = [
        r
        for r in json.loads(strata("tier", "list", bucket.as_uri(), "--json").stdout)
        if r["topic"] == "listed"
    ]
    assert row["segments"] >= 2
    assert row["records"] > 1000
    described = strata("tier", "describe", bucket.as_uri(), "listed")
    for path in objects_of(bucket, "listed"):
        assert path in described.stdout.replace("\n", "")
    assert strata("tier", "verify", bucket.as_uri()).returncode == 0


def test_verify_names_altered_and_missing_objects(tmp_path: Path) -> None:
    with Server(tmp_path, [*TIER, f"tier.url={(tmp_path / 'bucket').as_uri()}"]) as server:
        bucket = tiered(server, "damaged")
        assert server.stop() == 0
    sound = strata("tier", "verify", bucket.as_uri())
    assert sound.returncode == 0, sound.stdout + sound.stderr

    victim = bucket / objects_of(bucket, "damaged")[0]
    data = victim.read_bytes()
    for at in (0, len(data) // 2, len(data) - 1):
        victim.write_bytes(data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :])
        altered = strata("tier", "verify", bucket.as_uri())
        assert altered.returncode == 1
        assert victim.relative_to(bucket).as_posix() in altered.stdout

    victim.unlink()
    missing = strata("tier", "verify", bucket.as_uri(), "--json")
    assert missing.returncode == 1
    report = json.loads(missing.stdout)
    assert not report["sound"]
    assert [p["path"] for p in report["problems"]] == [victim.relative_to(bucket).as_posix()]

    victim.write_bytes(data)
    stray = victim.with_name(victim.name.replace(victim.stem[-8:], "0" * 8))
    stray.write_bytes(data)
    os.utime(stray, (1, 1))
    orphan = strata("tier", "verify", bucket.as_uri())
    assert orphan.returncode == 1
    assert stray.stem in orphan.stdout


def test_log_dump_prints_the_batches_of_a_file(server: Server, topic: str, tmp_path: Path) -> None:
    strata("produce", topic, "--key-separator", "=", "-b", server.address, stdin="a=1\nb=2\n")
    file = server.data / f"{topic}-0" / f"{0:020}.log"
    (batch,) = json.loads(strata("log", "dump", str(file), "--json").stdout)
    assert (batch["offset"], batch["last"], batch["records"], batch["kind"]) == (0, 1, 2, "data")
    records = json.loads(strata("log", "dump", str(file), "--records", "--json").stdout)["records"]
    assert [(r["key"], r["value"]) for r in records] == [("a", "1"), ("b", "2")]
    assert "'a'  '1'" in strata("log", "dump", str(file), "--records").stdout

    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    (tmp_path / "bad.log").write_bytes(data)
    bad = strata("log", "dump", str(tmp_path / "bad.log"))
    assert bad.returncode == 1
    assert "wrong CRC" in bad.stderr
    (tmp_path / "torn.log").write_bytes(data[:-1])
    torn = strata("log", "dump", str(tmp_path / "torn.log"))
    assert torn.returncode == 1
    assert "no whole batch" in torn.stderr


def test_sigterm_ends_cleanly_and_a_restart_has_all_records(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        strata("topic", "create", "kept", "-b", server.address)
        strata("produce", "kept", "-b", server.address, stdin="1\n2\n3\n")
        assert server.stop() == 0
    (row,) = json.loads(
        strata("storage", "info", "--override", f"log.dirs={server.data}", "--json").stdout
    )
    assert row["formatted"]
    assert row["clean_shutdown"]
    assert row["node_id"] == 1
    with Server(tmp_path) as again:
        read = strata("consume", "kept", "--from", "beginning", "--until-end", "-b", again.address)
        assert read.stdout.splitlines() == ["1", "2", "3"]


def line_of(done: subprocess.CompletedProcess[str]) -> str:
    """Return the single line of an error."""
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("strata: ")]
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_a_taken_port_is_one_line(server: Server, tmp_path: Path) -> None:
    taken = strata_process(
        "server",
        "--override",
        f"listeners=PLAINTEXT://127.0.0.1:{server.port}",
        "--override",
        f"log.dirs={tmp_path}",
    )
    assert f"127.0.0.1:{server.port}" in line_of(taken)


def test_a_locked_directory_is_one_line(server: Server) -> None:
    words = (
        "--override",
        "listeners=PLAINTEXT://127.0.0.1:0",
        "--override",
        f"log.dirs={server.data}",
    )
    assert "in use by another process" in line_of(strata_process("server", *words))
    assert "in use by another process" in line_of(strata("storage", "format", *words))


def test_directory_of_another_node_or_cluster_is_refused(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    strata("storage", "format", "--override", f"log.dirs={one}", "--override", "node.id=5")
    strata("storage", "format", "--override", f"log.dirs={two}", "--override", "node.id=5")
    other_node = strata_process("server", "--override", f"log.dirs={one}")
    assert "node 5" in line_of(other_node)
    other_cluster = strata_process(
        "server", "--override", f"log.dirs={one},{two}", "--override", "node.id=5"
    )
    assert "different clusters" in line_of(other_cluster)


def test_storage_is_formatted_once(tmp_path: Path) -> None:
    where = ("--override", f"log.dirs={tmp_path / 'data'}")
    first = strata("storage", "format", "--cluster-id", "MkU3OEVBNTcwNTJENDM2Qg", *where)
    assert first.returncode == 0, first.stderr
    assert "already" in line_of(strata("storage", "format", *where))
    assert strata("storage", "format", "--ignore-formatted", *where).returncode == 0
    (row,) = json.loads(strata("storage", "info", "--json", *where).stdout)
    assert row["cluster_id"] == "MkU3OEVBNTcwNTJENDM2Qg"
    assert "--cluster-id" in line_of(strata("storage", "format", "--cluster-id", "short", *where))


def test_an_unreachable_broker_is_one_line() -> None:
    with socket.socket() as held:  # without a listener, and no other test gets the port
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        waiting = [
            subprocess.Popen(
                [*STRATA, *words, "-b", address],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for words in (["topic", "list"], ["produce", "t"], ["consume", "t"])
        ]
        for process in waiting:
            said, errors = process.communicate(timeout=60)
            done = subprocess.CompletedProcess(process.args, process.returncode, said, errors)
            assert f"strata: broker {address} unreachable" in line_of(done)
    assert "--bootstrap-server" in line_of(strata("topic", "list", "-b", "nonsense"))


def test_a_command_waits_for_a_server_that_is_starting(tmp_path: Path) -> None:
    (port,) = free_ports(1)  # not one that another test may get meanwhile
    command = [*STRATA, "topic", "create", "t", "-b", f"127.0.0.1:{port}"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as early:
        assert early.stderr is not None
        noted = early.stderr.readline()
        with Server(tmp_path, port=port):
            _, said = early.communicate(timeout=60)
    assert "Connection refused; trying again for 20 s" in noted
    assert (early.returncode, said) == (0, "created topic t with 1 partition(s)\n")


def test_a_missing_or_refused_topic_is_one_line(server: Server) -> None:
    at = ("-b", server.address)
    for words in (
        ["topic", "describe", "no"],
        ["topic", "delete", "no"],
        ["produce", "no"],
        ["consume", "no"],
    ):
        assert "topic no does not exist" in line_of(strata(*words, *at))
    assert "INVALID_CONFIG" in line_of(
        strata("topic", "create", "t", "-c", "retention.ms=soon", *at)
    )
    assert "'soon'" in line_of(strata("topic", "create", "t", "-c", "retention.ms=soon", *at))
    assert "INVALID_TOPIC" in line_of(strata("topic", "create", "no/slash", *at))
    strata("topic", "create", "twice", *at)
    assert "TOPIC_ALREADY_EXISTS" in line_of(strata("topic", "create", "twice", *at))
    assert strata("topic", "create", "twice", "--if-not-exists", *at).returncode == 0
    assert "has no partition 9" in line_of(strata("consume", "twice", "--partition", "9", *at))
    assert "OFFSET_OUT_OF_RANGE" in line_of(strata("consume", "twice", "--from", "99", *at))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["server", "--override", "log.retention.ms=soon"],
            "log.retention.ms: 'soon' is not accepted",
        ),
        (["server", "--override", "node.id"], "expected NAME=VALUE"),
        (["server", "missing.properties"], "missing.properties: No such file"),
        (["server", "--override", "tier.url=nowhere"], "tier.url"),
        (["produce", "t", "missing.txt"], "missing.txt: No such file"),
        (["produce", "t", "--compression", "rar"], "none, gzip, snappy, lz4, zstd"),
        (["produce", "t", "--acks", "2"], "all, 1, 0"),
        (["log", "dump", "missing.log"], "missing.log: No such file"),
        (["tier", "list", "file:///no/such/bucket"], "/no/such/bucket"),
        (["tier", "list", "memory://x"], "memory"),
        (["tier", "list", "ftp://x"], "ftp://x"),
        (["storage", "info", "--override", "log.dirs=no/such"], "no/such does not exist"),
    ],
)
def test_a_users_mistake_is_one_line(words: list[str], said: str, tmp_path: Path) -> None:
    assert said in line_of(strata(*words, cwd=tmp_path))


def test_environment_file_and_override_reach_the_broker(tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text(
        "log.retention.ms=1\nnum.partitions=2\nnum.io.threads=8\nlog.retentoin.ms=1"
    )
    done = strata(
        "storage",
        "format",
        str(tmp_path / "server.properties"),
        "--override",
        f"log.dirs={tmp_path / 'data'}",
        environ={"STRATA_NODE_ID": "42"},
    )
    assert done.returncode == 0, done.stderr
    assert "for node 42" in done.stderr
    assert (
        "warning: settings without effect here (docs/settings.md): num.io.threads (file, Kafka's), log.retentoin.ms "
        "(file, unknown; did you mean log.retention.ms?)" in done.stderr
    )


@pytest.mark.serial
def test_demo_prints_each_of_its_steps() -> None:
    done = strata_process("demo")
    assert done.returncode == 0, done.stderr
    for step in (
        "A broker listens",
        "Produced 40,000",
        "in the bucket",
        "Read 40,000",
        "is gone",
        "All is as it was",
    ):
        assert step in done.stdout
