"""`__cluster_metadata`: the values of its records.

In: one record's value, or a record. Out: the other. It never applies a record: `metadata/delta.py` does.

Framing is KIP-631's: a frame version (1), the record's number and its version, each an unsigned varint, then the body
(Kafka: MetadataRecordSerde). A log's records are written at their highest version: together these are metadata.version
30 (4.3-IV0). A broker's record that names no cordoned directories has the version before: so a log of metadata.version
25 to 29, which has no such record, needs nothing else. All versions are read.
"""

from collections.abc import Iterable, Iterator
from operator import attrgetter
from struct import pack_into
from typing import Any, Final

from stratalog.errors import Corrupt
from stratalog.ports import Buffer
from stratalog.wire.internal import read_record, record_codec
from stratalog.wire.internal.codecs import METADATA
from stratalog.wire.internal.metadata_records import (
    BrokerRegistrationChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
)
from stratalog.wire.varint import read_unsigned

FRAME_VERSION: Final = 1
_PARTITION_ID_AT: Final = 3
"""The place of a PartitionRecord's first field: behind three varints of one byte."""
_ENCODINGS_KEPT: Final = 100
_BEFORE_CORDONED: Final[dict[type[Any], int]] = {
    BrokerRegistrationChangeRecord: 2,
    RegisterBrokerRecord: 3,
}
_fields_beside_id = attrgetter(*(set(PartitionRecord.__struct_fields__) - {"partition_id"}))


def encode(record: Any, version: int | None = None) -> bytes:
    """Return the framed value of a metadata record, at its highest version or at `version`."""
    codec = record_codec(type(record).__name__)
    if version is None:
        version = codec.newest
    out = bytearray((FRAME_VERSION, codec.number, version))  # varints of one byte
    codec.write[version](out, record)
    return bytes(out)


def encode_all(records: Iterable[Any]) -> Iterator[bytes]:
    """Yield what `encode` returns for each record.

    Partitions that are created together share the objects in their fields, but for the partition's id. Those share one
    encoding.
    """
    made: dict[tuple[int, ...], tuple[tuple[Any, ...], bytearray]] = {}
    for record in records:
        if type(record) is not PartitionRecord:
            before = _BEFORE_CORDONED.get(type(record))
            yield encode(
                record, None if before is None or record.cordoned_log_dirs is not None else before
            )
            continue
        fields = _fields_beside_id(record)
        identity = tuple(map(id, fields))
        if identity not in made:
            if len(made) >= _ENCODINGS_KEPT:
                made.clear()
            # The fields are kept, so that no other object gets one of their identities.
            made[identity] = fields, bytearray(encode(record))
        shared = made[identity][1]
        pack_into(">i", shared, _PARTITION_ID_AT, record.partition_id)
        yield bytes(shared)


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
