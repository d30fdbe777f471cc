"""Rows found in payloads, until they become one Arrow record batch.

In: payloads (uncompressed records) with the table of their batches. Out: Arrow record batches, each full or asked for.
It never decides which batches count: `decode.py` has done so.

Nothing of a payload is kept: what its rows have is copied to where Arrow will have it. Scratch arrays are made once and
used for every batch.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from stratalog.kernels import compiled
from stratalog.kernels.columns import COLUMNS, HEADERS, ORIGIN

MAX_ROWS = 32768
MAX_BYTES = 4 << 20

_HEADERS_A_ROW = 4
"""Room that is there before a record asks for more; an Arrow batch ends where its headers do not fit."""

_ASCII_END = 0x80

AT_ONCE_BYTES = 256 << 10
"""Of a payload, found and then copied before the next: what a core's own cache holds beside what it is copied to."""

_BYTES = {
    "key": (compiled.KEY_START, compiled.KEY_SIZE),
    "value": (compiled.VALUE_START, compiled.VALUE_SIZE),
}
_HEADER_BYTES = {
    "key": (compiled.HEADER_KEY_START, compiled.HEADER_KEY_SIZE),
    "value": (compiled.HEADER_VALUE_START, compiled.HEADER_VALUE_SIZE),
}

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


class _Bytes:
    """A binary column as it grows."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._expected = 0
        self._begin()

    def _begin(self) -> None:
        self.nulls = 0
        self.offsets = np.empty(self._rows + 1, dtype=np.int32)
        self.offsets[0] = 0
        self.validity = np.zeros((self._rows + 7) // 8, dtype=np.uint8)
        self.data = np.empty(self._expected, dtype=np.uint8)

    def make_room(self, rows: int) -> None:
        """Have room for so many rows."""
        if rows > self._rows:
            self._rows = rows
            self.offsets = np.resize(self.offsets, rows + 1)
            validity = np.zeros((rows + 7) // 8, dtype=np.uint8)
            validity[: len(self.validity)] = self.validity
            self.validity = validity

    def extend(self, payload: Any, starts: Any, sizes: Any, first: int, last: int) -> None:
        """Take rows [first, last), whose bytes lie in `payload`."""
        rows = (payload, starts, sizes, first, last, self.offsets, self.validity)
        nulls = compiled.gather(*rows, self.data)
        if nulls < 0:
            needed = -1 - nulls
            grown = np.empty(needed + needed // 2, dtype=np.uint8)
            grown[: self.offsets[first]] = self.data[: self.offsets[first]]
            self.data = grown
            nulls = compiled.gather(*rows, self.data)
        self.nulls += nulls

    def take(self, rows: int, kind: pa.DataType) -> pa.Array:
        """The first `rows` rows, which are all, as a column; the next one begins."""
        size = int(self.offsets[rows])
        data = self.data[:size]
        if size < self.data.nbytes // 2:
            data = data.copy()  # what was kept for more is not to live on with less
        # As much as this time is likely enough for the next, and not too much.
        self._expected = size + size // 8 + compiled.GATHER_SLACK
        validity = pa.py_buffer(self.validity[: (rows + 7) // 8]) if self.nulls else None
        buffers = [validity, pa.py_buffer(self.offsets[: rows + 1]), pa.py_buffer(data)]
        made = pa.Array.from_buffers(kind, rows, buffers, null_count=self.nulls)
        self._begin()
        return made


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
        room = rows * _HEADERS_A_ROW if self._with_headers else 0
        self._spans = np.empty((compiled.SPANS, room), dtype=np.int32)
        self._bytes = {name: _Bytes(rows) for name in _BYTES if name in layout.columns}
        self._header_bytes = {name: _Bytes(room) for name in _HEADER_BYTES if room}
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

        The payload is not needed any more afterwards. Raises what `unreadable` does, which is told `name` and the
        offset.
        """
        assert payload.nbytes < 1 << 31, "spans inside a payload are 32 bits"
        state = self._state
        state[compiled.FIRST_OFFSET], state[compiled.END_OFFSET] = first, end
        for part in _in_parts(table):
            state[compiled.BATCH] = state[compiled.RECORD] = 0
            status = compiled.FULL
            while status != compiled.DONE:
                self._find(payload, part)
                status = int(state[compiled.STATUS])
                if status == compiled.FULL:
                    yield from self.flush()
                elif status == compiled.MORE_HEADERS:
                    room = int(state[compiled.WANTED]) * 2
                    self._spans = np.empty((compiled.SPANS, room), dtype=np.int32)
                    for column in self._header_bytes.values():
                        column.make_room(room)
                elif status != compiled.DONE:
                    batch = part[state[compiled.BATCH]]
                    base, count = int(batch[compiled.BASE_OFFSET]), int(batch[compiled.COUNT])
                    self._unreadable(
                        f"{name}: batch at offset {base}, record {int(state[compiled.RECORD])} of {count}: "
                        f"{_WRONG[status]}"
                    )
                    state[compiled.BATCH] += 1
                    state[compiled.RECORD] = 0

    def _find(self, payload: Any, table: Any) -> None:
        """Find rows, and copy what they have while it is in the processor's cache."""
        state, ints = self._state, self._ints
        first, first_header = int(state[compiled.ROWS]), int(state[compiled.HEADERS])
        compiled.find_rows(payload, table, state, self._longs, ints, self._spans)
        last = int(state[compiled.ROWS])
        if state[compiled.STATUS] in _WRONG and self._with_headers:
            # Only the headers of whole records count.
            state[compiled.HEADERS] = ints[compiled.HEADER_COUNT, :last].sum()
        if last == first:
            return
        for name, column in self._bytes.items():
            start, size = _BYTES[name]
            column.extend(payload, ints[start], ints[size], first, last)
        last_header = int(state[compiled.HEADERS])
        for name, column in self._header_bytes.items():
            start, size = _HEADER_BYTES[name]
            spans = self._spans
            column.extend(payload, spans[start], spans[size], first_header, last_header)

    def flush(self) -> Iterator[pa.RecordBatch]:
        """What waits, as at most one Arrow batch."""
        rows = int(self._state[compiled.ROWS])
        if not rows:
            return
        columns = [self._made(name, rows) for name in self._layout.columns]
        self._state[compiled.ROWS] = self._state[compiled.BYTES] = self._state[compiled.HEADERS] = 0
        yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _made(self, name: str, rows: int) -> pa.Array:
        match name:
            case "key" | "value":
                return self._bytes[name].take(rows, _KINDS[name])
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

    def _headers(self, rows: int) -> pa.Array:
        """list<struct<key, value>>; null where a record has none, as in Spark's Kafka source."""
        counts = self._ints[compiled.HEADER_COUNT, :rows]
        offsets = np.zeros(rows + 1, dtype=np.int32)
        np.cumsum(counts, out=offsets[1:])
        total = int(offsets[rows])
        keys = _as_text(self._header_bytes["key"].take(total, pa.binary()))
        values = self._header_bytes["value"].take(total, pa.binary())
        pairs = pa.StructArray.from_arrays([keys, values], fields=list(_HEADER))
        validity = pa.py_buffer(np.packbits(counts > 0, bitorder="little"))
        return pa.Array.from_buffers(
            _HEADERS, rows, [validity, pa.py_buffer(offsets)], children=[pairs]
        )


def _in_parts(table: Any) -> Iterator[Any]:
    """Runs of batches of about AT_ONCE_BYTES: all of them where they have not twice as much."""
    ends = np.cumsum(table[:, compiled.END] - table[:, compiled.START])
    if not len(ends) or ends[-1] < 2 * AT_ONCE_BYTES:
        yield table
        return
    edges = [0, *(np.flatnonzero(np.diff(ends // AT_ONCE_BYTES)) + 1).tolist(), len(table)]
    for begin, stop in pairwise(edges):
        yield table[begin:stop]


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


def _as_text(column: pa.Array) -> pa.Array:
    """Header keys as strings. Kafka says UTF-8 but checks nothing: other bytes become U+FFFD, as in Java."""
    validity, offsets, data = column.buffers()
    if not data.size or np.frombuffer(data, dtype=np.uint8).max() < _ASCII_END:
        return pa.Array.from_buffers(pa.string(), len(column), [validity, offsets, data])
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", "replace") for key in column.to_pylist()], pa.string())
