"""Rows found in payloads, until they become one Arrow record batch.

In: payloads (uncompressed records) with the table of their batches. Out: Arrow record batches, each full or asked for.
It never decides which batches count: `decode.py` has done so.

A payload is kept only as long as rows of it wait. Scratch arrays are made once and used for every batch; what goes
to Arrow is allocated at its exact size.
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

_FIRST_HEADERS = 1024

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
    """What is the same for all rows: constants, the columns that are made, and the bounds of one Arrow batch.

    A record larger than `max_bytes` makes an Arrow batch of its own.
    """

    topic: str
    partition: int
    columns: tuple[str, ...] = COLUMNS
    origin: str = ""
    """Where the rows come from, for the column of that name."""
    max_rows: int = MAX_ROWS
    max_bytes: int = MAX_BYTES


def arrow_schema(columns: tuple[str, ...]) -> pa.Schema:
    """Spark's types for columns of `COLUMNS`, HEADERS and ORIGIN, in the order given."""
    return pa.schema([pa.field(name, _KINDS[name]) for name in columns])


class Rows:
    """Rows that wait for their Arrow batch."""

    def __init__(self, layout: Layout, unreadable: Callable[[str], None]) -> None:
        """`unreadable` is told of a batch whose records make no sense: it raises, or the rest of it is left out."""
        self._layout = layout
        self._unreadable = unreadable
        rows = layout.max_rows
        self._schema = arrow_schema(layout.columns)
        self._with_headers = HEADERS in layout.columns
        self._state = np.zeros(compiled.STATE_SLOTS, dtype=np.int64)
        self._state[compiled.MAX_ROWS] = rows
        self._state[compiled.MAX_BYTES] = layout.max_bytes
        self._state[compiled.WITH_HEADERS] = self._with_headers
        self._longs = np.empty((compiled.LONGS, rows), dtype=np.int64)
        self._ints = np.empty((compiled.INTS, rows), dtype=np.int32)
        self._spans = np.empty((_FIRST_HEADERS if self._with_headers else 0, 4), dtype=np.int64)
        self._pieces: list[tuple[Any, int, int, int, int]] = []  # payload, its rows, its headers
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

    def add(
        self, payload: Any, table: Any, first: int, end: int, name: str
    ) -> Iterator[pa.RecordBatch]:
        """Take the records of `table`'s batches with first <= offset < end; yields what got full meanwhile.

        Raises what `unreadable` does, which is told `name` and the offset.
        """
        assert payload.nbytes < 1 << 31, "spans inside a payload are 32 bits"
        state = self._state
        state[compiled.FIRST_OFFSET], state[compiled.END_OFFSET] = first, end
        state[compiled.BATCH] = state[compiled.RECORD] = 0
        while True:
            rows, headers = int(state[compiled.ROWS]), int(state[compiled.HEADERS])
            compiled.find_rows(payload, table, state, self._longs, self._ints, self._spans)
            status = int(state[compiled.STATUS])
            if status in _WRONG and self._with_headers:
                # Only the headers of whole records count.
                counts = self._ints[compiled.HEADER_COUNT, : state[compiled.ROWS]]
                state[compiled.HEADERS] = counts.sum()
            if state[compiled.ROWS] > rows:
                self._pieces.append(
                    (
                        payload,
                        rows,
                        int(state[compiled.ROWS]),
                        headers,
                        int(state[compiled.HEADERS]),
                    )
                )
            if status == compiled.DONE:
                return
            if status == compiled.FULL:
                yield from self.flush()
            elif status == compiled.MORE_HEADERS:
                self._spans = np.empty((int(state[compiled.WANTED]) * 2, 4), dtype=np.int64)
            else:
                batch = table[state[compiled.BATCH]]
                base, count = int(batch[compiled.BASE_OFFSET]), int(batch[compiled.COUNT])
                self._unreadable(
                    f"{name}: batch at offset {base}, record {int(state[compiled.RECORD])} of {count}: "
                    f"{_WRONG[status]}"
                )
                state[compiled.BATCH] += 1
                state[compiled.RECORD] = 0

    def flush(self) -> Iterator[pa.RecordBatch]:
        """What waits, as at most one Arrow batch."""
        rows = int(self._state[compiled.ROWS])
        if not rows:
            return
        columns = [self._made(name, rows) for name in self._layout.columns]
        self._pieces.clear()
        self._state[compiled.ROWS] = self._state[compiled.BYTES] = self._state[compiled.HEADERS] = 0
        yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _made(self, name: str, rows: int) -> pa.Array:
        match name:
            case "key":
                return self._column(compiled.KEY_START, compiled.KEY_SIZE, rows)
            case "value":
                return self._column(compiled.VALUE_START, compiled.VALUE_SIZE, rows)
            case "offset":
                return _plain(self._longs[compiled.OFFSET, :rows], _KINDS[name])
            case "timestamp":
                return _plain(self._longs[compiled.TIMESTAMP, :rows], _KINDS[name])
            case "timestampType":
                return _plain(self._ints[compiled.TIMESTAMP_TYPE, :rows], _KINDS[name])
            case "headers":
                return self._headers(rows)
            case _:
                return self._constants[name][:rows]

    def _column(self, start: int, size: int, rows: int) -> pa.Array:
        spans = [(payload, first, last) for payload, first, last, _, _ in self._pieces]
        return _binary(spans, self._ints[start], self._ints[size], rows)

    def _headers(self, rows: int) -> pa.Array:
        """list<struct<key, value>>; null where a record has none, as in Spark's Kafka source."""
        counts = self._ints[compiled.HEADER_COUNT, :rows]
        offsets = np.zeros(rows + 1, dtype=np.int32)
        np.cumsum(counts, out=offsets[1:])
        total = int(offsets[rows])
        spans = [
            (payload, first, last) for payload, _, _, first, last in self._pieces if last > first
        ]
        found = np.ascontiguousarray(self._spans[:total].T.astype(np.int32))
        keys = _as_text(_binary(spans, found[0], found[1], total))
        values = _binary(spans, found[2], found[3], total)
        pairs = pa.StructArray.from_arrays([keys, values], fields=list(_HEADER))
        validity = pa.py_buffer(np.packbits(counts > 0, bitorder="little"))
        return pa.Array.from_buffers(
            _HEADERS, rows, [validity, pa.py_buffer(offsets)], children=[pairs]
        )


def _constant(text: str, rows: int) -> pa.Array:
    """A column of one text. Not `pa.array` or `pa.scalar`: they import pandas, most of a second in a cold worker."""
    encoded = text.encode()
    offsets = np.arange(rows + 1, dtype=np.int32) * len(encoded)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(encoded * rows)]
    return pa.Array.from_buffers(pa.string(), rows, buffers, null_count=0)


def _plain(values: Any, kind: pa.DataType) -> pa.Array:
    """A column without nulls."""
    return pa.Array.from_buffers(
        kind, len(values), [None, pa.py_buffer(values.copy())], null_count=0
    )


def _binary(spans: list[tuple[Any, int, int]], starts: Any, sizes: Any, rows: int) -> pa.Array:
    """One binary column: offsets and validity from `sizes`, bytes gathered from each payload."""
    offsets = np.empty(rows + 1, dtype=np.int32)
    validity = np.zeros((rows + 7) // 8, dtype=np.uint8)
    nulls = compiled.lay_out(sizes, rows, offsets, validity)
    data = np.empty(int(offsets[rows]), dtype=np.uint8)
    if data.nbytes:
        for payload, first, last in spans:
            compiled.gather(payload, starts, first, last, offsets, data)
    buffers = [pa.py_buffer(validity) if nulls else None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), rows, buffers, null_count=nulls)


def _as_text(column: pa.Array) -> pa.Array:
    """Header keys as strings. Kafka says UTF-8 but checks nothing: other bytes become U+FFFD, as in Java."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", "replace") for key in column.to_pylist()], pa.string())
