"""Follow transactions through the batches of a log that is cleaned.

In: aborted transactions, by the log's `.txnindex` files; batches in order. Out: whether a batch, or a marker, may go.
It never decides that a marker goes at once: its delete horizon does (`filtering.py`).

A batch of an aborted transaction goes. A marker may go once no batch of its transaction is left. Kafka:
`CleanedTransactionMetadata`, `TransactionIndex`.
"""

from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

from stratalog.errors import Corrupt
from stratalog.log.effects import Program, Read
from stratalog.log.segment import TRANSACTION_INDEX, Segment, segment_path
from stratalog.wire.batch import BatchHeader
from stratalog.wire.records import read_records

__all__ = ["Aborted", "Transactions", "read_aborted"]

_ENTRY: Final = Struct(">hqqqq")
_VERSION: Final = 0
_MARKER: Final = Struct(">hh")
_ABORT: Final = 0
_COMMIT: Final = 1
_INDEX_BYTES_MAX: Final = 64 << 20


class Aborted(NamedTuple):
    """An aborted transaction: its producer, its first and last offset, the last stable offset as it ended."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def encode(self) -> bytes:
        """Its entry of a `.txnindex` file."""
        return _ENTRY.pack(_VERSION, *self)


def read_aborted(directory: str, segments: Iterable[Segment]) -> Program[list[Aborted]]:
    """The aborted transactions of these segments, by their first offsets. Raises Corrupt."""
    found: list[Aborted] = []
    for segment in segments:
        if not segment.has_transaction_index:
            continue
        path = segment_path(directory, segment.base_offset, TRANSACTION_INDEX)
        data = yield Read(path, 0, _INDEX_BYTES_MAX)
        assert isinstance(data, bytes | bytearray)
        if len(data) % _ENTRY.size:
            raise Corrupt(f"{path}: {len(data)} bytes are no whole entries")
        for version, *fields in _ENTRY.iter_unpack(data):
            if version != _VERSION:
                raise Corrupt(f"{path}: an entry of version {version}")
            found.append(Aborted(*fields))
    return sorted(found, key=lambda one: one.first_offset)


class Transactions:
    """The transactions that batches seen so far belong to. Feed it every batch, in order.

    `kept` are the aborted transactions whose markers stay, for the index of the segment that is written.
    """

    def __init__(self, aborted: Iterable[Aborted]) -> None:
        self.kept: list[Aborted] = []
        self._coming = sorted(aborted, key=lambda one: one.first_offset, reverse=True)
        self._aborted: dict[int, tuple[Aborted, bool]] = {}
        """By producer: the transaction, and whether a batch of it was seen."""
        self._committed: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """Take in a batch of data; return whether its transaction is aborted, so that the batch may go."""
        self._begin(header.last_offset)
        if not header.is_transactional:
            return False
        found = self._aborted.get(header.producer_id)
        if found is None:
            self._committed.add(header.producer_id)
            return False
        self._aborted[header.producer_id] = found[0], True
        return True

    def may_go(self, view: memoryview, header: BatchHeader) -> bool:
        """Take in a control batch; return whether nothing that stays needs it. Raises Corrupt."""
        self._begin(header.last_offset)
        record = next(iter(read_records(view)), None)
        if record is None:
            return True  # cleaned before, and kept for its producer
        if record.key is None or len(record.key) < _MARKER.size:
            raise Corrupt(f"a control record without a type at offset {record.offset}")
        kind = _MARKER.unpack_from(record.key)[1]
        if kind == _ABORT:
            found = self._aborted.pop(header.producer_id, None)
            if found is not None and found[1]:
                self.kept.append(found[0])
                return False
            return True
        if kind == _COMMIT:
            seen = header.producer_id in self._committed
            self._committed.discard(header.producer_id)
            return not seen
        return False

    def _begin(self, offset: int) -> None:
        while self._coming and self._coming[-1].first_offset <= offset:
            one = self._coming.pop()
            self._aborted.setdefault(one.producer_id, (one, False))
