"""`__cluster_metadata`: the values of its records.

In: one record's value, or a record. Out: the other. It never applies a record: `metadata/delta.py` does.

Framing is KIP-631's: a frame version (1), the record's number and its version, each an unsigned varint, then the body
(Kafka: MetadataRecordSerde). Records are written at their highest version: together these are metadata.version 30
(4.3-IV0). All versions are read.
"""

from typing import Any

from stratalog.errors import Corrupt
from stratalog.ports import Buffer
from stratalog.wire.internal import marker_records, metadata_records, security_records
from stratalog.wire.internal.codec import (
    by_key,
    by_type,
    decode_from,
    encode_into,
)
from stratalog.wire.varint import encode_unsigned, read_unsigned

FRAME_VERSION = 1

_ALL = metadata_records.SCHEMAS + security_records.SCHEMAS + marker_records.SCHEMAS
_BY_TYPE = by_type(_ALL)
_BY_KEY = by_key(_ALL)


def encode(record: Any, version: int | None = None) -> bytes:
    """The framed value of a metadata record, at its highest version or at `version`."""
    schema = _BY_TYPE[type(record)]
    if version is None:
        version = schema.versions[1]
    out = bytearray()
    out += encode_unsigned(FRAME_VERSION)
    out += encode_unsigned(schema.api_key)
    out += encode_unsigned(version)
    encode_into(out, schema, version, record)
    return bytes(out)


def decode(data: Buffer) -> Any:
    """The record in a framed value; raises Corrupt for bytes that are not exactly one record we know."""
    return decode_versioned(data)[0]


def decode_versioned(data: Buffer) -> tuple[Any, int]:
    """As `decode`, with the version it was written at."""
    frame, position = read_unsigned(data, 0)
    number, position = read_unsigned(data, position)
    version, position = read_unsigned(data, position)
    if frame != FRAME_VERSION or number not in _BY_KEY:
        raise Corrupt(f"metadata record: frame version {frame}, number {number}")
    schema = _BY_KEY[number]
    record, end = decode_from(data, position, schema, version)
    if end != len(data):
        raise Corrupt(f"{schema.type.__name__}: {len(data) - end} bytes too many")
    return record, version
