"""The index block of a segment object: one entry for every run of whole batches, as columns.

In: batch headers in the order of the data; an encoded block. Out: the encoded block; the bytes that hold an offset or
a timestamp. It never sees records.

An entry's CRC32C covers its bytes of the data. So a reader that fetches ranges at entry edges can check all of them
with the block alone. (A batch's own CRC leaves out its base offset and leader epoch.)

Layout (big-endian): entries u32, interval u32, then the columns, each whole: base offset i64, last offset i64,
position i64, length u32, records u32, minimum timestamp i64, maximum timestamp i64, flags u32, CRC32C u32.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from struct import Struct
from sys import byteorder
from typing import Final, NamedTuple

from crc32c import crc32c

from stratalog.errors import Corrupt
from stratalog.ports import Buffer
from stratalog.wire.batch import CODEC_MASK, CONTROL, LOG_APPEND_TIME, TRANSACTIONAL

__all__ = [
    "FLAG_COMPRESSED",
    "FLAG_CONTROL",
    "FLAG_LOG_APPEND_TIME",
    "FLAG_MINIMUM_EXACT",
    "FLAG_TRANSACTIONAL",
    "IndexBlock",
    "IndexEntry",
    "OpenEntry",
    "decode",
]

FLAG_CONTROL: Final = 1
"""Some batch holds control records."""
FLAG_TRANSACTIONAL: Final = 2
"""Some batch belongs to a transaction."""
FLAG_COMPRESSED: Final = 4
"""Some batch is compressed."""
FLAG_LOG_APPEND_TIME: Final = 8
"""Some batch has the broker's timestamps."""
FLAG_MINIMUM_EXACT: Final = 16
"""The minimum timestamp is exact; otherwise it is only the least *first* timestamp of the batches (see `OpenEntry`)."""

NO_TIMESTAMP: Final = -1
_HEAD: Final = Struct(">II")
_ENTRY_SIZE: Final = 56


class IndexEntry(NamedTuple):
    """One run of whole batches: `position` and `length` are bytes of the object's data."""

    base_offset: int
    last_offset: int
    position: int
    length: int
    records: int
    min_timestamp: int
    max_timestamp: int
    flags: int
    crc: int


@dataclass(slots=True)
class OpenEntry:
    """The entry to which batches are added: the fields of `IndexEntry` so far.

    The maximum timestamp is exact: Kafka's header has it. The minimum is exact where the header determines it (one
    record, or log append time). Otherwise the entry has the batch's first timestamp, records may be older, and
    FLAG_MINIMUM_EXACT is off: a reader must not skip such an entry for being too young.
    """

    position: int
    base_offset: int = -1
    last_offset: int = -1
    length: int = 0
    records: int = 0
    min_timestamp: int = NO_TIMESTAMP
    max_timestamp: int = NO_TIMESTAMP
    attributes: int = 0
    minimum_exact: bool = True
    crc: int = 0

    def take(self, header: tuple[int, ...], last_offset: int, size: int) -> None:
        """Count one more batch of `size` bytes; `header` are the fields as unpacked (see `wire/batch.py`)."""
        base_offset, _, _, _, _, attributes, _, base_timestamp, max_timestamp, _, _, _, count = (
            header
        )
        if not self.length:
            self.base_offset = base_offset
        self.last_offset = last_offset
        self.length += size
        self.attributes |= attributes
        if count:
            # The largest timestamp is -1 where all are before 1970.
            if (count == 1 and max_timestamp >= 0) or attributes & LOG_APPEND_TIME:
                base_timestamp = max_timestamp
            else:
                self.minimum_exact = False
            if not self.records or base_timestamp < self.min_timestamp:
                self.min_timestamp = base_timestamp
            self.max_timestamp = max(self.max_timestamp, max_timestamp)
            self.records += count

    def closed(self) -> IndexEntry:
        """Return the entry as it goes into the block."""
        any_of = self.attributes
        flags = FLAG_CONTROL if any_of & CONTROL else 0
        flags |= FLAG_TRANSACTIONAL if any_of & TRANSACTIONAL else 0
        flags |= FLAG_COMPRESSED if any_of & CODEC_MASK else 0
        flags |= FLAG_LOG_APPEND_TIME if any_of & LOG_APPEND_TIME else 0
        flags |= FLAG_MINIMUM_EXACT if self.minimum_exact else 0
        return IndexEntry(
            self.base_offset,
            self.last_offset,
            self.position,
            self.length,
            self.records,
            self.min_timestamp,
            self.max_timestamp,
            flags,
            self.crc,
        )


@dataclass(slots=True)
class IndexBlock:
    """The entries of one segment object in the order of offsets; filled with `append`, or decoded.

    Invariants: entries tile the data from byte 0; offsets rise; an entry's `last_offset` is its last batch's.
    """

    interval_bytes: int
    base_offsets: "array[int]" = field(default_factory=lambda: array("q"))
    last_offsets: "array[int]" = field(default_factory=lambda: array("q"))
    positions: "array[int]" = field(default_factory=lambda: array("q"))
    lengths: "array[int]" = field(default_factory=lambda: array("I"))
    records: "array[int]" = field(default_factory=lambda: array("I"))
    min_timestamps: "array[int]" = field(default_factory=lambda: array("q"))
    max_timestamps: "array[int]" = field(default_factory=lambda: array("q"))
    flags: "array[int]" = field(default_factory=lambda: array("I"))
    crcs: "array[int]" = field(default_factory=lambda: array("I"))

    def __len__(self) -> int:
        return len(self.positions)

    def __iter__(self) -> Iterator[IndexEntry]:
        return map(IndexEntry._make, zip(*self.columns(), strict=True))

    def __getitem__(self, at: int) -> IndexEntry:
        return IndexEntry._make([column[at] for column in self.columns()])

    def columns(self) -> tuple["array[int]", ...]:
        """Return the columns in the order of `IndexEntry`'s fields (and of the layout)."""
        return (
            self.base_offsets,
            self.last_offsets,
            self.positions,
            self.lengths,
            self.records,
            self.min_timestamps,
            self.max_timestamps,
            self.flags,
            self.crcs,
        )

    @property
    def data_size(self) -> int:
        """Bytes that the entries cover."""
        return self.positions[-1] + self.lengths[-1] if self.positions else 0

    def append(self, entry: IndexEntry) -> None:
        """Add the next entry."""
        assert entry.position == self.data_size, "entries tile the data"
        for column, value in zip(self.columns(), entry, strict=True):
            column.append(value)

    def entry_of(self, offset: int) -> int:
        """Return the number of the first entry whose last offset is `offset` or later; `len(self)` where there is
        none.
        """
        return bisect_left(self.last_offsets, offset)

    def check(self, first: int, stop: int, data: Buffer, path: str) -> None:
        """Check the bytes of entries `first` to `stop` (excluded) against their CRCs.

        Raises Corrupt naming `path` for bytes missing or altered.
        """
        start = self.positions[first]
        with memoryview(data) as view:
            for at in range(first, stop):
                begin = self.positions[at] - start
                with view[begin : begin + self.lengths[at]] as piece:
                    if len(piece) != self.lengths[at] or crc32c(piece) != self.crcs[at]:
                        where = f"bytes {self.positions[at]}+{self.lengths[at]}"
                        raise Corrupt(f"{path}: {where} are not those that were archived")

    def encode(self) -> bytes:
        """Return the block's bytes."""
        pieces = [_HEAD.pack(len(self), self.interval_bytes)]
        pieces += [_big_endian(column).tobytes() for column in self.columns()]
        return b"".join(pieces)


def decode(data: Buffer, path: str) -> IndexBlock:
    """Return a block from its bytes. Raises Corrupt naming `path` for a malformed block."""
    if len(data) < _HEAD.size:
        raise Corrupt(f"{path}: its index block has {len(data)} bytes")
    count, interval = _HEAD.unpack_from(data)
    if len(data) != _HEAD.size + count * _ENTRY_SIZE:
        raise Corrupt(f"{path}: its index block has {len(data)} bytes for {count} entries")
    block = IndexBlock(interval)
    at = _HEAD.size
    with memoryview(data) as view:
        for column in block.columns():
            end = at + count * column.itemsize
            column.frombytes(view[at:end])
            if byteorder == "little":
                column.byteswap()
            at = end
    expected = 0
    for position, length in zip(block.positions, block.lengths, strict=True):
        if position != expected:
            raise Corrupt(f"{path}: its index block does not tile the data")
        expected += length
    return block


def _big_endian(column: "array[int]") -> "array[int]":
    swapped = column[:]
    if byteorder == "little":
        swapped.byteswap()
    return swapped
