"""The codec reads records that Apache Kafka wrote, and writes them again bit for bit."""

from pathlib import Path

import pytest

from stratalog.wire.ids import topic_id_text
from stratalog.wire.internal.control import decode_control, encode_control
from stratalog.wire.internal.metadata import decode_versioned, encode
from stratalog.wire.internal.offsets import (
    OffsetCommitKey,
    OffsetCommitValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)

GOLDEN = Path(__file__).parents[3] / "golden" / "internal_records" / "kafka-4.3.1.txt"


def golden(log):
    """Return the rows of one log: record, version, key, value."""
    rows = [line.split() for line in GOLDEN.read_text().splitlines() if not line.startswith("#")]
    return [row[1:] for row in rows if row[0] == log]


def raw(text):
    return None if text == "-" else bytes.fromhex(text)


@pytest.mark.parametrize("row", golden("metadata"), ids=lambda row: f"{row[0]}-{row[1]}")
def test_metadata_record_of_kafka_round_trips(row):
    name, version, _, value = row
    record, read_version = decode_versioned(raw(value))
    assert (type(record).__name__, read_version) == (name, int(version))
    assert encode(record, read_version) == raw(value)


@pytest.mark.parametrize("row", golden("control"), ids=lambda row: row[0])
def test_control_record_of_kafka_round_trips(row):
    name, version, key, value = row
    record = decode_control(raw(key), raw(value))
    assert (type(record).__name__, record.version) == (name, int(version))
    assert encode_control(record) == (raw(key), raw(value))


@pytest.mark.parametrize("row", golden("offsets"))
def test_offsets_record_of_kafka_round_trips(row):
    name, version, key, value = row
    read = decode_key(raw(key))
    assert type(read).__name__ == name
    assert encode_key(read) == raw(key)
    if version != "-":
        assert encode_value(decode_value(read, raw(value))) == raw(value), (
            "the version differs from Kafka's"
        )


def test_a_commit_is_read_with_kafkas_values():
    rows = golden("offsets")
    key, value = next((row[2], row[3]) for row in rows if row[0] == "OffsetCommitKey")
    read = decode_key(raw(key))
    assert read == OffsetCommitKey(group="gg", topic="hello", partition=0)
    commit = decode_value(read, raw(value))
    assert (commit.offset, commit.leader_epoch, commit.metadata) == (1, 0, "")
    assert topic_id_text(commit.topic_id) == "KLcsuvXISOibPpMy1AUZHQ"


def test_a_commit_with_an_expiry_is_written_at_version_1():
    value = OffsetCommitValue(offset=7, metadata="m", commit_timestamp=1, expire_timestamp=9)
    assert encode_value(value)[:2] == b"\x00\x01"
    key = OffsetCommitKey(group="g", topic="t", partition=0)
    assert decode_value(key, encode_value(value)) == value
