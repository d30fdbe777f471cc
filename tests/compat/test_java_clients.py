"""Goal: Apache Kafka's own producers and consumers, as its tools run them, work with our broker.

Method: each tool against a real broker process, and against three nodes. The tests check what the output means; they
judge no speeds.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.compat.clients import CLIENTS, Seen, Sent
from tests.compat.nodes import NUMBERS, Serving, serving
from tests.compat.tools import java_tool, kafka_lib

TOOLS = "org.apache.kafka.tools"
TIMEOUT_MS = ("--timeout-ms", "60000")
PRINTED = ("key", "offset", "timestamp", "headers")


@pytest.fixture(scope="module", params=NUMBERS)
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Serving]:
    kafka_lib()
    with serving(tmp_path_factory.mktemp("broker"), request.param) as running:
        yield running


def tool(broker: Serving, name: str, *args: str, stdin: str | None = None) -> str:
    done = java_tool(
        f"{TOOLS}.{name}", "--bootstrap-server", broker.address, *args, input_text=stdin
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def events(said: str, name: str) -> list[dict[str, object]]:
    """Return the events of one name from the JSON lines of the verifiable clients."""
    events = [json.loads(line) for line in said.splitlines()]
    return [event for event in events if event["name"] == name]


def end_offset(broker: Serving, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "asks"})
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
    consumer.close()
    return end


def test_the_verifiable_producer_and_consumer_agree(broker: Serving) -> None:
    count = 300
    produced = tool(
        broker, "VerifiableProducer", "--topic", "verified", "--max-messages", f"{count}"
    )
    sent = [
        (event["offset"], event["value"]) for event in events(produced, "producer_send_success")
    ]
    assert sent == [(number, f"{number}") for number in range(count)]
    (summary,) = events(produced, "tool_data")
    assert (summary["sent"], summary["acked"]) == (count, count)
    group = ("--group-id", "verifies", "--reset-policy", "earliest")
    read = tool(
        broker,
        "VerifiableConsumer",
        *("--topic", "verified", *group, "--max-messages", f"{count}", "--verbose"),
    )
    records = [(event["offset"], event["value"]) for event in events(read, "record_data")]
    assert records == sent
    committed = events(read, "offsets_committed")
    assert all(event["success"] for event in committed)
    at = {"topic": "verified", "partition": 0, "offset": count}
    assert committed[-1]["offsets"] == [at]


def printed(said: str) -> list[Seen]:
    """Lines of the console consumer that prints all there is to a record."""
    rows = [line.split("\t") for line in said.splitlines()]
    return [
        Seen(
            int(offset.removeprefix("Offset:")),
            int(created.removeprefix("CreateTime:")),
            None if key == "null" else key,
            None if value == "null" else value,
            tuple((name, text) for name, _, text in (pair.partition(":") for pair in pairs)),
        )
        for created, offset, headers, key, value in rows
        for pairs in [headers.split(",") if headers != "NO_HEADERS" else []]
    ]


@pytest.mark.big
@pytest.mark.timeout(600)
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_the_console_clients_send_and_read_keys_and_headers(broker: Serving, codec: str) -> None:
    topic = f"console-{codec}"
    sent = [Sent(f"k{number}", f"v{number}", (("h", f"{number}"),)) for number in range(50)]
    sent += [Sent("gone", None, (("h", "x"), ("i", "y"))), Sent("plain", "no headers")]
    lines = "".join(
        f"{','.join(f'{name}:{text}' for name, text in headers) or '<none>'}\t{key}|{value or '<none>'}\n"
        for key, value, headers in sent
    )
    parsed = ("parse.key=true", "parse.headers=true", "key.separator=|", "null.marker=<none>")
    reader = [word for line in parsed for word in ("--reader-property", line)]
    produce = ("--topic", topic, "--compression-codec", codec, *reader)
    tool(broker, "ConsoleProducer", *produce, stdin=lines)
    shown = [word for what in PRINTED for word in ("--formatter-property", f"print.{what}=true")]
    begin = ("--topic", topic, "--group", topic, "--from-beginning", *TIMEOUT_MS, *shown)
    first = tool(broker, "consumer.ConsoleConsumer", *begin, "--max-messages", "20")
    second = tool(broker, "consumer.ConsoleConsumer", *begin, "--max-messages", f"{len(sent) - 20}")
    read = printed(first) + printed(second)
    assert [one.offset for one in read] == list(range(len(sent))), (
        "the group must continue behind its last commit"
    )
    assert [one.sent for one in read] == sent
    assert CLIENTS["confluent-kafka"].consume(broker.address, topic, "beside", len(sent)) == read
    last = ("--topic", topic, "--partition", "0", "--offset", f"{len(sent) - 3}")
    tail = tool(
        broker, "consumer.ConsoleConsumer", *last, *shown, *TIMEOUT_MS, "--max-messages", "3"
    )
    assert printed(tail) == read[-3:]


@pytest.mark.big
@pytest.mark.timeout(600)
def test_the_performance_clients_count_all_records(broker: Serving, tmp_path: Path) -> None:
    topic, count, size = "performance", 20_000, 100
    lz4 = ("--command-property", "compression.type=lz4")
    load = ("--topic", topic, "--num-records", f"{count}", "--record-size", f"{size}", *lz4)
    said = tool(broker, "ProducerPerformance", *load, "--throughput", "-1")
    assert re.search(rf"^{count} records sent, [\d.]+ records/sec", said, re.MULTILINE)
    assert end_offset(broker, topic) == count
    payloads = tmp_path / "payloads"
    payloads.write_text("one\ntwo\n")
    capped = ("--topic", topic, "--num-records", "100", "--payload-file", str(payloads))
    said = tool(broker, "ProducerPerformance", *capped, "--throughput", "50", "--print-metrics")
    assert re.search(r"^producer-metrics:record-send-total.* : 100\.", said, re.MULTILINE)
    read = ("--topic", topic, "--num-records", f"{count}", "--timeout", "60000")
    said = tool(broker, "ConsumerPerformance", *read)
    header, row = (line.split(", ") for line in said.strip().splitlines())
    measured = dict(zip(header, row, strict=True))
    assert int(measured["data.consumed.in.nMsg"]) >= count
    assert float(measured["data.consumed.in.MB"]) >= count * size / 2**20


@pytest.mark.big
@pytest.mark.timeout(600)
def test_the_end_to_end_latency_tool_reads_every_record(broker: Serving) -> None:
    asked = ("--topic", "latency", "--num-records", "200", "--record-size", "20")
    headers = ("--record-key-size", "4", "--num-headers", "2")
    said = tool(broker, "EndToEndLatency", *asked, *headers, "--producer-acks", "all")
    assert "Percentiles: 50th = " in said
    assert end_offset(broker, "latency") == 200
