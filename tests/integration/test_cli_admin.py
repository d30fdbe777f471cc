"""Topics, settings and groups changed with `strata`, and checked with third-party clients."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource
from tests.integration.server_process import Server, strata

from stratalog.cli.cluster.topic import skew_of


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    # A separate process: the broker's log lines must not mix with the command's output.
    quick = ("node.id=1", "group.initial.rebalance.delay.ms=0", "offsets.topic.num.partitions=1")
    with Server(tmp_path_factory.mktemp("admin"), quick) as started:
        yield started


def ok(broker: Server, *words: str, stdin: str = "") -> str:
    done = strata(*words, "-b", broker.address, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(broker: Server, *words: str) -> str:
    done = strata(*words, "-b", broker.address)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def foreign_configs(broker: Server, topic: str) -> dict[str, str]:
    admin = AdminClient({"bootstrap.servers": broker.address})
    (future,) = admin.describe_configs([ConfigResource("topic", topic)]).values()
    return {name: entry.value for name, entry in future.result(20).items()}


def test_topic_alter_changes_settings_and_partitions(one: Server) -> None:
    ok(one, "topic", "create", "altered", "-c", "retention.ms=5000")
    ok(
        one,
        "topic",
        "alter",
        "altered",
        "--partitions",
        "3",
        "-s",
        "segment.ms=7000",
        "-u",
        "retention.ms",
    )
    described = json.loads(ok(one, "topic", "describe", "altered", "--json"))
    assert described["configs"] == {"segment.ms": "7000"}
    assert len(described["partitions"]) == 3
    assert foreign_configs(one, "altered")["segment.ms"] == "7000"
    assert "INVALID_PARTITIONS" in refused(one, "topic", "alter", "altered", "--partitions", "1")
    assert "INVALID_CONFIG" in refused(one, "topic", "alter", "altered", "-s", "retention.ms=soon")
    assert "nothing to change" in refused(one, "topic", "alter", "altered")
    assert "does not exist" in refused(one, "topic", "alter", "no", "--partitions", "2")


def test_topic_describe_shows_the_sizes_and_skew_of_the_records(one: Server) -> None:
    ok(one, "topic", "create", "skewed", "--partitions", "4")
    lines = "".join(f"{'x' * 100}\n" for _ in range(60))
    ok(one, "produce", "skewed", "--partition", "1", stdin=lines)
    ok(one, "produce", "skewed", "--partition", "2", stdin=lines[: 101 * 20])
    described = json.loads(ok(one, "topic", "describe", "skewed", "--json"))
    assert [row["records"] for row in described["partitions"]] == [0, 60, 20, 0]
    files = [(one.data / f"skewed-{i}" / f"{0:020}.log").stat().st_size for i in range(4)]
    assert [row["bytes"] for row in described["partitions"]] == files
    assert described["skew"]["records"] == 3.0
    assert "80 records, skew 3.00" in ok(one, "topic", "describe", "skewed")


def test_skew_of_even_and_of_empty_partitions() -> None:
    assert skew_of([5, 5, 5]) == skew_of([0, 0]) == skew_of([]) == 1.0
    assert skew_of([9, 0, 0]) == 3.0


def test_config_describe_shows_each_settings_source(one: Server) -> None:
    ok(one, "topic", "create", "shown", "-c", "retention.ms=5000")
    rows = json.loads(ok(one, "config", "describe", "--topic", "shown", "--json"))
    assert [(r["name"], r["value"], r["from"]) for r in rows if r["from"] == "topic"] == [
        ("retention.ms", "5000", "topic")
    ]
    every = json.loads(ok(one, "config", "describe", "--topic", "shown", "--all", "--json"))
    assert len(every) > 20
    ok(one, "config", "alter", "--topic", "shown", "-s", "retention.ms=6000")
    assert foreign_configs(one, "shown")["retention.ms"] == "6000"
    own = json.loads(ok(one, "config", "describe", "--broker", "1", "--json"))
    assert {r["name"]: r["from"] for r in own}["node.id"] == "broker"
    assert "name one of" in refused(one, "config", "describe")
    assert "name one of" in refused(one, "config", "describe", "--topic", "a", "--broker", "1")


def committed(broker: Server, group: str, topic: str, partitions: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": group})
    try:
        asked = [TopicPartition(topic, index) for index in range(partitions)]
        return [one.offset for one in consumer.committed(asked, timeout=20)]
    finally:
        consumer.close()


def test_a_group_is_described_moved_and_deleted(one: Server) -> None:
    ok(one, "topic", "create", "read", "--partitions", "2")
    producer = Producer({"bootstrap.servers": one.address})
    for index in (0, 0, 0, 1):
        producer.produce("read", b"x", partition=index)
    producer.flush(20)
    consumer = Consumer(
        {
            "bootstrap.servers": one.address,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["read"])
    seen = [consumer.poll(20) for _ in range(4)]
    assert all(message is not None and message.error() is None for message in seen)
    consumer.commit(offsets=[TopicPartition("read", 0, 1)], asynchronous=False)

    assert {"group": "readers", "state": "Stable", "type": "consumer"} in json.loads(
        ok(one, "group", "list", "--json")
    )
    described = json.loads(ok(one, "group", "describe", "readers", "--json"))
    assert (described["state"], described["members"], described["lag"]) == ("Stable", 1, 2)
    rows = {row["partition"]: row for row in described["partitions"]}
    assert (rows[0]["offset"], rows[0]["end"], rows[0]["lag"]) == (1, 3, 2)
    assert (rows[1]["offset"], rows[1]["lag"]) == (None, None)
    assert rows[0]["member"] == rows[1]["member"]
    move = ("group", "reset-offsets", "readers", "--topic", "read", "--to")
    assert "has 1 member(s)" in refused(one, *move, "end")
    assert "NON_EMPTY_GROUP" in refused(one, "group", "delete", "readers")
    consumer.close()

    tried = json.loads(ok(one, *move, "end", "--dry-run", "--json"))
    assert [(row["before"], row["offset"]) for row in tried] == [(1, 3), (None, 1)]
    assert committed(one, "readers", "read", 2)[0] == 1
    ok(one, *move, "end")
    assert committed(one, "readers", "read", 2) == [3, 1]
    ok(one, *move, "99", "--partition", "0")  # the nearest existing offset
    assert committed(one, "readers", "read", 2) == [3, 1]
    ok(one, *move, "beginning")
    assert committed(one, "readers", "read", 2) == [0, 0]
    assert "lag 4" in ok(one, "group", "describe", "readers")
    ok(one, "group", "delete", "readers")
    assert "readers" not in ok(one, "group", "list")
    for words in (("group", "describe", "readers"), ("group", "delete", "readers")):
        assert "group readers does not exist" in refused(one, *words)


def test_log_verify_checks_a_whole_log(one: Server, tmp_path: Path) -> None:
    ok(one, "topic", "create", "checked")
    ok(one, "produce", "checked", stdin="1\n2\n")
    file = one.data / "checked-0" / f"{0:020}.log"
    sound = strata("log", "verify", str(one.data))
    assert sound.returncode == 0, sound.stdout + sound.stderr
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / file.name).write_bytes(data)
    bad = strata("log", "verify", str(tmp_path), "--json")
    assert bad.returncode == 1
    (problem,) = json.loads(bad.stdout)
    assert problem["file"].endswith(file.name)
    assert "CRC" in problem["problem"]
    (tmp_path / "t-0" / file.name).write_bytes(file.read_bytes()[:-3])
    torn = strata("log", "verify", str(tmp_path / "t-0" / file.name))
    assert torn.returncode == 1
    assert "no whole batch" in torn.stdout
    assert strata("log", "verify", str(tmp_path / "nothing")).returncode == 2


def test_headers_and_json_are_consumed_as_they_were_produced(one: Server) -> None:
    for name in ("first", "copied"):
        ok(one, "topic", "create", name, "--partitions", "3")
    ok(one, "produce", "first", "-H", "a=1", "-H", "b=", "--key-separator", ":", stdin="k:v\nw\n")
    everything = ("--from", "beginning", "--until-end")
    assert sorted(ok(one, "consume", "first", "--headers", *everything).splitlines()) == [
        "a=1,b=\tv",
        "a=1,b=\tw",
    ]
    lines = ok(one, "consume", "first", "--json", *everything)
    odd = {"key_base64": "/wD+", "value": None, "headers": [{"name": "h", "value": None}]}
    ok(one, "produce", "copied", "--from-json", stdin=lines + json.dumps(odd) + "\n")
    copied = [
        json.loads(x) for x in ok(one, "consume", "copied", "--json", *everything).splitlines()
    ]
    original = [json.loads(line) for line in lines.splitlines()]
    for record in original:
        assert any(
            all(other[part] == record[part] for part in ("key", "value", "headers", "timestamp"))
            for other in copied
        )
    assert [r["headers"] for r in copied if r.get("key_base64") == "/wD+"] == [odd["headers"]]
    assert [r["value"] for r in copied if r.get("key_base64") == "/wD+"] == [None]
    assert "expected NAME=VALUE" in refused(one, "produce", "copied", "-H", "x")


def test_an_invalid_line_is_named_and_the_lines_before_it_are_sent(
    one: Server, tmp_path: Path
) -> None:
    ok(one, "topic", "create", "lines", "--partitions", "2", "-c", "retention.ms=-1")
    read = ("consume", "lines", "--from", "beginning", "--until-end")
    file = tmp_path / "in.txt"
    file.write_text("".join(f"{n} {n}\n" for n in range(5000)) + "soon x\n9 late\n")
    said = refused(one, "produce", "lines", str(file), "--timestamp-separator", " ")
    reason = "no timestamp in front: 'soon'; 5000 record(s) before it were sent"
    assert said == f"strata: {file}, line 5001: {reason}\n"
    assert sorted(map(int, ok(one, *read).split())) == list(range(5000))
    for bad, why in (
        ("[]", "AttributeError"),
        ("{", "JSONDecodeError"),
        ('{"timestamp": 1e30}', "timestamp"),
    ):
        words = ("produce", "lines", "--from-json", "-b", one.address)
        done = strata(*words, stdin=f'{{"value": "v"}}\n{bad}\n{{"value": "w"}}\n')
        assert done.returncode == 2
        assert done.stderr.startswith("strata: standard input, line 2: "), done.stderr
        assert why in done.stderr
        assert done.stderr.endswith("; 1 record(s) before it were sent\n")
        assert len(done.stderr.splitlines()) == 1
    assert sorted(ok(one, *read).split())[5000:] == ["v"] * 3
    first = strata("produce", "lines", "--from-json", "-b", one.address, stdin="x\n")
    assert first.stderr.endswith("; nothing was sent\n")


def test_records_acknowledged_before_a_refusal_are_counted(one: Server) -> None:
    ok(one, "topic", "create", "small", "-c", "max.message.bytes=1000")
    lines = "".join(f"{n:0900}\n" for n in range(3)) + "x" * 2000 + "\n"
    done = strata("produce", "small", "-b", one.address, stdin=lines)
    assert done.returncode == 2
    acknowledged, refusal = done.stderr.splitlines()
    assert acknowledged == "3 record(s) were acknowledged before that"
    assert "RECORD_TOO_LARGE" in refusal or "MESSAGE_TOO_LARGE" in refusal
    assert len(ok(one, "consume", "small", "--from", "beginning", "--until-end").split()) == 3


def test_a_group_continues_at_its_committed_offsets(one: Server) -> None:
    ok(one, "topic", "create", "followed", "--partitions", "2")
    ok(one, "produce", "followed", "--partition", "0", stdin="1\n2\n3\n")
    as_group = ("consume", "followed", "--group", "shell", "--from", "beginning")
    assert ok(one, *as_group, "--max-messages", "2").splitlines() == ["1", "2"]
    assert committed(one, "shell", "followed", 2)[0] == 2
    assert ok(one, *as_group, "--until-end").splitlines() == ["3"]
    assert ok(one, *as_group, "--until-end") == ""
    ok(one, "produce", "followed", "--partition", "1", stdin="4\n")
    assert ok(one, *as_group, "--until-end").splitlines() == ["4"]
    assert committed(one, "shell", "followed", 2) == [3, 1]


def test_topic_trim_deletes_records_below_an_offset_or_a_time(one: Server) -> None:
    ok(one, "topic", "create", "trimmed", "--partitions", "2", "-c", "retention.ms=-1")
    for at, text in ((1_700_000_000_000, "old"), (1_750_000_000_000, "new")):
        for index in ("0", "1"):
            words = ("--partition", index, "--timestamp", str(at))
            ok(one, "produce", "trimmed", *words, stdin=f"{text}\n" * 3)
    words = ("topic", "trim", "trimmed", "--before")
    preview = json.loads(ok(one, *words, "2024-01-01", "--dry-run", "--json"))
    assert [(row["start"], row["new_start"], row["deleted"]) for row in preview] == [(0, 3, 3)] * 2
    read = ("consume", "trimmed", "--from", "beginning", "--until-end")
    assert ok(one, *read).count("old") == 6  # a dry run deletes nothing
    ok(one, *words, "2024-01-01")
    assert ok(one, *read).split() == ["new"] * 6
    ok(one, *words, "5", "--partition", "1")
    described = json.loads(ok(one, "topic", "describe", "trimmed", "--json"))
    assert [part["start"] for part in described["partitions"]] == [3, 5]
    ok(one, *words, "1")  # below the start: nothing to do
    assert ok(one, *words, "end", "--json").count('"deleted": 3') == 1
    assert ok(one, *read) == ""
    assert "no partition 7" in refused(one, *words, "end", "--partition", "7")
    assert "--before: 'soon' is not accepted" in refused(one, *words, "soon")
    ok(one, "topic", "create", "kept", "-c", "cleanup.policy=compact")
    ok(one, "produce", "kept", "--key-separator", "=", stdin="k=v\n")
    assert "kept-0 is compacted" in refused(one, "topic", "trim", "kept", "--before", "end")


def test_cluster_info_names_the_cluster_and_its_brokers(one: Server) -> None:
    found = json.loads(ok(one, "cluster", "info", "--json"))
    admin = AdminClient({"bootstrap.servers": one.address}).list_topics(timeout=20)
    assert (found["cluster_id"], found["controller"]) == (admin.cluster_id, admin.controller_id)
    (broker,) = found["brokers"]
    assert (broker["id"], broker["port"], broker["state"]) == (1, one.port, "active")
    assert found["features"]["metadata.version"] > 0
    assert (found["without_leader"], found["under_replicated"]) == (0, 0)
    assert found["topics"] + found["internal_topics"] == len(admin.topics)
    table = ok(one, "cluster", "info")
    assert admin.cluster_id in table
    assert "active" in table
