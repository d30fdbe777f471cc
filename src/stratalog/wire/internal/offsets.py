"""`__consumer_offsets`: keys and values of its records.

In: bytes of a key or a value, or one of the four records. Out: the other. It never decides which record wins.

A key opens with the record's number as int16, a value with its version (Kafka: GroupCoordinatorRecordSerde,
CoordinatorRecordTypeSchema). Values are written at the version that Kafka 4.3 writes (GroupCoordinatorRecordHelpers):
OffsetCommitValue 4, or 1 where the commit has an expiry of its own; GroupMetadataValue 3, which Kafka before 3.5 reads
too. All versions are read.
"""

from struct import Struct
from typing import Any

from stratalog.errors import Corrupt
from stratalog.ports import Buffer
from stratalog.wire.internal import read_record, record_codec
from stratalog.wire.internal.offsets_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)

__all__ = [
    "GroupMetadataKey",
    "GroupMetadataValue",
    "MemberMetadata",
    "OffsetCommitKey",
    "OffsetCommitValue",
    "decode_key",
    "decode_value",
    "encode_key",
    "encode_value",
]

Key = OffsetCommitKey | GroupMetadataKey
Value = OffsetCommitValue | GroupMetadataValue

_INT16 = Struct(">h")
_KEYS = {
    # 0 is the oldest kind of commit (Kafka: LegacyOffsetCommitKey), with the same fields.
    0: "OffsetCommitKey",
    1: "OffsetCommitKey",
    2: "GroupMetadataKey",
}
_VALUE_OF = {
    OffsetCommitKey: "OffsetCommitValue",
    GroupMetadataKey: "GroupMetadataValue",
}


def encode_key(record: Key) -> bytes:
    """Return the record's key, its number first."""
    codec = record_codec(type(record).__name__)
    out = bytearray(_INT16.pack(codec.number))
    codec.write[0](out, record)
    return bytes(out)


def encode_value(record: Value, version: int | None = None) -> bytes:
    """Return the value at the version that Kafka would choose, or at `version`."""
    if version is None:
        version = _version(record)
    out = bytearray(_INT16.pack(version))
    record_codec(type(record).__name__).write[version](out, record)
    return bytes(out)


def decode_key(data: Buffer) -> Key | None:
    """Return the key; None for a kind that is not known (KIP-848 groups and later ones): skip that record.

    Raises Corrupt for unreadable bytes.
    """
    kind = _KEYS.get(_prefix(data))
    if kind is None:
        return None
    key: Key = _decode(data, kind, 0)
    return key


def decode_value(key: Key, data: Buffer) -> Value:
    """Return the value that belongs to `key`; raises Corrupt for unreadable bytes and unknown versions."""
    value: Value = _decode(data, _VALUE_OF[type(key)], _prefix(data))
    return value


def _version(record: Value) -> int:
    if isinstance(record, GroupMetadataValue):
        return 3
    return 4 if record.expire_timestamp < 0 else 1


def _prefix(data: Buffer) -> int:
    if len(data) < _INT16.size:
        raise Corrupt(f"{len(data)} bytes where a record of __consumer_offsets opens with two")
    number: int = _INT16.unpack_from(data)[0]
    return number


def _decode(data: Buffer, kind: str, version: int) -> Any:
    codec = record_codec(kind)
    record, end = read_record(codec, data, _INT16.size, version)
    if end != len(data):
        raise Corrupt(f"{codec.type.__name__}: {len(data) - end} bytes too many")
    return record
