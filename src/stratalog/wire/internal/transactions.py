"""`__transaction_state`: keys and values of its records.

In: bytes of a key or a value, or one of the two records. Out: the other. It never decides which record wins.

A key opens with the record's number as int16, a value with its version. A value with a field that version 0 lacks is
written at version 1, any other at version 0: Kafka and earlier releases read both. Such fields are of Kafka's second
protocol and of transactions that were kept (KIP-939); Kafka writes the previous producer id in the first one, too.
Kafka: `TransactionLog`.
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


def encode_key(transactional_id: str) -> bytes:
    """Return the key of a transactional id's records."""
    codec = record_codec("TransactionLogKey")
    out = bytearray(_INT16.pack(codec.number))
    codec.write[0](out, TransactionLogKey(transactional_id=transactional_id))
    return bytes(out)


def encode_value(value: TransactionLogValue) -> bytes:
    """Return the value's bytes."""
    later = (value.previous_producer_id, value.next_producer_id, value.next_producer_epoch)
    version = int(value.client_transaction_version > 0 or max(later) >= 0)
    out = bytearray(_INT16.pack(version))
    record_codec("TransactionLogValue").write[version](out, value)
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
