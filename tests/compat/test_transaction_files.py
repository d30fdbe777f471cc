"""Our files of transactions are Apache Kafka's, byte for byte: `.txnindex`, and the control batches of a log.

Kafka's DumpLogSegments prints the coordinator's records, the same ones from both brokers.

Method: librdkafka's producers carry out the same transactions against both brokers, one request after the other.
Producer ids, times and checksums differ, and are left out.
"""

import json
import re
from functools import partial
from pathlib import Path
from struct import Struct
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from tests.broker_process import broker_process
from tests.compat.apache_kafka import apache_kafka
from tests.compat.test_dump_broker import dump
from tests.integration.waiting import wait_for

from stratalog.wire.batch import HEADER_SIZE, scan

ENTRY = Struct(">hqqqq")
"""Version, producer id, first offset, last offset, last stable offset (Kafka: AbortedTxn)."""
SEGMENT = "t-0/00000000000000000000"


def carry_out(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(60)
    one, other = (
        Producer({"bootstrap.servers": address, "transactional.id": name, "linger.ms": 0})
        for name in ("one", "other")
    )
    for producer in (one, other):
        producer.init_transactions(60)
    reader = Consumer(
        {"bootstrap.servers": address, "group.id": "g", "isolation.level": "read_uncommitted"}
    )
    expected = 0
    for turn in range(4):
        for producer in (one, other):
            producer.begin_transaction()
            producer.produce("t", b"%d" % turn, partition=0)
            assert producer.flush(60) == 0
            expected += 1
        second = other.abort_transaction if turn % 2 else other.commit_transaction
        ends = [one.abort_transaction, second]
        for end in ends if turn < 2 else reversed(ends):
            end(60)
            expected += 1  # a marker, which the coordinator writes after its answer
            wait_for(partial(is_at, reader, expected), "a marker")
    reader.close()


def is_at(reader: Consumer, expected: int) -> bool:
    _, end = reader.get_watermark_offsets(TopicPartition("t", 0), timeout=30)
    return bool(end == expected)


def entries(data: Path) -> list[tuple[int, ...]]:
    """The entries of the index, each producer id replaced by its number in the order of appearance."""
    raw = (data / f"{SEGMENT}.txnindex").read_bytes()
    assert len(raw) % ENTRY.size == 0
    numbers: dict[int, int] = {}
    return [
        (version, numbers.setdefault(producer_id, len(numbers)), *offsets)
        for version, producer_id, *offsets in ENTRY.iter_unpack(raw)
    ]


def markers(data: Path) -> list[tuple[int, int, int, int, int, bytes]]:
    raw = (data / f"{SEGMENT}.log").read_bytes()
    return [
        (
            header.base_offset,
            header.size,
            header.attributes,
            header.producer_epoch,
            header.base_sequence,
            raw[position + HEADER_SIZE : position + header.size],
        )
        for position, header in scan(raw)
        if header.is_control
    ]


def states(data: Path) -> dict[str, list[tuple[Any, ...]]]:
    """The states of each id in the order of its records, as Kafka's tool prints them."""
    logs = [one for one in data.glob("__transaction_state-*/*.log") if one.stat().st_size]
    said = dump("--transaction-log-decoder", "--files", ",".join(map(str, logs)))
    found: dict[str, list[tuple[Any, ...]]] = {}
    for key, payload in re.findall(r"key: (\{.*\}) payload: (\{.*\})", said):
        name = json.loads(key)["data"]["transactionalId"]
        value = json.loads(payload)["data"]
        fields = ("producerEpoch", "transactionStatus", "transactionPartitions")
        found.setdefault(name, []).append(tuple(value[field] for field in fields))
    return found


def test_the_files_of_transactions_are_kafkas(tmp_path: Path) -> None:
    theirs, ours = tmp_path / "kafka", tmp_path / "ours"
    theirs.mkdir()
    with apache_kafka(theirs) as address:
        carry_out(address)
    with broker_process(ours, tier__url="") as broker:
        carry_out(broker.address)
    found = entries(ours / "data")
    assert len(found) == 6
    assert found == entries(theirs / "data")
    assert len(markers(ours / "data")) == 8
    assert markers(ours / "data") == markers(theirs / "data")
    decided = states(ours / "data")
    assert [len(one) for one in decided.values()] == [1 + 4 * 3] * 2
    assert decided == states(theirs / "data")
