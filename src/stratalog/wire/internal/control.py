"""Control records of Raft logs and snapshots: the leader, the versions in force, a snapshot's start and end.

In: a control record, or its key and value. Out: the other. It never builds a batch.

A key is two int16: its version (0) and the record's type (Kafka: ControlRecordType). A value opens with its version,
which the body's own first field is (Kafka: ControlRecordUtils).
"""

from struct import Struct

from stratalog.errors import Corrupt
from stratalog.ports import Buffer
from stratalog.wire.internal import read_record, record_codec
from stratalog.wire.internal.control_records import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)

ControlRecord = (
    LeaderChangeMessage
    | SnapshotHeaderRecord
    | SnapshotFooterRecord
    | KRaftVersionRecord
    | VotersRecord
)

_TYPES: dict[int, type[ControlRecord]] = {
    2: LeaderChangeMessage,
    3: SnapshotHeaderRecord,
    4: SnapshotFooterRecord,
    5: KRaftVersionRecord,
    6: VotersRecord,
}
_NUMBERS = {kind: number for number, kind in _TYPES.items()}
_KEY = Struct(">hh")
_VERSION = Struct(">h")


def encode_control(record: ControlRecord) -> tuple[bytes, bytes]:
    """Return key and value, at the version in `record.version`."""
    out = bytearray()
    record_codec(type(record).__name__).write[record.version](out, record)
    return _KEY.pack(0, _NUMBERS[type(record)]), bytes(out)


def decode_control(key: Buffer | None, value: Buffer | None) -> ControlRecord | None:
    """Return the control record; None for a type of another log (a transaction's marker).

    Raises Corrupt for unreadable bytes.
    """
    if key is None or len(key) < _KEY.size or value is None or len(value) < _VERSION.size:
        raise Corrupt("a control record without a key or value")
    kind = _TYPES.get(_KEY.unpack_from(key)[1])
    if kind is None:
        return None
    record, _end = read_record(
        record_codec(kind.__name__), value, 0, _VERSION.unpack_from(value)[0]
    )
    assert isinstance(record, kind)
    return record
