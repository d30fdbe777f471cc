"""Encode and decode the batches of the metadata log.

In: metadata or control records, or the records of a batch. Out: a batch ready to append, or its metadata records. It
never appends and never reads a log.
"""

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from stratalog.errors import Corrupt
from stratalog.wire.internal.control import ControlRecord, decode_control, encode_control
from stratalog.wire.internal.metadata import decode, encode_all
from stratalog.wire.records import BatchBuilder, Record, build_batch

METADATA_TOPIC: Final = "__cluster_metadata"
METADATA_TOPIC_ID: Final = UUID(int=1)
"""Kafka: Uuid.METADATA_TOPIC_ID, as in the partition's `partition.metadata`."""


def encode_batch(records: Sequence[Any], now_ms: int) -> bytearray:
    """Return one batch of metadata records, applied wholly or not at all; the appending log sets offset and epoch."""
    builder = BatchBuilder()
    for value in encode_all(records):
        builder.add(None, value, now_ms)
    return builder.build()


def encode_control_batch(records: Sequence[ControlRecord], now_ms: int) -> bytearray:
    """Return one control batch (KIP-595): what a new leader appends first."""
    pairs = [encode_control(record) for record in records]
    return build_batch([Record(0, now_ms, key, value) for key, value in pairs], control=True)


def decode_record(record: Record, *, is_control: bool) -> Any:
    """Return the metadata record in a record of the log, for `Controller.replay`.

    Raises Corrupt where it is not a record of a metadata log.
    """
    if is_control:
        found = decode_control(record.key, record.value)
        if found is not None:
            return found
    elif record.value is not None:
        return decode(record.value)
    raise Corrupt(f"offset {record.offset}: not a record of {METADATA_TOPIC}")
