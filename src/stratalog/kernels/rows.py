"""Collect rows of decoded records until they become one Arrow record batch.

In: payloads (uncompressed records) with the table of their batches. Out: Arrow record batches, each full or
requested. It never decides which batches count: `decode.py` has done so.

Rows keep no reference to their payload: their fields are copied to Arrow's buffers. Scratch arrays are made once and
used for every batch.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from stratalog.kernels import compiled
from stratalog.kernels.columns import COLUMNS, HEADERS, ORIGIN

MAX_ROWS = 32768
MAX_BYTES = 4 << 20

_HEADERS_A_ROW = 4
"""Initial room for headers; an Arrow batch ends where the next record's headers do not fit."""

_LEAST, _LARGEST = -(1 << 63), (1 << 63) - 1

_ASCII_END = 0x80

_WRONG = {
    compiled.BAD_LENGTH: "a record's length does not fit in its batch",
    compiled.BAD_VARINT: "a varint does not end inside its record",
    compiled.BAD_KEY: "a key does not fit in its record",
    compiled.BAD_VALUE: "a value does not fit in its record",
    compiled.BAD_HEADERS: "headers do not fit in their record",
    compiled.BAD_DELTA: "offsets do not rise inside the batch",
    compiled.TRAILING: "bytes are left over behind a record",
}

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
_HEADERS = pa.list_(pa.field("element", _HEADER))


_KINDS = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": _HEADERS,
    "origin": pa.string(),
}


@dataclass(frozen=True, slots=True)
class Layout:
    """Properties of all rows: constants, columns, times, and the limits of one Arrow batch.

    A record larger than `max_bytes` makes an Arrow batch of its own.
    """

    topic: str
    partition: int
    columns: tuple[str, ...] = COLUMNS
    origin: str = ""
    """The origin of the rows, for the column of that name."""
    max_rows: int = MAX_ROWS
    max_bytes: int = MAX_BYTES
    since_ms: int | None = None
    until_ms: int | None = None
    """Time range of rows: records older than the first (epoch ms), or not older than the second, are left out."""

    @property
    def times(self) -> tuple[int, int]:
        """The least and the largest timestamp (epoch ms) of a row."""
        since = _LEAST if self.since_ms is None else self.since_ms
        return since, _LARGEST if self.until_ms is None else self.until_ms - 1


def arrow_schema(columns: tuple[str, ...]) -> pa.Schema:
    """Return Spark's types for columns of `COLUMNS`, HEADERS and ORIGIN, in the order given."""
    return pa.schema([pa.field(name, _KINDS[name]) for name in columns])


class Rows:
    """Collected rows of the next Arrow batch."""

    def __init__(self, layout: Layout, unreadable: Callable[[str, int], None]) -> None:
        """`unreadable` receives the reason why records of a batch are malformed, and their number.

        If it does not raise, these records are left out.
        """
        self._layout = layout
        self._unreadable = unreadable
        rows = layout.max_rows
        self._schema = arrow_schema(layout.columns)
        self._state = state = np.zeros(compiled.STATE_SLOTS, dtype=np.int64)
        state[compiled.MAX_ROWS], state[compiled.MAX_BYTES] = rows, layout.max_bytes
        state[compiled.WITH_KEYS] = "key" in layout.columns
        state[compiled.WITH_VALUES] = "value" in layout.columns
        state[compiled.WITH_HEADERS] = HEADERS in layout.columns
        state[compiled.SINCE], state[compiled.LATEST] = layout.times
        constants = {
            "topic": lambda: _constant(layout.topic, rows),
            "partition": lambda: _plain(
                np.full(rows, layout.partition, dtype=np.int32), pa.int32()
            ),
            ORIGIN: lambda: _constant(layout.origin, rows),
        }
        self._constants = {
            name: make() for name, make in constants.items() if name in layout.columns
        }
        self._headers_max = rows * _HEADERS_A_ROW if HEADERS in layout.columns else 0
        # A generous first size costs nothing: the system gives memory only for pages that are touched.
        self._expected = [layout.max_bytes + compiled.SLACK] * 4
        self._end()

    def _end(self) -> None:
        """Drop the rows and their memory, until more rows arrive."""
        self._state[[compiled.ROWS, compiled.BYTES, compiled.HEADERS]] = 0
        self._state[compiled.NULLS : compiled.NEEDED] = 0
        self._longs: Any = None
        self._ints: Any = None
        self._bits: Any = None
        self._ends: Any = None
        self._text_bits: Any = None
        self._bytes: list[Any] = []

    def _begin(self) -> None:
        """Begin columns without rows."""
        rows, headers = self._layout.max_rows, self._headers_max
        self._longs = np.empty((compiled.LONGS, rows), dtype=np.int64)
        self._ints = np.empty((compiled.INTS, rows + 1), dtype=np.int32)
        self._ints[:, 0] = 0
        self._bits = np.full((compiled.BITS, (rows + 7) // 8), 0xFF, dtype=np.uint8)
        self._ends = np.zeros((compiled.ENDS, 1), dtype=np.int32)
        self._text_bits = np.empty(0, dtype=np.uint8)
        self._make_headers(headers)
        self._bytes = [np.empty(size, dtype=np.uint8) for size in self._expected]

    def _make_headers(self, headers: int) -> None:
        """Make room for this many headers, and keep the present ones."""
        ends = np.empty((compiled.ENDS, headers + 1), dtype=np.int32)
        ends[:, : self._ends.shape[1]] = self._ends
        bits = np.full((headers + 7) // 8, 0xFF, dtype=np.uint8)
        bits[: len(self._text_bits)] = self._text_bits
        self._ends, self._text_bits = ends, bits

    def _make_room(self) -> None:
        """Make room for the next row, and for some more."""
        for column, data in enumerate(self._bytes):
            needed = int(self._state[compiled.NEEDED + column])
            if needed > len(data):
                self._bytes[column] = np.empty(needed + needed // 2, dtype=np.uint8)
                self._bytes[column][: len(data)] = data

    def add(
        self, payload: Any, table: Any, first: int, end: int, name: str
    ) -> Iterator[pa.RecordBatch]:
        """Add the records of `table`'s batches with first <= offset < end; yield Arrow batches as they fill.

        The caller may drop the payload afterwards. Raises the error of `unreadable`, whose reason has `name` and the
        offset.
        """
        state = self._state
        state[compiled.BEGIN], state[compiled.STOP] = first, end
        state[compiled.BATCH] = state[compiled.RECORD] = 0
        status = compiled.FULL
        while status != compiled.DONE:
            if not self._bytes:
                self._begin()
            matrices = self._longs, self._ints, self._bits, self._ends, self._text_bits
            compiled.read_rows(payload, table, state, *matrices, *self._bytes)
            status = int(state[compiled.STATUS])
            if status == compiled.FULL:
                yield from self.flush()
            elif status == compiled.MORE_HEADERS:
                self._make_headers(int(state[compiled.WANTED]) * 2)
            elif status == compiled.MORE_ROOM:
                self._make_room()
            elif status != compiled.DONE:
                batch = table[state[compiled.BATCH]]
                base, count = int(batch[compiled.BASE_OFFSET]), int(batch[compiled.COUNT])
                record = int(state[compiled.RECORD])
                self._unreadable(
                    f"{name}: batch at offset {base}, record {record} of {count}: {_WRONG[status]}",
                    count - record,
                )
                state[compiled.BATCH] += 1
                state[compiled.RECORD] = 0

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield the collected rows, as at most one Arrow batch."""
        rows = int(self._state[compiled.ROWS])
        if not rows:
            return
        made = [self._made(name, rows) for name in self._layout.columns]
        found = pa.RecordBatch.from_arrays(made, schema=self._schema)
        # The next batch probably needs as much room as this one.
        self._expected = [size + size // 8 + compiled.SLACK for size in self._sizes(rows)]
        self._end()
        yield found

    def _sizes(self, rows: int) -> list[int]:
        """Return the size of each column of bytes."""
        ends = self._ends[:, self._state[compiled.HEADERS]]
        keys, values = self._ints[compiled.KEY_ENDS : compiled.VALUE_ENDS + 1, rows]
        return [int(keys), int(values), *ends.tolist()]

    def _made(self, name: str, rows: int) -> pa.Array:
        kind, bits = _KINDS[name], self._bits
        match name:
            case "key":
                ends = self._ints[compiled.KEY_ENDS, : rows + 1]
                return self._column(kind, compiled.KEYS, bits[compiled.KEYS], ends)
            case "value":
                ends = self._ints[compiled.VALUE_ENDS, : rows + 1]
                return self._column(kind, compiled.VALUES, bits[compiled.VALUES], ends)
            case "offset":
                return _plain(_kept(self._longs[compiled.OFFSET], rows), kind)
            case "timestamp":
                return _plain(_kept(self._longs[compiled.TIMESTAMP], rows), kind)
            case "timestampType":
                return _plain(_kept(self._ints[compiled.TIMESTAMP_TYPE], rows), kind)
            case "headers":
                return self._headers(rows)
            case _:
                return self._constants[name][:rows]

    def _headers(self, rows: int) -> pa.Array:
        """Return the headers as list<struct<key, value>>; null for a record without headers, as in Spark's Kafka
        source.
        """
        nulls = int(self._state[compiled.NULLS + compiled.LISTS])
        ends = self._ends[:, : self._state[compiled.HEADERS] + 1]
        keys = _as_text(self._column(pa.binary(), compiled.NAMES, self._text_bits, ends[0]))
        values = self._column(pa.binary(), compiled.TEXTS, self._text_bits, ends[1])
        pairs = pa.StructArray.from_arrays([keys, values], fields=list(_HEADER))
        validity = _validity(self._bits[compiled.LISTS], rows) if nulls else None
        offsets = pa.py_buffer(_kept(self._ints[compiled.HEADER_ENDS], rows + 1))
        return pa.Array.from_buffers(
            _HEADERS, rows, [validity, offsets], null_count=nulls, children=[pairs]
        )

    def _column(self, kind: pa.DataType, column: int, bits: Any, ends: Any) -> pa.Array:
        """Return a column of bytes with all its rows."""
        rows = len(ends) - 1
        nulls = 0 if column == compiled.NAMES else int(self._state[compiled.NULLS + column])
        validity = _validity(bits, rows) if nulls else None
        data = pa.py_buffer(_kept(self._bytes[column], int(ends[rows])))
        buffers = [validity, pa.py_buffer(_kept(ends, rows + 1)), data]
        return pa.Array.from_buffers(kind, rows, buffers, null_count=nulls)


def _kept(array: Any, size: int) -> Any:
    """Return the front of an array; as a copy where it is less than half, so that the large array can be freed."""
    front = array[:size]
    base = array if array.base is None else array.base
    return front if 2 * size >= base.shape[-1] else front.copy()


def _validity(bits: Any, rows: int) -> pa.Buffer:
    return pa.py_buffer(bits[: (rows + 7) // 8].copy())


def _constant(text: str, rows: int) -> pa.Array:
    """Return a column of one text.

    Not `pa.array` or `pa.scalar`: they import pandas, most of a second in a cold worker.
    """
    encoded = text.encode()
    offsets = np.arange(rows + 1, dtype=np.int32) * len(encoded)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(encoded * rows)]
    return pa.Array.from_buffers(pa.string(), rows, buffers, null_count=0)


def _plain(values: Any, kind: pa.DataType) -> pa.Array:
    """Return a column without nulls."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)], null_count=0)


def _as_text(column: pa.Array) -> pa.Array:
    """Return header keys as strings. Kafka says UTF-8 but checks nothing: other bytes become U+FFFD, as in Java."""
    validity, offsets, data = column.buffers()
    if not data.size or np.frombuffer(data, dtype=np.uint8).max() < _ASCII_END:
        return pa.Array.from_buffers(pa.string(), len(column), [validity, offsets, data])
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", "replace") for key in column.to_pylist()], pa.string())
