"""Kafka's answers to produce requests that no client library sends, and to requests by topic id."""

from collections.abc import Iterator
from uuid import UUID

import pytest
from tests.wire_client import Wire

from stratalog.errors import ErrorCode
from stratalog.testing import TemporaryBroker
from stratalog.wire.records import Record, build_batch

NOW = 1_700_000_000_000


@pytest.fixture(scope="module")
def broker() -> Iterator[TemporaryBroker]:
    with TemporaryBroker() as started:
        yield started


@pytest.fixture
def wire(broker: TemporaryBroker) -> Iterator[Wire]:
    with Wire(broker.address) as connected:
        connected.topic_id("t")
        yield connected


def batch(count: int = 1, **header: object) -> bytearray:
    return build_batch([Record(n, NOW, None, b"x") for n in range(count)], **header)


@pytest.mark.parametrize("version", range(3, 14))
def test_every_version_appends(wire: Wire, version: int) -> None:
    topic: UUID | str = wire.topic_id("t") if version >= 13 else "t"
    first = wire.produce(topic, batch(2), version=version)
    second = wire.produce(topic, batch(1), version=version)
    assert (first.error_code, second.error_code) == (0, 0)
    assert second.base_offset == first.base_offset + 2


def test_an_unknown_topic_id_is_refused(wire: Wire) -> None:
    answer = wire.produce(UUID(int=77), batch(), version=13)
    assert answer.error_code == ErrorCode.unknown_topic_id
    there = wire.topic_id("t")
    answer = wire.produce(there, batch(), version=13, index=9)
    assert answer.error_code == ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize("acks", [2, -2, 127])
def test_invalid_acks_are_refused(wire: Wire, acks: int) -> None:
    assert wire.produce("t", batch(), acks=acks).error_code == ErrorCode.invalid_required_acks


@pytest.mark.parametrize(
    "records", [None, b"", batch() + batch()], ids=["null", "empty", "two batches"]
)
def test_a_produce_must_have_exactly_one_batch(wire: Wire, records: bytes | None) -> None:
    answer = wire.produce("t", records)
    assert answer.error_code == ErrorCode.invalid_record
    assert answer.error_message


def test_zstd_needs_produce_version_7_or_later(wire: Wire) -> None:
    made = batch(codec="zstd")
    assert wire.produce("t", made, version=6).error_code == ErrorCode.unsupported_compression_type
    assert wire.produce("t", made, version=7).error_code == 0


def test_without_acks_a_refusal_closes_the_connection(broker: TemporaryBroker) -> None:
    with Wire(broker.address) as wire:
        wire.topic_id("t")
        wire.send_produce("t", batch(), acks=0)
        assert wire.produce("t", batch()).error_code == 0  # the request with acks=0 got no answer
        wire.send_produce("t", b"", acks=0)
        with pytest.raises(ConnectionError):
            wire.receive_produced()
