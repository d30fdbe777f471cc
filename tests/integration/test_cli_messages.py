"""Messages of failed commands, and commands whose output is closed."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.integration.server_process import STRATA, Server, strata

from stratalog.testing import TemporaryBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[TemporaryBroker]:
    with TemporaryBroker({"num.partitions": 2}) as started:
        yield started


@pytest.fixture
def topic(broker: TemporaryBroker, request: pytest.FixtureRequest) -> str:
    """Partition 0 has three records, partition 1 none."""
    name: str = request.node.name
    assert strata("topic", "create", name, "-b", broker.address).returncode == 0
    sent = strata("produce", name, "--partition", "0", "-b", broker.address, stdin="a\nb\nc\n")
    assert sent.returncode == 0, sent.stderr
    return name


def refused(broker: TemporaryBroker, *words: str) -> str:
    """Return the single line on standard error."""
    done = strata(*words, "-b", broker.address)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("strata: ")]
    return line.removeprefix("strata: ")


def test_a_wrong_start_is_the_fault_of_its_own_option(broker: TemporaryBroker, topic: str) -> None:
    reset = ("group", "reset-offsets", "g", "--topic", topic, "--to")
    for wrong in ("banana", "-5", str(1 << 63)):
        assert refused(broker, *reset, wrong).startswith(f"--to: '{wrong}' is not accepted")
        consume = refused(broker, "consume", topic, f"--from={wrong}")
        assert consume.startswith(f"--from: '{wrong}' is not accepted")


@pytest.mark.parametrize(
    "words", [("produce",), ("consume",), ("perf", "produce"), ("topic", "delete")], ids=" ".join
)
def test_a_topics_name_that_no_topic_may_have_is_explained(
    broker: TemporaryBroker, words: tuple[str, ...]
) -> None:
    assert refused(broker, *words, "bad name!") == (
        "topic name 'bad name!': only ASCII letters, digits, '.', '_' and '-' are allowed "
        "(INVALID_TOPIC_EXCEPTION)"
    )


def test_an_offset_beyond_the_end_is_moved_with_a_warning(
    broker: TemporaryBroker, topic: str
) -> None:
    words = ("group", "reset-offsets", "beyond", "--topic", topic, "-b", broker.address)
    done = strata(*words, "--to", "999999999")
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        f"warning: {topic}-0 has offsets 0 to 3: 999999999 becomes 3",
        f"warning: {topic}-1 has offsets 0 to 0: 999999999 becomes 0",
    ]
    assert strata(*words, "--to", "2", "--partition", "0").stderr == ""


def test_an_offset_out_of_range_is_named_with_the_range_and_the_remedy(
    broker: TemporaryBroker, topic: str
) -> None:
    assert refused(broker, "consume", topic, "--from", "2") == (
        f"{topic}-1 has offsets 0 to 0, not 2; give another --from, such as beginning "
        "(OFFSET_OUT_OF_RANGE)"
    )
    assert refused(broker, "consume", topic, "--from", "99") == (
        f"{topic}-0 has offsets 0 to 3, not 99, and 1 more like it; give another --from, such as "
        "beginning (OFFSET_OUT_OF_RANGE)"
    )
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "ahead"})
    consumer.commit(offsets=[TopicPartition(topic, 0, 50)], asynchronous=False)
    consumer.close()
    assert refused(broker, "consume", topic, "--group", "ahead", "--from", "beginning") == (
        f"{topic}-0 has offsets 0 to 3, not 50; move the group: strata group reset-offsets ahead "
        f"--topic {topic} --to beginning (OFFSET_OUT_OF_RANGE)"
    )


def test_a_group_with_members_is_named_with_the_remedy(broker: TemporaryBroker, topic: str) -> None:
    consumer = Consumer(
        {"bootstrap.servers": broker.address, "group.id": "busy", "auto.offset.reset": "earliest"}
    )
    try:
        consumer.subscribe([topic])
        assert consumer.poll(20) is not None
        said = "group busy has 1 member(s): stop them first (NON_EMPTY_GROUP)"
        assert refused(broker, "group", "delete", "busy") == said
        assert (
            refused(broker, "group", "reset-offsets", "busy", "--topic", topic, "--to=end") == said
        )
    finally:
        consumer.close()


def test_a_missing_topic_says_how_to_create_it(broker: TemporaryBroker) -> None:
    for words in (("consume", "no"), ("produce", "no"), ("topic", "describe", "no")):
        assert refused(broker, *words) == (
            "topic no does not exist; list topics: strata topic list; create it: strata topic create no"
        )


def test_a_port_that_does_not_speak_kafkas_protocol_is_named(tmp_path: Path) -> None:
    with Server(tmp_path, ["monitor.listener=127.0.0.1:0"]) as server:
        port = json.loads((server.place / "ready.json").read_text())["monitor_port"]
        address = f"127.0.0.1:{port}"
        done = strata("topic", "list", "-b", address)
    assert done.returncode == 2
    assert done.stderr == (
        f"strata: broker {address} unreachable: {address} does not speak Kafka's protocol: "
        "it answers as an HTTP server\n"
    )


def test_either_name_of_the_bootstrap_server_is_accepted(broker: TemporaryBroker) -> None:
    for name in ("--bootstrap-server", "--bootstrap", "-b"):
        assert strata("topic", "list", "--json", name, broker.address).returncode == 0, name
    assert "--bootstrap-server" in strata("topic", "list", "--help").stdout
    assert "--bootstrap " not in strata("topic", "list", "--help").stdout


def unread(*words: str) -> subprocess.CompletedProcess[str]:
    """A command of its own process, whose standard output has no reader."""
    reads, writes = os.pipe()
    os.close(reads)
    try:
        return subprocess.run(
            [*STRATA, *words],
            stdin=subprocess.DEVNULL,
            stdout=writes,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writes)


def test_output_without_a_reader_is_no_failure(broker: TemporaryBroker, topic: str) -> None:
    at = ("-b", broker.address)
    whole = ("--from", "beginning", "--until-end")
    for words in (
        ("--help",),
        ("consume", "--help"),
        ("topic", "list", *at),
        ("topic", "list", "--json", *at),
        ("config", "describe", "--broker", "1", "--all", *at),
        ("consume", topic, "--json", *whole, *at),
    ):
        done = unread(*words)
        assert (done.returncode, done.stderr) == (0, ""), words


def test_a_failure_without_a_reader_stays_one(broker: TemporaryBroker) -> None:
    done = unread("topic", "describe", "no", "-b", broker.address)
    assert done.returncode == 2
    assert "topic no does not exist" in done.stderr
