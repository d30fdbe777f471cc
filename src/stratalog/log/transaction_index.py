"""Kafka's `.txnindex` file: the aborted transactions whose markers lie in one segment.

In: bytes of the file, or aborted transactions. Out: the other; the transactions that matter to a range of offsets. It
never touches a file: a segment holds the bytes of its index in memory.

Entries are in the order of their markers. A transaction's records may lie in earlier segments than its marker. Each
entry also has the last stable offset after its marker, so a search knows where it may stop. Kafka: `TransactionIndex`,
`AbortedTxn`.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple, Protocol

from stratalog.errors import Corrupt
from stratalog.ports import Buffer
from stratalog.wire.transactions import AbortedTransaction

__all__ = ["Aborted", "below", "check_index", "entries", "overlapping"]

_ENTRY: Final = Struct(">hqqqq")
_VERSION: Final = 0


class Aborted(NamedTuple):
    """An aborted transaction: its producer, its first offset, its marker's, the last stable offset as it ended."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def encode(self) -> bytes:
        """Return its entry of a `.txnindex` file."""
        return _ENTRY.pack(_VERSION, *self)


class Indexed(Protocol):
    """A segment, as far as its transaction index goes."""

    transaction_index: bytearray


def check_index(data: Buffer, path: str, base_offset: int) -> None:
    """Raise Corrupt where a `.txnindex` file of the segment at `base_offset` is not whole or not in order."""
    if len(data) % _ENTRY.size:
        raise Corrupt(f"{path}: {len(data)} bytes are no whole entries")
    last = base_offset - 1
    for version, _producer_id, first_offset, last_offset, _stable in _ENTRY.iter_unpack(data):
        if version != _VERSION:
            raise Corrupt(f"{path}: an entry of version {version}")
        if not (last < last_offset and 0 <= first_offset <= last_offset):
            raise Corrupt(f"{path}: an entry of offsets {first_offset} to {last_offset}")
        last = last_offset


def entries(data: Buffer) -> Iterator[Aborted]:
    """Yield the entries of a checked index, in its order."""
    for _version, *fields in _ENTRY.iter_unpack(data):
        yield Aborted(*fields)


def below(data: Buffer, offset: int) -> bytearray:
    """Return the part of an index whose markers lie below `offset`."""
    return bytearray(data[: _ENTRY.size * _first_reaching(data, offset)])


def overlapping(segments: Iterable[Indexed], first: int, end: int) -> list[AbortedTransaction]:
    """Return the aborted transactions with offsets in [first, end), in the order of their markers.

    `segments` are those from the one that holds `first` to the log's end.
    """
    found: list[AbortedTransaction] = []
    for segment in segments:
        data = segment.transaction_index
        for at in range(_first_reaching(data, first), len(data) // _ENTRY.size):
            _version, producer_id, begin, last, stable = _ENTRY.unpack_from(data, at * _ENTRY.size)
            if begin < end:
                found.append(AbortedTransaction(producer_id, begin, last))
            if stable >= end:
                return found
    return found


def _first_reaching(data: Buffer, offset: int) -> int:
    """Return the number of the first entry whose marker lies at `offset` or beyond."""
    if not data:
        return 0
    numbers = range(len(data) // _ENTRY.size)
    return bisect_left(
        numbers, offset, key=lambda at: _ENTRY.unpack_from(data, at * _ENTRY.size)[3]
    )
