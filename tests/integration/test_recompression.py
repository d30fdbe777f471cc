"""`compression.type`: a topic stores its batches in one codec, whatever codec producers use; nothing else changes."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.wire_client import Wire

from stratalog.errors import ErrorCode
from stratalog.testing import TemporaryBroker
from stratalog.wire.batch import CRC_START, BatchHeader, crc_holds, scan
from stratalog.wire.compression import CODEC_NAMES
from stratalog.wire.records import Record, build_batch, read_records

KEPT_AS = {name: name for name in CODEC_NAMES if name != "none"} | {"uncompressed": "none"}
NOW = 1_700_000_000_000


@pytest.fixture(scope="module")
def broker() -> Iterator[TemporaryBroker]:
    with TemporaryBroker() as started:
        yield started


def made(broker: TemporaryBroker, topic: str, **configs: str) -> str:
    admin = AdminClient({"bootstrap.servers": broker.address})
    settings = {name.replace("_", "."): value for name, value in configs.items()}
    admin.create_topics([NewTopic(topic, 1, 1, config=settings)])[topic].result(30)
    return topic


def on_disk(broker: TemporaryBroker, topic: str) -> list[tuple[BatchHeader, list[Record]]]:
    """Return every batch of the only segment; check the CRCs."""
    (path,) = (broker.directory / f"{topic}-0").glob("*.log")
    data = path.read_bytes()
    found = []
    for position, header in scan(data):
        assert crc_holds(data, position, header)
        found.append((header, list(read_records(data[position : position + header.size]))))
    return found


def records(count: int, start: int = 0) -> list[Record]:
    return [
        Record(n, NOW + n, b"k%d" % n, b"value %d " % n * 20, (("h", b"x"),))
        for n in range(start, start + count)
    ]


@pytest.mark.parametrize("kept_as", KEPT_AS)
def test_batches_are_stored_in_the_topics_codec(broker: TemporaryBroker, kept_as: str) -> None:
    topic = made(broker, f"to-{kept_as}", compression_type=kept_as)
    with Wire(broker.address) as wire:
        for number, codec in enumerate(CODEC_NAMES):
            batch = build_batch(records(5, number * 5), codec=codec)
            answer = wire.produce(topic, batch)
            assert (answer.error_code, answer.base_offset) == (0, number * 5)
    kept = on_disk(broker, topic)
    assert {CODEC_NAMES[header.codec] for header, _ in kept} == {KEPT_AS[kept_as]}
    assert [one for _, batch in kept for one in batch] == records(25)
    assert [header.base_offset for header, _ in kept] == [0, 5, 10, 15, 20]


def test_a_batch_in_the_topics_codec_is_not_touched(broker: TemporaryBroker) -> None:
    topic = made(broker, "same", compression_type="gzip")
    batch = build_batch(records(5), codec="gzip")
    with Wire(broker.address) as wire:
        wire.produce(topic, batch)
    (path,) = (broker.directory / f"{topic}-0").glob("*.log")
    assert path.read_bytes()[CRC_START:] == batch[CRC_START:]


@pytest.mark.parametrize(
    ("codec", "poor", "good"), [("gzip", "1", "9"), ("zstd", "-50", "19"), ("lz4", "9", "12")]
)
def test_a_higher_level_compresses_better(
    broker: TemporaryBroker, codec: str, poor: str, good: str
) -> None:
    # Random letters of uneven probability: a fast level compresses them less.
    words = bytes(Random(1).choices(b"abcdefgh ", [9, 8, 7, 6, 5, 4, 3, 2, 20], k=200_000))
    sizes = []
    for level in (poor, good):
        topic = made(
            broker,
            f"{codec}.{level}",
            compression_type=codec,
            **{f"compression_{codec}_level": level},
        )
        with Wire(broker.address) as wire:
            wire.produce(topic, build_batch([Record(0, NOW, None, words)]))
        ((header, _),) = on_disk(broker, topic)
        sizes.append(header.size)
    assert sizes[1] < sizes[0] * 0.95


def test_log_append_time_is_the_brokers(broker: TemporaryBroker) -> None:
    topic = made(broker, "stamped", compression_type="zstd", message_timestamp_type="LogAppendTime")
    with Wire(broker.address) as wire:
        answer = wire.produce(topic, build_batch(records(3)))
    ((header, kept),) = on_disk(broker, topic)
    assert header.is_log_append_time
    append_ms = answer.log_append_time_ms
    assert {one.timestamp for one in kept} == {append_ms}
    assert append_ms > NOW


def test_a_pipelining_idempotent_producer_keeps_its_order(broker: TemporaryBroker) -> None:
    topic = made(broker, "ordered", compression_type="zstd")
    errors: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": broker.address,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 1,
            "batch.num.messages": 50,
        }
    )
    for number in range(3000):
        producer.produce(topic, b"%d" % number, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(30) == 0
    assert errors == [None] * 3000
    consumer = Consumer(
        {"bootstrap.servers": broker.address, "group.id": "o", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    read: list[int] = []
    for _ in range(300):
        read += [int(one.value()) for one in consumer.consume(1000, 1)]
        if len(read) >= 3000:
            break
    consumer.close()
    assert read == list(range(3000))


def test_a_duplicate_is_answered_with_the_first_offset(broker: TemporaryBroker) -> None:
    topic = made(broker, "repeat", compression_type="gzip")
    with Wire(broker.address) as wire:
        for first in (0, 3, 0):
            batch = build_batch(
                records(3, first), producer_id=7, producer_epoch=0, base_sequence=first
            )
            answer = wire.produce(topic, batch)
            assert (answer.error_code, answer.base_offset) == (0, first)
        late = build_batch(records(3), producer_id=7, producer_epoch=0, base_sequence=9)
        assert wire.produce(topic, late).error_code == ErrorCode.out_of_order_sequence_number
    assert len(on_disk(broker, topic)) == 2


def test_a_batch_in_the_topics_codec_waits_for_an_earlier_recompression(
    broker: TemporaryBroker,
) -> None:
    topic = made(broker, "behind", compression_type="zstd", compression_zstd_level="22")
    large = build_batch([Record(0, NOW, None, os.urandom(500_000))])
    small = build_batch(records(1), codec="zstd")
    with Wire(broker.address) as wire:
        wire.send_produce(topic, large)
        wire.send_produce(topic, small)
        assert [wire.receive_produced().base_offset for _ in range(2)] == [0, 1]


def test_a_batch_that_grows_too_large_is_refused(broker: TemporaryBroker) -> None:
    topic = made(broker, "poison", compression_type="gzip")
    with Wire(broker.address) as wire:
        bomb = build_batch([Record(0, NOW, None, bytes(100 << 20))], codec="zstd")
        assert wire.produce(topic, bomb).error_code == ErrorCode.message_too_large
        growing = build_batch([Record(0, NOW, None, bytes(2 << 20))], codec="zstd")
        plain = made(broker, "poison-plain", compression_type="uncompressed")
        assert wire.produce(plain, growing).error_code == ErrorCode.message_too_large
        assert wire.produce(topic, build_batch(records(1))).error_code == 0
    assert len(on_disk(broker, topic)) == 1
    assert on_disk(broker, plain) == []


def processes() -> list[int]:
    """Return the recompression processes that this process has started."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            words = (entry / "cmdline").read_bytes()
        except (OSError, IndexError):
            continue
        if parent == str(os.getpid()) and b"stratalog.adapters.processes" in words:
            found.append(int(entry.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_killed_recompression_process_costs_one_retry(broker: TemporaryBroker) -> None:
    topic = made(broker, "killed", compression_type="zstd")
    with Wire(broker.address) as wire:
        assert wire.produce(topic, build_batch(records(1))).error_code == 0
        started = processes()
        assert started
        for pid in started:
            os.kill(pid, signal.SIGKILL)
        codes = [wire.produce(topic, build_batch(records(1))).error_code]
        while codes[-1] and len(codes) <= len(started):
            codes.append(wire.produce(topic, build_batch(records(1))).error_code)
        assert codes == [ErrorCode.not_leader_or_follower] * (len(codes) - 1) + [0]
        assert len(codes) > 1
    assert not set(processes()) & set(started)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_recompression_processes_end_with_the_broker(end: str) -> None:
    before = set(processes())
    with TemporaryBroker() as broker:
        topic = made(broker, "ends", compression_type="zstd")
        with Wire(broker.address) as wire:
            assert wire.produce(topic, build_batch(records(1))).error_code == 0
        assert set(processes()) - before
        getattr(broker, end)()
        assert set(processes()) <= before
