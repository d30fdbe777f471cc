"""Record batches to Arrow.

In: buffers of whole record batches (v2), as they lie in a log, in the bucket or in a Fetch response, and the range of
offsets that is wanted. Out: Arrow record batches with the columns of Spark's Kafka source, bounded in rows and bytes.
It never does I/O, and never passes over bytes that are not what was written: `Corrupt` names the place.

What is checked: format, CRC32C of each batch, that offsets follow each other without a gap (a caller that knows of
compaction says so), every length inside every record. Control batches and aborted transactions are left out.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from stratalog.errors import Corrupt
from stratalog.kernels import compiled
from stratalog.kernels.columns import COLUMNS, HEADERS
from stratalog.kernels.missing import Missing
from stratalog.kernels.rows import Layout, Rows
from stratalog.ports import Buffer
from stratalog.wire.compression import decompress
from stratalog.wire.records import Record, build_batch, read_records

__all__ = ["Decoder", "Missing", "warm"]

MAX_PAYLOAD = 256 << 20
"""Decompressed bytes of one batch that are still believed."""

_TABLE_ROWS = 4096
_CRC_FROM = 21  # a batch's checksum covers what follows it
_CODEC, _TRANSACTIONAL, _CONTROL = 0x07, 0x10, 0x20
_ABORT = 0


class Decoder:
    """Decodes one range of offsets of one partition, buffer by buffer.

    Give it buffers in order with `decode`, drain each iterator, then `flush`. `next_offset` is the first offset not
    seen yet: the range is complete when it has reached `end`. `consumed` is how many bytes of the last buffer were
    whole batches.
    """

    def __init__(
        self,
        layout: Layout,
        first: int,
        end: int,
        *,
        unreadable: Callable[[str], None] | None = None,
    ) -> None:
        """`unreadable` is told of a batch that is what a producer wrote and yet cannot be read.

        What is whole before the fault is kept, the rest of the batch left out. Without `unreadable`: Corrupt.
        """
        self.end = end
        self.next_offset = first
        self.consumed = 0
        self._unreadable = unreadable or _refuse
        self._rows = Rows(layout, self._unreadable)
        self._table = np.empty((_TABLE_ROWS, compiled.TABLE_COLUMNS), dtype=np.int64)

    def decode(
        self,
        data: Buffer,
        name: str,
        *,
        gaps: bool = False,
        checked: bool = False,
        aborted: Sequence[tuple[int, int]] = (),
    ) -> Iterator[pa.RecordBatch]:
        """Decode the whole batches at the front of `data`; a part of one at its end is left alone.

        `name` is what an error calls the place. `gaps` allows offsets to be absent between batches. `checked`: the
        caller has held the bytes against a checksum of its own. `aborted` is (producer id, first offset) of aborted
        transactions in order, as a Fetch response or a segment lists them. Raises Corrupt, Missing.
        """
        view = memoryview(data)
        payload = (
            np.frombuffer(view, dtype=np.uint8) if view.nbytes else np.empty(0, dtype=np.uint8)
        )
        hidden = _Aborted(aborted)
        first = self.next_offset
        follows = -1  # where the batch before ended; the first may begin before what is wanted
        self.consumed = 0
        status = compiled.FULL
        while status == compiled.FULL and self.next_offset < self.end:
            table = self._table
            found, position, status = compiled.scan(payload, self.consumed, table)
            run = 0  # first batch that waits to be decoded together with those behind it
            for index, row in enumerate(table[:found].tolist()):
                if self.next_offset >= self.end:
                    found, position, status = index, row[compiled.POSITION], compiled.DONE
                    break
                self._check(None if checked else view, row, name, follows)
                if row[compiled.BASE_OFFSET] > self.next_offset and not gaps:
                    yield from self._rows.add(payload, table[run:index], first, self.end, name)
                    raise Missing(name, self.next_offset, min(row[compiled.BASE_OFFSET], self.end))
                follows = row[compiled.BASE_OFFSET] + row[compiled.LAST_DELTA] + 1
                self.next_offset = max(self.next_offset, follows)
                wanted = self._wants(view, row, first, hidden, name)
                if wanted and not row[compiled.ATTRIBUTES] & _CODEC:
                    continue
                yield from self._rows.add(payload, table[run:index], first, self.end, name)
                run = index + 1
                if wanted:
                    yield from self._decompressed(view, table[index : index + 1], row, first, name)
            yield from self._rows.add(payload, table[run:found], first, self.end, name)
            self.consumed = position
        if status == compiled.BAD_BATCH:
            raise Corrupt(
                f"{name}: no record batch of format v2 where offset {self.next_offset} should be"
            )

    def aim(self, first: int, end: int) -> None:
        """Go on with another range of the partition; rows that wait keep waiting."""
        self.next_offset = first
        self.end = end

    def flush(self) -> Iterator[pa.RecordBatch]:
        """The rows that still wait."""
        return self._rows.flush()

    def _check(self, view: memoryview | None, row: list[int], name: str, follows: int) -> None:
        position, base = row[compiled.POSITION], row[compiled.BASE_OFFSET]
        if view is not None:
            covered = view[position + _CRC_FROM : position + row[compiled.SIZE]]
            if crc32c(covered) != row[compiled.CRC]:
                raise Corrupt(f"{name}: batch at offset {base}: its checksum does not hold")
        if row[compiled.COUNT] > row[compiled.LAST_DELTA] + 1:
            raise Corrupt(f"{name}: batch at offset {base}: more records than offsets")
        if base < follows:
            raise Corrupt(f"{name}: batch at offset {base} where {follows} should be")

    def _wants(
        self, view: memoryview, row: list[int], first: int, hidden: "_Aborted", name: str
    ) -> bool:
        attributes, base = row[compiled.ATTRIBUTES], row[compiled.BASE_OFFSET]
        if attributes & _CONTROL:
            if attributes & _TRANSACTIONAL:
                try:
                    hidden.marker(view[row[compiled.POSITION] : row[compiled.END]], row)
                except Corrupt as error:
                    raise Corrupt(f"{name}: batch at offset {base}: {error}") from error
            return False
        if attributes & _CODEC > 4:
            self._unreadable(
                f"{name}: batch at offset {base}: unknown compression codec {attributes & _CODEC}"
            )
            return False
        last = base + row[compiled.LAST_DELTA]
        if last < first or base >= self.end or not row[compiled.COUNT]:
            return False
        return not (attributes & _TRANSACTIONAL and hidden.hides(row[compiled.PRODUCER_ID], last))

    def _decompressed(
        self, view: memoryview, table: Any, row: list[int], first: int, name: str
    ) -> Iterator[pa.RecordBatch]:
        """Decode one compressed batch, its records restored."""
        base = row[compiled.BASE_OFFSET]
        records = view[row[compiled.START] : row[compiled.END]]
        try:
            restored = decompress(row[compiled.ATTRIBUTES] & _CODEC, records, max_bytes=MAX_PAYLOAD)
        except Corrupt as error:
            self._unreadable(f"{name}: batch at offset {base}: {error}")
            return
        if not restored:
            self._unreadable(
                f"{name}: batch at offset {base}: no records where {row[compiled.COUNT]} should be"
            )
            return
        table[0, compiled.START], table[0, compiled.END] = 0, len(restored)
        yield from self._rows.add(
            np.frombuffer(restored, dtype=np.uint8), table, first, self.end, name
        )


def _refuse(what: str) -> None:
    raise Corrupt(what)


class _Aborted:
    """Which producers' batches are inside an aborted transaction, as the log goes by (KIP-98)."""

    def __init__(self, aborted: Sequence[tuple[int, int]]) -> None:
        self._waiting = sorted(aborted, key=lambda transaction: transaction[1], reverse=True)
        self._open: set[int] = set()

    def hides(self, producer_id: int, last_offset: int) -> bool:
        while self._waiting and self._waiting[-1][1] <= last_offset:
            self._open.add(self._waiting.pop()[0])
        return producer_id in self._open

    def marker(self, batch: memoryview, row: list[int]) -> None:
        """A control batch ends its producer's transaction. Its key: version int16, type int16 (0 = abort).

        Opened only where something is hidden.
        """
        if row[compiled.PRODUCER_ID] in self._open:
            for record in read_records(batch):
                if record.key is not None and int.from_bytes(record.key[2:4], "big") == _ABORT:
                    self._open.discard(row[compiled.PRODUCER_ID])


def warm() -> int:
    """Load the kernels, compiling where no cache has them, and run them once; returns the rows decoded (2)."""
    decoder = Decoder(Layout("warm", 0, (*COLUMNS, HEADERS), max_rows=8), 0, 1)
    rows = 0
    for codec in ("none", "zstd"):
        decoder.next_offset = 0
        batch = build_batch([Record(0, 0, b"key", b"value", (("name", b"header"),))], codec=codec)
        rows += sum(found.num_rows for found in decoder.decode(batch, "warm"))
        rows += sum(found.num_rows for found in decoder.flush())
    return rows
