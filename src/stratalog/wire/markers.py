"""The control record that ends a transaction in one partition (KIP-98).

In: a control batch, or the end of a transaction. Out: the other. It never decides whether a marker counts.

The key is two int16: its version (0), and 0 for an abort or 1 for a commit. The value is its version (0, int16) and
the coordinator's epoch (int32). Kafka: `EndTransactionMarker`, `ControlRecordType`.
"""

from struct import Struct
from typing import Final, NamedTuple

from stratalog.errors import Corrupt
from stratalog.wire.batch import CODEC_MASK, HEADER_SIZE
from stratalog.wire.records import Record, build_batch, read_records

__all__ = ["RAISED_FROM", "Ended", "Marker", "marker_of", "read_marker"]

_KEY: Final = Struct(">hh")
_VALUE: Final = Struct(">hi")
_RECORD: Final = Struct(">5shhBhiB")
_OPENING: Final = bytes((32, 0, 0, 0, 8))
"""How a marker's record begins: 16 bytes follow, no attributes, deltas of 0, a key of 4 bytes."""
_VALUE_SIZE: Final = 12
"""As a varint: 6 bytes."""
_BATCH_SIZE: Final = HEADER_SIZE + _RECORD.size
_CODEC_AT: Final = 22
RAISED_FROM: Final = 2
"""From this `transaction.version` on each transaction has an epoch of its own."""
_ABORT: Final = 0
_COMMIT: Final = 1


class Marker(NamedTuple):
    """The end of a transaction, by a coordinator of this epoch."""

    is_commit: bool
    coordinator_epoch: int


class Ended(NamedTuple):
    """The end of a producer's transaction, as its coordinator decided it."""

    producer_id: int
    producer_epoch: int
    marker: Marker
    version: int = 0
    """The transaction's `transaction.version`: from 2 on its end has raised the epoch (KIP-890, KIP-1228)."""

    @property
    def raises_epoch(self) -> bool:
        """Whether the marker's epoch must be above every one that the producer has written."""
        return self.version >= RAISED_FROM

    def batch(self, wall_ms: int) -> bytearray:
        """Return the control batch that ends it in one partition."""
        marker = self.marker
        key = _KEY.pack(0, _COMMIT if marker.is_commit else _ABORT)
        value = _VALUE.pack(0, marker.coordinator_epoch)
        return build_batch(
            [Record(0, wall_ms, key, value, ())],
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            transactional=True,
            control=True,
        )


def read_marker(view: memoryview) -> Marker | None:
    """Return the marker in a control batch. None where the cleaner took it, and for other control records.

    Raises Corrupt where the record is too short.
    """
    if len(view) == _BATCH_SIZE and not view[_CODEC_AT] & CODEC_MASK:
        # As every coordinator writes it: a tenth of the general reader's time.
        opening, _version, kind, size, _, epoch, headers = _RECORD.unpack_from(view, HEADER_SIZE)
        if (
            opening == _OPENING
            and size == _VALUE_SIZE
            and not headers
            and kind in (_ABORT, _COMMIT)
        ):
            return Marker(kind == _COMMIT, epoch)
    record = next(iter(read_records(view)), None)
    return None if record is None else marker_of(record)


def marker_of(record: Record) -> Marker | None:
    """Return the marker that a control record is, as `read_marker`."""
    if record.key is None or len(record.key) < _KEY.size:
        raise Corrupt(f"a control record without a type at offset {record.offset}")
    kind = _KEY.unpack_from(record.key)[1]
    if kind not in (_ABORT, _COMMIT):
        return None
    if record.value is None or len(record.value) < _VALUE.size:
        raise Corrupt(f"a transaction's marker without an epoch at offset {record.offset}")
    return Marker(kind == _COMMIT, _VALUE.unpack_from(record.value)[1])
