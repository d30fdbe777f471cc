"""Decode record batches to Arrow.

In: buffers of whole record batches (v2), as in a log, in the bucket or in a Fetch response, and a range of offsets.
Out: Arrow record batches with the columns of Spark's Kafka source, bounded in rows and bytes. It never does I/O, and
never skips bytes that differ from what was written: `Corrupt` names the place.

It checks the format, the CRC32C of each batch, every length inside every record, and that offsets follow each other
without a gap (a caller that knows of compaction permits gaps). It leaves out control batches and aborted
transactions.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from operator import itemgetter
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
from stratalog.wire.compression import Oversized, decompress_into
from stratalog.wire.records import Record, build_batch

__all__ = ["Decoder", "Missing", "warm"]

MAX_PAYLOAD = 256 << 20
"""Most decompressed bytes of one batch; a larger size counts as damage."""
ROOM_BYTES, ROOM_KEPT_BYTES = 1 << 20, 16 << 20
"""Size of the reused buffer in which compressed batches are decompressed side by side. A larger batch enlarges the
buffer; one beyond its limit gets a separate buffer.
"""

_AT_ONCE_BYTES = 256 << 10
"""Bytes decompressed before they become rows: as many as fit into a core's cache beside the rows."""
_TABLE_ROWS = 4096
_CRC_FROM = 21  # a batch's checksum covers the bytes after this position
_CODEC = 0x07


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
        unreadable: Callable[[str, int], None] | None = None,
    ) -> None:
        """`unreadable` receives the reason why a producer's batch cannot be read, and the number of its lost records.

        Records before the fault stay; the fault and later records are left out. Without `unreadable`: Corrupt.
        """
        self.end = end
        self.next_offset = first
        self.consumed = 0
        self._unreadable = unreadable or _refuse
        self._rows = Rows(layout, self._unreadable)
        self._table = np.empty((_TABLE_ROWS, compiled.TABLE_COLUMNS), dtype=np.int64)
        self._times = layout.times
        self._state = np.zeros(compiled.SIFT_SLOTS, dtype=np.int64)
        self._room = np.empty(ROOM_BYTES, dtype=np.uint8)
        self._room_view = self._room.data
        self._used = 0
        self._largest = 0  # size of the previous batch, and probably of the next one

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

        `name` names the place in errors. `gaps` permits missing offsets between batches. `checked`: the caller has
        checked the bytes against its own checksum. `aborted` is (producer id, first offset) of aborted transactions in
        order, as a Fetch response or a segment lists them. Raises Corrupt, Missing.
        """
        view = memoryview(data)
        payload = (
            np.frombuffer(view, dtype=np.uint8) if view.nbytes else np.empty(0, dtype=np.uint8)
        )
        state = self._state
        state[:] = 0
        state[compiled.FIRST] = state[compiled.NEXT] = self.next_offset
        state[compiled.UNTIL], state[compiled.GAPS] = self.end, gaps
        state[compiled.OLDEST], state[compiled.YOUNGEST] = self._times
        state[compiled.FOLLOWS] = -1  # the first batch may begin before the range
        transactions = _transactions(aborted)
        self.consumed = 0
        status = compiled.FULL
        while status == compiled.FULL and self.next_offset < self.end:
            found, behind, status = compiled.scan(payload, self.consumed, self._table)
            if not checked:
                self._check(view, self._table[:found], name)
            taken = yield from self._decode_table(payload, found, transactions, name)
            if taken < found:
                behind, status = int(self._table[taken, compiled.POSITION]), compiled.DONE
            self.consumed = behind
        if status == compiled.BAD_BATCH:
            raise Corrupt(
                f"{name}: no record batch of format v2 where offset {self.next_offset} should be"
            )

    def _decode_table(
        self, payload: Any, found: int, transactions: Any, name: str
    ) -> Generator[pa.RecordBatch, None, int]:
        """Decode the first `found` batches of the table; returns how many it took to reach the end."""
        table, state, first = self._table, self._state, int(self._state[compiled.FIRST])
        index = run = 0
        why = compiled.ENOUGH if not found else -1
        while why not in {compiled.SIFTED, compiled.ENOUGH}:
            index, why = compiled.sift(payload, table, index, found, transactions, state)
            self.next_offset = int(state[compiled.NEXT])
            yield from self._add(payload, table[run:index], first, name)
            run = index
            if why not in {compiled.SIFTED, compiled.ENOUGH}:
                self._wrong(why, table[index], name)
                index += 1
        return index

    def _add(self, payload: Any, table: Any, first: int, name: str) -> Iterator[pa.RecordBatch]:
        """Add the rows of these batches, after decompression where needed."""
        if not (table[:, compiled.ATTRIBUTES] & _CODEC).any():
            yield from self._rows.add(payload, table, first, self.end, name)
            return
        view = payload.data
        run = 0  # the first batch that waits to be decoded together with those behind it
        held = payload  # where their records lie
        for index, row in enumerate(table.tolist()):
            if not row[compiled.COUNT]:
                continue
            records = payload
            if row[compiled.ATTRIBUTES] & _CODEC:
                records = self._restored(view, table, index, row, name)
            if records is not held:
                yield from self._rows.add(held, table[run:index], first, self.end, name)
                if records is None:  # the room was too full
                    self._used = 0
                    records = self._restored(view, table, index, row, name)
                run, held = index, records
            if held is not payload and held is not self._room:  # too large for two of them
                one = table[index : index + 1]
                yield from self._rows.add(held, one, first, self.end, name)
                run, held = index + 1, payload
        yield from self._rows.add(held, table[run:], first, self.end, name)
        self._used = 0

    def aim(self, first: int, end: int) -> None:
        """Continue with another range of the partition; collected rows stay."""
        self.next_offset = first
        self.end = end

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Return the rows that still wait."""
        return self._rows.flush()

    def _check(self, view: memoryview, table: Any, name: str) -> None:
        """Check the checksums of the batches up to the end of the range."""
        for row in table[:, [compiled.POSITION, compiled.SIZE, compiled.CRC, compiled.BASE_OFFSET]]:
            position, size, crc, base = row.tolist()
            if base >= self.end:
                break
            if crc32c(view[position + _CRC_FROM : position + size]) != crc:
                raise Corrupt(f"{name}: batch at offset {base}: its checksum does not hold")

    def _wrong(self, why: int, row: Any, name: str) -> None:
        """Raise the error that `sift` found, or leave the batch out where `unreadable` permits."""
        base = int(row[compiled.BASE_OFFSET])
        if why == compiled.GAP:
            raise Missing(name, self.next_offset, min(base, self.end))
        if why == compiled.UNKNOWN_CODEC:
            codec = int(row[compiled.ATTRIBUTES]) & _CODEC
            self._unrestored(row, name, f"unknown compression codec {codec}")
            return
        what = {
            compiled.TOO_MANY: ": more records than offsets",
            compiled.BACKWARDS: f" where {int(self._state[compiled.FOLLOWS])} should be",
            compiled.BAD_MARKER: ": a transaction's marker that makes no sense",
        }
        raise Corrupt(f"{name}: batch at offset {base}{what[why]}")

    def _restored(self, view: memoryview, table: Any, index: int, row: list[int], name: str) -> Any:
        """Decompress one batch, `row` of the table, and note its place there; return the buffer.

        None where the buffer has too little room left. A batch that cannot be decompressed is skipped, after a call of
        `unreadable`.
        """
        used = self._used
        if used >= _AT_ONCE_BYTES:
            return None
        codec = row[compiled.ATTRIBUTES] & _CODEC
        records = view[row[compiled.START] : row[compiled.END]]
        room, target = self._room, self._room_view[used:]
        size = -1
        while size < 0:
            try:
                size = decompress_into(codec, records, target)
            except Oversized as error:
                if used:
                    return None
                if room.nbytes >= MAX_PAYLOAD:
                    return self._unrestored(table[index], name, str(error))
                larger = min(MAX_PAYLOAD, max(room.nbytes * 2, self._largest))
                del room, target  # not both at once
                room = np.empty(larger, dtype=np.uint8)
                target = room.data
            except Corrupt as error:
                return self._unrestored(table[index], name, str(error))
        if not size:
            what = f"no records where {row[compiled.COUNT]} should be"
            return self._unrestored(table[index], name, what)
        table[index, compiled.START], table[index, compiled.END] = used, used + size
        self._largest = room.nbytes
        if room.nbytes <= ROOM_KEPT_BYTES:
            if room is not self._room:
                self._room, self._room_view = room, room.data
            self._used += size
        return room

    def _unrestored(self, row: Any, name: str, what: str) -> Any:
        why = f"{name}: batch at offset {row[compiled.BASE_OFFSET]}: {what}"
        self._unreadable(why, int(row[compiled.COUNT]))
        row[compiled.COUNT] = row[compiled.START] = row[compiled.END] = 0
        return self._room


def _transactions(aborted: Sequence[tuple[int, int]]) -> Any:
    """Return aborted transactions in the order of their first offsets, with a column in which `sift` notes the open
    ones.
    """
    rows = [(producer, first, 0) for producer, first in sorted(aborted, key=itemgetter(1))]
    return np.array(rows, dtype=np.int64).reshape(len(rows), 3)


def _refuse(what: str, _records: int) -> None:
    raise Corrupt(what)


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
