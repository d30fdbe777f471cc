"""`__transaction_state`: keys and values of its records.

In: bytes of a key or a value, or one of the two records. Out: the other. It never decides which record wins.

A key opens with the record's number as int16, a value with its version. Values are written at version 0, as Kafka does
below `transaction.version` 1; every version is read. Kafka: `TransactionLog`.
"""

from struct import Struct
from typing import Final

from stratalog.errors import Corrupt
from stratalog.ports import Buffer
from stratalog.wire.internal import read_record, record_codec
from stratalog.wire.internal.transactions_records import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)

__all__ = [
    "PartitionsSchema",
    "TransactionLogValue",
    "decode_key",
    "decode_value",
    "encode_key",
    "encode_value",
]

_INT16: Final = Struct(">h")
_VALUE_VERSION: Final = 0


def encode_key(transactional_id: str) -> bytes:
    """Return the key of a transactional id's records."""
    codec = record_codec("TransactionLogKey")
    out = bytearray(_INT16.pack(codec.number))
    codec.write[0](out, TransactionLogKey(transactional_id=transactional_id))
    return bytes(out)


def encode_value(value: TransactionLogValue) -> bytes:
    """Return the value's bytes."""
    out = bytearray(_INT16.pack(_VALUE_VERSION))
    record_codec("TransactionLogValue").write[_VALUE_VERSION](out, value)
    return bytes(out)


def decode_key(data: Buffer) -> str | None:
    """Return the transactional id; None for another kind of record, to be skipped. Raises Corrupt."""
    codec = record_codec("TransactionLogKey")
    if _prefix(data) != codec.number:
        return None
    key, _end = read_record(codec, data, _INT16.size, 0)
    found: str = key.transactional_id
    return found


def decode_value(data: Buffer) -> TransactionLogValue:
    """Return the value; raises Corrupt for unreadable bytes and unknown versions."""
    value, _end = read_record(record_codec("TransactionLogValue"), data, _INT16.size, _prefix(data))
    assert isinstance(value, TransactionLogValue)
    return value


def _prefix(data: Buffer) -> int:
    if len(data) < _INT16.size:
        raise Corrupt(f"{len(data)} bytes where a record of __transaction_state opens with two")
    number: int = _INT16.unpack_from(data)[0]
    return number
