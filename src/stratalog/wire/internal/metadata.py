"""`__cluster_metadata`: the values of its records.

In: one record's value, or a record. Out: the other. It never applies a record: `metadata/delta.py` does.

Framing is KIP-631's: a frame version (1), the record's number and its version, each an unsigned varint, then the body
(Kafka: MetadataRecordSerde). Records are written at their highest version: together these are metadata.version 30
(4.3-IV0). All versions are read.
"""

from typing import Any, Final

from stratalog.errors import Corrupt
from stratalog.ports import Buffer
from stratalog.wire.internal import read_record, record_codec
from stratalog.wire.internal.codecs import METADATA
from stratalog.wire.varint import read_unsigned

FRAME_VERSION: Final = 1


def encode(record: Any, version: int | None = None) -> bytes:
    """Return the framed value of a metadata record, at its highest version or at `version`."""
    codec = record_codec(type(record).__name__)
    if version is None:
        version = codec.newest
    out = bytearray((FRAME_VERSION, codec.number, version))  # varints of one byte
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
    if frame != FRAME_VERSION or number not in METADATA:
        raise Corrupt(f"metadata record: frame version {frame}, number {number}")
    codec = record_codec(METADATA[number])
    record, end = read_record(codec, data, position, version)
    if end != len(data):
        raise Corrupt(f"{codec.type.__name__}: {len(data) - end} bytes too many")
    return record, version
