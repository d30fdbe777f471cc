"""`__cluster_metadata`: the values of its records.

In: one record's value, or a record. Out: the other. It never applies a record: `metadata/delta.py` does.

Framing is KIP-631's: a frame version (1), the record's number and its version, each an unsigned varint, then the body
(Kafka: MetadataRecordSerde). Records are written at their highest version: together these are metadata.version 30
(4.3-IV0). All versions are read.

Records of users and their rights are imported when the first of them is read or written: most clusters have none.
"""

from importlib import import_module
from typing import Any, Final

from stratalog.errors import Corrupt
from stratalog.ports import Buffer
from stratalog.wire.internal import RecordCodec, marker_records, metadata_records, read_record
from stratalog.wire.varint import read_unsigned

FRAME_VERSION: Final = 1
_SECURITY: Final = "stratalog.wire.internal.security_records"

_by_type: Final[dict[type[Any], RecordCodec]] = {}
_by_number: Final[dict[int, RecordCodec]] = {}


def _know(records: tuple[RecordCodec, ...]) -> None:
    """Read and write these records from now on."""
    for codec in records:
        assert 0 <= codec.number < 128, "a varint of one byte"
        _by_type[codec.type] = _by_number[codec.number] = codec


_know(metadata_records.RECORDS + marker_records.RECORDS)


def encode(record: Any, version: int | None = None) -> bytes:
    """Return the framed value of a metadata record, at its highest version or at `version`."""
    kind = type(record)
    if kind not in _by_type:
        _know(import_module(_SECURITY).RECORDS)
    codec = _by_type[kind]
    if version is None:
        version = codec.newest
    out = bytearray((FRAME_VERSION, codec.number, version))
    codec.write[version](out, record)
    return bytes(out)


def decode(data: Buffer) -> Any:
    """Return the record in a framed value; raises Corrupt for bytes that are not exactly one known record."""
    return decode_versioned(data)[0]


def decode_versioned(data: Buffer) -> tuple[Any, int]:
    """As `decode`, with the version at which the record was written."""
    frame, position = read_unsigned(data, 0)
    number, position = read_unsigned(data, position)
    version, position = read_unsigned(data, position)
    if number not in _by_number:
        _know(import_module(_SECURITY).RECORDS)
    codec = _by_number.get(number)
    if frame != FRAME_VERSION or codec is None:
        raise Corrupt(f"metadata record: frame version {frame}, number {number}")
    record, end = read_record(codec, data, position, version)
    if end != len(data):
        raise Corrupt(f"{codec.type.__name__}: {len(data) - end} bytes too many")
    return record, version
