"""The object that holds one closed segment in the bucket: raw batches, then sections, then a table and a footer.

In: the bytes of a `.log` file piece by piece, and the segment's companions; an object in a store. Out: the pieces to
put; the decoded tail, and checked ranges of data. It never holds a segment in memory and never decodes records.

Layout (big-endian), every byte under a CRC32C:

- the batches, byte for byte as in the `.log` file: section 1, always at position 0;
- the other sections, one after the other without gaps;
- the table: per section type u16, reserved u16 = 0, position u64, length u64, CRC32C u32;
- the footer, 32 bytes: magic, version u16, reserved u16 = 0, the table's position u64, length u32 and CRC32C u32, and
  the CRC32C u32 of the 28 bytes before.

Readers skip sections of types they do not know. `docs/formats.md` has each section's bytes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from operator import attrgetter
from struct import Struct, error
from typing import Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from stratalog.errors import Corrupt
from stratalog.ports import Buffer, ObjectStore
from stratalog.tier.formats.segment_index import (
    FLAG_MINIMUM_EXACT,
    FLAG_TRANSACTIONAL,
    IndexBlock,
    OpenEntry,
)
from stratalog.tier.formats.segment_index import decode as decode_index
from stratalog.wire.batch import CRC_START, HEADER, HEADER_SIZE, PREFIX_SIZE
from stratalog.wire.transactions import AbortedTransaction

__all__ = [
    "INDEX_INTERVAL_BYTES",
    "SectionType",
    "SegmentIndex",
    "SegmentSummary",
    "SegmentWriter",
    "read_footer",
    "read_range",
    "read_ranges",
]

INDEX_INTERVAL_BYTES: Final = 64 * 1024
"""Bytes of data per index entry: 1 GiB has 16,000 entries, 0.9 MB."""

MAGIC_V2: Final = 2
MAGIC: Final = b"STRATSEG"
VERSION: Final = 1
_FOOTER: Final = Struct(">8sHHQII")
_CRC: Final = Struct(">I")
FOOTER_SIZE: Final = _FOOTER.size + _CRC.size
_SECTION: Final = Struct(">HHQQI")
_SUMMARY: Final = Struct(">16siiqqQqqI")
_EPOCHS: Final = Struct(">iq")
_ABORTED: Final = Struct(">qqq")
_TAIL_GUESS: Final = 64 * 1024


class SectionType(IntEnum):
    """The kinds of sections. Numbers are never reused."""

    BATCHES = 1
    INDEX = 2
    LEADER_EPOCHS = 3
    PRODUCER_SNAPSHOT = 4
    ABORTED_TRANSACTIONS = 5
    SUMMARY = 6
    VISIBILITY = 7
    KEY_FILTER = 16
    COLUMN_STATISTICS = 17  # reserved
    COMPACTION_GENERATION = 18  # reserved


class Section(NamedTuple):
    """One row of the table."""

    type: int
    position: int
    length: int
    crc: int


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """The contents of an object. Sizes are bytes, timestamps epoch ms (-1: no record), offsets inclusive.

    `min_timestamp` is a true minimum only where `min_timestamp_exact` (see `OpenEntry`). `footer_crc` is the footer's
    checksum; through the table, it covers all bytes of the object.
    """

    topic_id: UUID
    partition: int
    leader_epoch: int
    base_offset: int
    last_offset: int
    records: int
    min_timestamp: int
    max_timestamp: int
    min_timestamp_exact: bool
    data_size: int
    size: int
    data_crc: int
    footer_crc: int


@dataclass(frozen=True, slots=True)
class SegmentIndex:
    """A segment object's decoded tail: everything but the batches.

    `leader_epochs` are (epoch, first offset) pairs; `producer_snapshot` and `aborted_transactions` are Kafka's
    `.snapshot` and `.txnindex` files byte for byte (empty: none).
    `aborted` are all aborted transactions with records here, wherever they begin and end, in the order of last offsets;
    None where some batch is transactional and the uploading version did not record them.
    """

    path: str
    summary: SegmentSummary
    entries: IndexBlock
    leader_epochs: tuple[tuple[int, int], ...]
    producer_snapshot: bytes
    aborted_transactions: bytes
    aborted: tuple[AbortedTransaction, ...] | None
    sections: tuple[Section, ...]


class SegmentWriter:
    """Turns the bytes of a closed segment into those of its object.

    Feed it the `.log` file in pieces of any size and put what it returns, in order; then put what `finish` returns. It
    checks every batch's CRC and that offsets rise: after Corrupt, no part may be put under a final name. Batches that
    end before `start_offset` are left out (another leader's segment edges). Memory: a piece and the largest batch.
    """

    def __init__(
        self,
        *,
        topic_id: UUID,
        partition: int,
        leader_epoch: int,
        start_offset: int,
        index_interval_bytes: int = INDEX_INTERVAL_BYTES,
    ) -> None:
        self.topic_id = topic_id
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.start_offset = start_offset
        self.index = IndexBlock(index_interval_bytes)
        self.summary: SegmentSummary | None = None
        self._entry = OpenEntry(0)
        self._next_offset = start_offset
        self._crc = 0
        self._position = 0
        self._rest = b""

    @property
    def unfinished(self) -> int:
        """The bytes fed so far of a batch that is not whole."""
        return len(self._rest)

    def feed(self, chunk: Buffer) -> memoryview:
        """Return the data that can be put now: the whole batches fed so far. Raises Corrupt."""
        view = memoryview(self._rest + chunk if self._rest else chunk)
        interval_bytes = self.index.interval_bytes
        position = first = counted = 0
        while position + HEADER_SIZE <= len(view):
            header = HEADER.unpack_from(view, position)
            end = position + header[1] + PREFIX_SIZE
            if end - position < HEADER_SIZE or header[3] != MAGIC_V2:
                raise Corrupt(f"no batch begins at byte {self._position + position}")
            if end > len(view):
                break
            if crc32c(view[position + CRC_START : end]) != header[4]:
                raise Corrupt(f"the batch at byte {self._position + position} fails its CRC")
            last_offset = header[0] + header[6]
            if header[0] < self._next_offset:
                if last_offset >= self.start_offset or self._entry.length:
                    raise Corrupt(f"the batch of offset {header[0]} follows {self._next_offset}")
                first = counted = end  # another leader archived it
            else:
                if self._entry.length >= interval_bytes:
                    self._close_entry(view[counted:position])
                    counted = position
                self._entry.take(header, last_offset, end - position)
                self._next_offset = last_offset + 1
            position = end
        self._entry.crc = crc32c(view[counted:position], self._entry.crc)
        self._rest = bytes(view[position:])
        self._position += position
        ready = view[first:position]
        self._crc = crc32c(ready, self._crc)
        return ready

    def _close_entry(self, last_bytes: memoryview) -> None:
        self._entry.crc = crc32c(last_bytes, self._entry.crc)
        self.index.append(self._entry.closed())
        self._entry = OpenEntry(self.index.data_size)

    def finish(
        self,
        *,
        next_offset: int,
        leader_epochs: Sequence[tuple[int, int]] = (),
        producer_snapshot: bytes = b"",
        aborted_transactions: bytes = b"",
        aborted: Sequence[AbortedTransaction] | None = None,
        key_filter: bytes = b"",
    ) -> bytes:
        """Return the bytes after the data: sections, table and footer; `summary` is available from now on.

        `next_offset` is the start of the next segment; `aborted` as in `SegmentIndex`; `key_filter` are the pages of
        `KeyFilterBuilder` (empty: no section). Raises Corrupt where the data ended within a batch, or has offsets
        past `next_offset`.
        """
        if self._rest:
            raise Corrupt(f"the segment ends within the batch at byte {self._position}")
        if self._next_offset > next_offset:
            raise Corrupt(f"the segment holds offset {self._next_offset - 1}, past its end")
        index = self.index
        if self._entry.length:
            self._close_entry(memoryview(b""))
        flags = FLAG_MINIMUM_EXACT if all(f & FLAG_MINIMUM_EXACT for f in index.flags) else 0
        filled = [at for at, records in enumerate(index.records) if records]
        minimum = min((index.min_timestamps[at] for at in filled), default=-1)
        maximum = max((index.max_timestamps[at] for at in filled), default=-1)
        summary = _SUMMARY.pack(
            self.topic_id.bytes,
            self.partition,
            self.leader_epoch,
            self.start_offset,
            next_offset - 1,
            sum(index.records),
            minimum,
            maximum,
            flags,
        )
        data_size = index.data_size
        # Directly behind the batches: so the manifest's numbers say where each page is.
        sections = {SectionType.KEY_FILTER: key_filter} if key_filter else {}
        sections |= {
            SectionType.INDEX: index.encode(),
            SectionType.LEADER_EPOCHS: b"".join(_EPOCHS.pack(*pair) for pair in leader_epochs),
            SectionType.PRODUCER_SNAPSHOT: producer_snapshot,
            SectionType.ABORTED_TRANSACTIONS: aborted_transactions,
            SectionType.SUMMARY: summary,
        }
        if aborted is not None and _is_transactional(index):
            ordered = sorted(aborted, key=attrgetter("last_offset"))
            sections[SectionType.VISIBILITY] = b"".join(_ABORTED.pack(*one) for one in ordered)
        batches = Section(SectionType.BATCHES, 0, data_size, self._crc)
        tail, footer_crc = _encode_tail(batches, sections)
        crcs = (self._crc, footer_crc)
        self.summary = _summary(summary, data_size, data_size + len(tail), crcs)
        return tail


def _is_transactional(entries: IndexBlock) -> bool:
    return any(flags & FLAG_TRANSACTIONAL for flags in entries.flags)


def _encode_tail(data: Section, sections: dict[SectionType, bytes]) -> tuple[bytes, int]:
    """Return sections, table and footer as one piece, and the footer's CRC."""
    table = [data]
    position = data.length
    for kind, content in sections.items():
        table.append(Section(kind, position, len(content), crc32c(content)))
        position += len(content)
    rows = b"".join(_SECTION.pack(row.type, 0, row.position, row.length, row.crc) for row in table)
    footer = _FOOTER.pack(MAGIC, VERSION, 0, position, len(rows), crc32c(rows))
    footer_crc = crc32c(footer)
    return b"".join((*sections.values(), rows, footer, _CRC.pack(footer_crc))), footer_crc


def read_range(store: ObjectStore, path: str, start: int, size: int) -> bytes | memoryview:
    """Return `size` bytes of an object.

    Raises Corrupt naming the object where it, or some of the bytes, are missing; Unavailable.
    """
    try:
        data = store.get_range(path, start, size) if size else b""
    except FileNotFoundError as missing:
        raise Corrupt(f"{path}: missing from the bucket {store.url}") from missing
    if len(data) != size:
        raise Corrupt(f"{path}: {len(data)} bytes at {start} instead of {size}")
    return data


def read_ranges(store: ObjectStore, path: str, start: int, sizes: Sequence[int]) -> Iterator[bytes]:
    """Yield neighbouring ranges, read in one request, each as it arrives; otherwise as `read_range`."""
    try:
        for size, data in zip(sizes, store.get_ranges(path, start, sizes), strict=True):
            if len(data) != size:
                raise Corrupt(f"{path}: {len(data)} bytes at {start} instead of {size}")
            yield data
            start += size
    except FileNotFoundError as missing:
        raise Corrupt(f"{path}: missing from the bucket {store.url}") from missing


def read_footer(
    store: ObjectStore, path: str, size: int, tail_start: int | None = None
) -> SegmentIndex:
    """Return the decoded tail of an object of `size` bytes: one GET where its position is known (the manifest says).

    A key filter is not read: it lies between the batches and the tail. Raises Corrupt naming a missing object, or one
    with a damaged tail; Unavailable.
    """
    start = max(0, size - _TAIL_GUESS) if tail_start is None else tail_start
    if size < FOOTER_SIZE or start > size - FOOTER_SIZE:
        raise Corrupt(f"{path}: {size} bytes are no segment object")
    tail = bytes(read_range(store, path, start, size - start))
    table, footer_crc = _decode_footer(tail, start, size, path)
    skipped = 2 if len(table) > 1 and table[1].type == SectionType.KEY_FILTER else 1
    first = table[skipped - 1].position + table[skipped - 1].length
    if first < start:
        tail = bytes(read_range(store, path, first, start - first)) + tail
        start = first
    contents: dict[int, bytes] = {}
    for row in table[skipped:]:
        content = tail[row.position - start : row.position - start + row.length]
        if crc32c(content) != row.crc:
            raise Corrupt(f"{path}: section {row.type} fails its checksum")
        contents[row.type] = content
    return _decode_sections(table, contents, size, footer_crc, path)


def _decode_footer(tail: bytes, start: int, size: int, path: str) -> tuple[list[Section], int]:
    """Return the section table, checked to tile the object, and the footer's CRC.

    `tail` is the object from `start` on.
    """
    footer = tail[-FOOTER_SIZE : -_CRC.size]
    footer_crc = crc32c(footer)
    if _CRC.pack(footer_crc) != tail[-_CRC.size :]:
        raise Corrupt(f"{path}: its footer fails its checksum")
    magic, version, reserved, position, length, table_crc = _FOOTER.unpack(footer)
    if magic != MAGIC or version != VERSION or reserved:
        raise Corrupt(f"{path}: not a segment object of version {VERSION}")
    if position + length + FOOTER_SIZE != size or length % _SECTION.size or position < start:
        raise Corrupt(f"{path}: its section table is not where its footer says")
    rows = tail[position - start : position - start + length]
    if crc32c(rows) != table_crc:
        raise Corrupt(f"{path}: its section table fails its checksum")
    table: list[Section] = []
    expected = 0
    for kind, _, at, extent, crc in _SECTION.iter_unpack(rows):
        if at != expected or (kind == SectionType.BATCHES) != (not table):
            raise Corrupt(f"{path}: its sections do not tile it")
        table.append(Section(kind, at, extent, crc))
        expected += extent
    if expected != position or not table:
        raise Corrupt(f"{path}: its sections do not tile it")
    return table, footer_crc


def _decode_sections(
    table: Iterable[Section], contents: dict[int, bytes], size: int, footer_crc: int, path: str
) -> SegmentIndex:
    rows = tuple(table)
    try:
        entries = decode_index(contents[SectionType.INDEX], path)
        summary = contents[SectionType.SUMMARY]
        epochs = contents[SectionType.LEADER_EPOCHS]
        snapshot = contents[SectionType.PRODUCER_SNAPSHOT]
        aborted = contents[SectionType.ABORTED_TRANSACTIONS]
        pairs = tuple(_EPOCHS.iter_unpack(epochs))
        visible = contents.get(SectionType.VISIBILITY, None if _is_transactional(entries) else b"")
        hidden = (
            None
            if visible is None
            else tuple(map(AbortedTransaction._make, _ABORTED.iter_unpack(visible)))
        )
        parsed = _summary(summary, rows[0].length, size, (rows[0].crc, footer_crc))
    except KeyError as missing:
        raise Corrupt(f"{path}: it has no section {missing}") from missing
    except error as wrong:
        raise Corrupt(f"{path}: a section has the wrong length") from wrong
    if entries.data_size != rows[0].length:
        raise Corrupt(f"{path}: its index covers {entries.data_size} of {rows[0].length} bytes")
    return SegmentIndex(path, parsed, entries, pairs, snapshot, aborted, hidden, rows)


def _summary(data: bytes, data_size: int, size: int, crcs: tuple[int, int]) -> SegmentSummary:
    topic, partition, epoch, base, last, records, minimum, maximum, flags = _SUMMARY.unpack(data)
    return SegmentSummary(
        topic_id=UUID(bytes=topic),
        partition=partition,
        leader_epoch=epoch,
        base_offset=base,
        last_offset=last,
        records=records,
        min_timestamp=minimum,
        max_timestamp=maximum,
        min_timestamp_exact=bool(flags & FLAG_MINIMUM_EXACT),
        data_size=data_size,
        size=size,
        data_crc=crcs[0],
        footer_crc=crcs[1],
    )
