"""The codec of internal records refuses wrong bytes, and values that a version cannot hold."""

from uuid import UUID

import pytest

from stratalog.errors import Corrupt
from stratalog.wire.internal.metadata import decode, encode
from stratalog.wire.internal.metadata_records import (
    FeatureLevelRecord,
    PartitionRecord,
    TopicRecord,
)
from stratalog.wire.internal.offsets import (
    GroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)

TOPIC = TopicRecord(name="t", topic_id=UUID(int=77))
KEY = OffsetCommitKey(group="g", topic="t", partition=3)
VALUE = OffsetCommitValue(offset=5, metadata="", commit_timestamp=12)


def partition(**changes):
    fields = {
        "partition_id": 0,
        "topic_id": UUID(int=77),
        "replicas": (1,),
        "isr": (1,),
        "removing_replicas": (),
        "adding_replicas": (),
        "leader": 1,
        "leader_epoch": 0,
        "partition_epoch": 0,
    }
    return PartitionRecord(**fields | changes)


def test_bytes_after_the_record_are_corrupt():
    with pytest.raises(Corrupt, match="1 bytes too many"):
        decode(encode(TOPIC) + b"\0")
    with pytest.raises(Corrupt, match="1 bytes too many"):
        decode_value(KEY, encode_value(VALUE) + b"\0")


@pytest.mark.parametrize("size", range(len(encode(TOPIC))))
def test_a_record_cut_anywhere_is_corrupt(size):
    with pytest.raises(Corrupt):
        decode(encode(TOPIC)[:size])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x02\x02\x00", "frame version 2"),
        (b"\x01\x7f\x00", "number 127"),
        (b"\x01\x02\x01", "version 1"),
        (b"\x01\x02\x00\xff\xff\xff\xff\x0f", "requires a buffer of at least 4294967319"),
        (b"\x01\x0c\x00\x02a\x00", "requires a buffer"),
        (b"\x01\x08\x00" + bytes(12) + b"\x01\x63\x09ab", "7 bytes past the end"),
        (b"\x01\x02\x00\xff\xff\xff\xff\xff\x01", "variable-length integer"),
        (b"\x01\x02\x00\x00", "name must not be null"),
        (b"\x01\x02\x00\x02\xff", "utf-8"),
    ],
)
def test_malformed_bytes_are_corrupt_with_the_reason(data, message):
    with pytest.raises(Corrupt, match=message):
        decode(data)


def test_an_announced_array_takes_no_memory():
    body = encode(partition())[:24].ljust(24, b"\0")
    with pytest.raises(Corrupt, match=r"replicas: an array of \d+ items in"):
        decode(b"\x01\x03\x02" + body[3:23] + b"\xff\xff\xff\xff\x07")


def test_a_tagged_field_is_written_only_if_it_differs_from_its_default():
    plain, marked = partition(), partition(leader_recovery_state=1)
    assert encode(plain)[-1] == 0
    assert len(encode(marked)) == len(encode(plain)) + 3
    assert decode(encode(marked)) == marked


def test_an_unknown_tagged_field_is_skipped():
    record = FeatureLevelRecord(name="x", feature_level=1)
    data = encode(record)
    assert data[-1] == 0
    assert decode(data[:-1] + b"\x01\x63\x02ab") == record


def test_a_version_that_cannot_hold_a_value_is_a_bug():
    with pytest.raises(AssertionError, match="eligible_leader_replicas"):
        encode(partition(eligible_leader_replicas=(1,)), version=1)
    with pytest.raises(TypeError, match="NoneType"):
        encode(partition(replicas=None))


def test_fields_that_kafka_ignores_in_an_older_version_are_dropped():
    value = OffsetCommitValue(offset=5, metadata="", commit_timestamp=12, leader_epoch=4)
    assert decode_value(KEY, encode_value(value, 1)).leader_epoch == -1


def test_keys_of_newer_group_types_are_left_to_other_readers():
    assert decode_key(b"\x00\x03" + encode_key(GroupMetadataKey(group="g"))[2:]) is None
    assert decode_key(b"\x00\x00" + encode_key(KEY)[2:]) == KEY, "the legacy commit key"
    with pytest.raises(Corrupt):
        decode_key(b"\x00")
    with pytest.raises(Corrupt, match="version 5"):
        decode_value(KEY, b"\x00\x05")
