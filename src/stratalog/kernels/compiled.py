"""The compiled part: walks record batches of format v2 and gathers their records into columns.

In: bytes, and arrays to fill. Out: filled arrays and a state with a status. It never reads outside its input whatever
the bytes are, never raises, and is called by `decode.py` and `rows.py` alone.

Everything numba compiles is in this one file, because numba's cache looks only at the file that declares a kernel
to see whether it changed. Signatures are explicit: declaring a kernel loads it from the cache or compiles it, and
no call ever does. Formats: Kafka's DefaultRecordBatch and DefaultRecord.

Rows are found first (`find_rows`: where each key and value lies) and copied then (`gather`), a little at a time, so
that what is copied is still in the processor's cache.
"""

from pathlib import Path
from typing import Any

from stratalog.kernels.cache import settle_cache_directory

settle_cache_directory(Path(__file__).parent)

import numpy as np  # noqa: E402 - behind the cache's settling, as numba
from numba import njit, types  # type: ignore[import-untyped]  # noqa: E402 - after its cache is settled
from numba.core import cgutils  # type: ignore[import-untyped]  # noqa: E402
from numba.extending import intrinsic  # type: ignore[import-untyped]  # noqa: E402

# Columns of the batch table that `scan` fills.
POSITION, SIZE, BASE_OFFSET, LAST_DELTA, COUNT, BASE_TIMESTAMP, MAX_TIMESTAMP = range(7)
ATTRIBUTES, PRODUCER_ID, CRC, START, END = range(7, 12)
"""START and END bound the records inside the payload; `scan` sets them for uncompressed batches."""
TABLE_COLUMNS = 12

# Slots of the state of `find_rows`: where it stands, what it found, and what it is to stop at.
BATCH, RECORD, CURSOR, PREVIOUS_DELTA, ROWS, BYTES, HEADERS, STATUS, WANTED = range(9)
FIRST_OFFSET, END_OFFSET, MAX_ROWS, MAX_BYTES, WITH_HEADERS = range(9, 14)
STATE_SLOTS = 14

# Rows of the two matrices that `find_rows` fills, a column for each record.
OFFSET, TIMESTAMP = range(2)
TIMESTAMP_TYPE, KEY_START, KEY_SIZE, VALUE_START, VALUE_SIZE, HEADER_COUNT = range(6)
LONGS, INTS = 2, 6

# Rows of the matrix of headers that `find_rows` fills, a column for each header.
HEADER_KEY_START, HEADER_KEY_SIZE, HEADER_VALUE_START, HEADER_VALUE_SIZE = range(4)
SPANS = 4

GATHER_SLACK = 32
"""Bytes that `gather` may write behind what it copies."""

# What `_find_fields` says of a record.
_STOP, _TIMESTAMP_DELTA, _DELTA, _KEY, _KEY_SIZE, _VALUE, _VALUE_SIZE, _COUNT, _HEADERS_AT = range(
    9
)

# Slots of the state of `sift`: offsets, what is allowed, and how many transactions wait or are open.
NEXT, FIRST, STOP, FOLLOWS, GAPS, WAITING, OPEN = range(7)
SIFT_SLOTS = 7

# Why `sift` stopped.
SIFTED, ENOUGH, UNKNOWN_CODEC, TOO_MANY, BACKWARDS, GAP, BAD_MARKER = range(7)

# Statuses.
DONE, FULL, MORE_HEADERS = 0, 1, 2
BAD_LENGTH, BAD_VARINT, BAD_KEY, BAD_VALUE, BAD_HEADERS, BAD_DELTA, TRAILING, BAD_BATCH = range(
    10, 18
)

HEADER_SIZE = 61
_TRANSACTIONAL, _CONTROL = 0x10, 0x20
_MAX_MS = (2**63 - 1) // 1000

_bytes_in = types.Array(types.uint8, 1, "C", readonly=True)
_bytes_out = types.Array(types.uint8, 1, "C")
_i32 = types.Array(types.int32, 1, "C")
_i64 = types.Array(types.int64, 1, "C")
_table = types.Array(types.int64, 2, "C")
_matrix = types.Array(types.int32, 2, "C")
_varint = types.UniTuple(types.int64, 2)


@njit(types.int64(_bytes_in, types.int64, types.int64), cache=True)  # type: ignore[untyped-decorator]
def _big_endian(data: Any, position: int, size: int) -> int:
    """Signed big-endian integer of `size` bytes (1, 2, 4 or 8)."""
    value = types.int64(0)
    for index in range(size):
        value = (value << 8) | types.int64(data[position + index])
    shift = 64 - 8 * size
    return (value << shift) >> shift


@njit(_varint(_bytes_in, types.int64, types.int64), cache=True)  # type: ignore[untyped-decorator]
def _read_long_varint(data: Any, position: int, end: int) -> tuple[int, int]:
    """As `_read_varint`, of any length."""
    raw = types.uint64(0)
    shift = types.uint64(0)
    while position < end:
        byte = types.uint64(data[types.uint64(position)])
        position += 1
        raw |= (byte & types.uint64(0x7F)) << shift
        if byte < types.uint64(0x80):
            return types.int64(raw >> types.uint64(1)) ^ -types.int64(
                raw & types.uint64(1)
            ), position
        shift += types.uint64(7)
        if shift > types.uint64(63):
            return types.int64(0), types.int64(-1)
    return types.int64(0), types.int64(-1)


@njit(inline="always")  # type: ignore[untyped-decorator]
def _read_varint(data: Any, position: int, end: int) -> tuple[int, int]:
    """A zigzag varint at `position` and the position behind it; -1 for the latter where it does not end in time.

    Nearly all have one byte or two; an unsigned index spares a look at whether it counts from the end.
    """
    if position + 2 <= end:
        first = types.int64(data[types.uint64(position)])
        if first < 0x80:
            return (first >> 1) ^ -(first & 1), position + 1
        second = types.int64(data[types.uint64(position + 1)])
        if second < 0x80:
            raw = (first & 0x7F) | (second << 7)
            return (raw >> 1) ^ -(raw & 1), position + 2
    return _read_long_varint(data, position, end)


@njit(types.UniTuple(types.int64, 3)(_bytes_in, types.int64, _table), cache=True)  # type: ignore[untyped-decorator]
def scan(data: Any, position: int, table: Any) -> tuple[int, int, int]:
    """Fill `table` with the whole batches from `position` on.

    Returns (batches, position behind the last whole one, status). DONE: the input ended, perhaps inside a batch;
    FULL: the table did; BAD_BATCH: what lies at the position is no batch of format v2.
    """
    found = 0
    length = data.shape[0]
    while length - position >= 17:
        size = _big_endian(data, position + 8, 4) + 12
        if size < HEADER_SIZE or data[position + 16] != 2:
            return found, position, BAD_BATCH
        if size > length - position:
            break
        if found == table.shape[0]:
            return found, position, FULL
        row = table[found]
        row[POSITION] = position
        row[SIZE] = size
        row[BASE_OFFSET] = _big_endian(data, position, 8)
        row[CRC] = _big_endian(data, position + 17, 4) & 0xFFFFFFFF
        row[ATTRIBUTES] = _big_endian(data, position + 21, 2)
        row[LAST_DELTA] = _big_endian(data, position + 23, 4)
        row[BASE_TIMESTAMP] = _big_endian(data, position + 27, 8)
        row[MAX_TIMESTAMP] = _big_endian(data, position + 35, 8)
        row[PRODUCER_ID] = _big_endian(data, position + 43, 8)
        row[COUNT] = _big_endian(data, position + 57, 4)
        row[START] = position + HEADER_SIZE
        row[END] = position + size
        if row[BASE_OFFSET] < 0 or row[LAST_DELTA] < 0 or row[COUNT] < 0:
            return found, position, BAD_BATCH
        found += 1
        position += size
    return found, position, DONE


@njit(  # type: ignore[untyped-decorator]
    types.UniTuple(types.int64, 3)(
        _bytes_in, types.int64, types.int64, _matrix, types.int64, types.int64
    ),
    cache=True,
)
def _find_headers(
    data: Any, position: int, end: int, spans: Any, found: int, count: int
) -> tuple[int, int, int]:
    """Note the spans of the `count` headers that end a record; returns (spans found, position behind, status)."""
    for _ in range(count):
        size, position = _read_varint(data, position, end)
        if position < 0 or size < 0 or size > end - position:
            return found, position, BAD_HEADERS
        spans[HEADER_KEY_START, found] = position
        spans[HEADER_KEY_SIZE, found] = size
        position += size
        size, position = _read_varint(data, position, end)
        if position < 0 or size < -1 or size > end - position:
            return found, position, BAD_HEADERS
        spans[HEADER_VALUE_START, found] = position
        spans[HEADER_VALUE_SIZE, found] = size
        if size > 0:
            position += size
        found += 1
    return found, position, types.int64(DONE if position == end else TRAILING)


@njit(  # type: ignore[untyped-decorator]
    types.int64(_bytes_in, types.int64, types.int64, _i64), cache=True
)
def _find_fields(data: Any, position: int, end: int, fields: Any) -> int:
    """Where the fields of one record lie; returns a status.

    Every span found lies inside [position, stop), and stop <= end.
    """
    length, position = _read_varint(data, position, end)
    if position < 0 or length < 0 or length > end - position:
        return BAD_LENGTH
    stop = position + length
    timestamp_delta, position = _read_varint(data, position + 1, stop)  # behind the attributes
    if position < 0:
        return BAD_VARINT
    delta, position = _read_varint(data, position, stop)
    if position < 0:
        return BAD_VARINT
    key_size, key = _read_varint(data, position, stop)
    if key < 0 or key_size < -1 or key_size > stop - key:
        return BAD_KEY
    value_size, value = _read_varint(data, key + max(key_size, 0), stop)
    if value < 0 or value_size < -1 or value_size > stop - value:
        return BAD_VALUE
    count, position = _read_varint(data, value + max(value_size, 0), stop)
    if position < 0 or count < 0 or count > (stop - position) // 2:
        return BAD_HEADERS
    fields[_STOP], fields[_TIMESTAMP_DELTA], fields[_DELTA] = stop, timestamp_delta, delta
    fields[_KEY], fields[_KEY_SIZE] = key, key_size
    fields[_VALUE], fields[_VALUE_SIZE] = value, value_size
    fields[_COUNT], fields[_HEADERS_AT] = count, position
    return TRAILING if count == 0 and position != stop else DONE


@njit(types.int64(_bytes_in, types.int64, types.int64), cache=True)  # type: ignore[untyped-decorator]
def _marker_type(data: Any, position: int, end: int) -> int:
    """What the control record there says: 0 (abort), 1 (commit) or another type; -1 where it makes no sense."""
    fields = np.empty(9, dtype=np.int64)
    if _find_fields(data, position, end, fields) != DONE or fields[_KEY_SIZE] < 4:
        return -1
    return _big_endian(data, fields[_KEY] + 2, 2)


@njit(types.int64(_table, _i64, types.int64, types.int64), cache=True)  # type: ignore[untyped-decorator]
def _place_open(transactions: Any, state: Any, producer: int, last_offset: int) -> int:
    """Open the aborted transactions that begin up to `last_offset`; returns the producer's place among the open, or -1.

    `transactions` has a row for each in the order of first offsets: producer, first offset, and, for as many rows as
    there are open ones, the producer of one.
    """
    while state[WAITING] < transactions.shape[0] and transactions[state[WAITING], 1] <= last_offset:
        known = False
        for place in range(state[OPEN]):
            known |= transactions[place, 2] == transactions[state[WAITING], 0]
        if not known:
            transactions[state[OPEN], 2] = transactions[state[WAITING], 0]
            state[OPEN] += 1
        state[WAITING] += 1
    for place in range(state[OPEN]):
        if transactions[place, 2] == producer:
            return place
    return -1


@njit(  # type: ignore[untyped-decorator]
    types.UniTuple(types.int64, 2)(_bytes_in, _table, types.int64, types.int64, _table, _i64),
    cache=True,
)
def sift(
    data: Any, table: Any, begin: int, found: int, transactions: Any, state: Any
) -> tuple[int, int]:
    """Look at the batches [begin, found) of `table`: which count, and whether their offsets follow each other.

    A batch that does not count is left without records. Returns where it stopped and why: SIFTED is the end, ENOUGH
    what lies behind the wanted offsets, all else is wrong.
    """
    for index in range(begin, found):
        row = table[index]
        if state[NEXT] >= state[STOP]:
            return index, ENOUGH
        base, last = row[BASE_OFFSET], row[BASE_OFFSET] + row[LAST_DELTA]
        if row[COUNT] > row[LAST_DELTA] + 1:
            return index, TOO_MANY
        if base < state[FOLLOWS]:
            return index, BACKWARDS
        if base > state[NEXT] and not state[GAPS]:
            return index, GAP
        state[FOLLOWS] = last + 1
        state[NEXT] = max(state[NEXT], last + 1)
        codec = row[ATTRIBUTES] & 0x07
        counts = last >= state[FIRST] and base < state[STOP] and row[COUNT] > 0
        if row[ATTRIBUTES] & _TRANSACTIONAL and transactions.shape[0]:
            place = _place_open(transactions, state, row[PRODUCER_ID], last)
            if place >= 0:
                counts = False
                if row[ATTRIBUTES] & _CONTROL:
                    kind = _marker_type(data, row[START], row[END]) if codec == 0 else -1
                    if kind < 0:
                        return index, BAD_MARKER
                    if kind == 0:
                        state[OPEN] -= 1
                        transactions[place, 2] = transactions[state[OPEN], 2]
        if row[ATTRIBUTES] & _CONTROL:
            counts = False
        elif codec > 4:
            return index, UNKNOWN_CODEC
        if not counts:
            row[COUNT] = row[START] = row[END] = 0
    return found, SIFTED


@njit(  # type: ignore[untyped-decorator]
    types.void(_i64, _table, types.int64, types.int64, _table, _matrix), cache=True
)
def _put_row(fields: Any, table: Any, batch: int, row: int, longs: Any, ints: Any) -> None:
    """Note one record as row number `row`; timestamps become microseconds, as far as an int64 carries them."""
    timestamp = table[batch, BASE_TIMESTAMP] + fields[_TIMESTAMP_DELTA]
    kind = (table[batch, ATTRIBUTES] >> 3) & 1
    if kind == 1:  # log append time: the batch's own
        timestamp = table[batch, MAX_TIMESTAMP]
    longs[OFFSET, row] = table[batch, BASE_OFFSET] + fields[_DELTA]
    longs[TIMESTAMP, row] = min(max(timestamp, -_MAX_MS), _MAX_MS) * 1000
    ints[TIMESTAMP_TYPE, row] = kind
    ints[KEY_START, row] = fields[_KEY]
    ints[KEY_SIZE, row] = fields[_KEY_SIZE]
    ints[VALUE_START, row] = fields[_VALUE]
    ints[VALUE_SIZE, row] = fields[_VALUE_SIZE]
    ints[HEADER_COUNT, row] = fields[_COUNT]


@njit(  # type: ignore[untyped-decorator]
    types.void(_bytes_in, _table, _i64, _table, _matrix, _matrix), cache=True
)
def find_rows(data: Any, table: Any, state: Any, longs: Any, ints: Any, spans: Any) -> None:
    """Note where the records of `table`'s batches lie, from where `state` stopped, until done, full or wrong.

    Only records with FIRST_OFFSET <= offset < END_OFFSET become rows; every record is checked. Sizes of -1 are nulls.
    """
    fields = np.empty(9, dtype=np.int64)
    batch, record, position = state[BATCH], state[RECORD], state[CURSOR]
    previous, rows, taken, headers = (
        state[PREVIOUS_DELTA],
        state[ROWS],
        state[BYTES],
        state[HEADERS],
    )
    status = types.int64(DONE)
    while batch < table.shape[0]:
        end = table[batch, END]
        if record == 0:
            position, previous = table[batch, START], types.int64(-1)
        while record < table[batch, COUNT]:
            status = _find_fields(data, position, end, fields)
            if status != DONE:
                break
            delta, stop = fields[_DELTA], fields[_STOP]
            if delta <= previous or delta > table[batch, LAST_DELTA]:
                status = BAD_DELTA
                break
            if state[FIRST_OFFSET] <= table[batch, BASE_OFFSET] + delta < state[END_OFFSET]:
                length = stop - position  # bounds key, value and headers together
                count = fields[_COUNT] * state[WITH_HEADERS]
                if rows > 0 and (rows >= state[MAX_ROWS] or taken + length > state[MAX_BYTES]):
                    status = FULL
                    break
                if headers + count > spans.shape[1]:
                    status = FULL if rows > 0 else MORE_HEADERS
                    state[WANTED] = count
                    break
                if count > 0:
                    headers, position, status = _find_headers(
                        data, fields[_HEADERS_AT], stop, spans, headers, count
                    )
                    if status != DONE:
                        break
                _put_row(fields, table, batch, rows, longs, ints)
                rows, taken = rows + 1, taken + length
            position, previous, record = stop, delta, record + 1
        if status == DONE and position != end:
            status = TRAILING
        if status != DONE:
            break
        batch, record = batch + 1, types.int64(0)
    state[BATCH], state[RECORD], state[CURSOR] = batch, record, position
    state[PREVIOUS_DELTA], state[ROWS], state[BYTES] = previous, rows, taken
    state[HEADERS], state[STATUS] = headers, status


@intrinsic  # type: ignore[untyped-decorator]
def _copy(_typing: Any, out: Any, _target: Any, data: Any, _source: Any, _size: Any) -> Any:
    """Memcpy between two byte arrays: a loop over bytes runs at 0.7 GB/s, for its checks keep it from vectors."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        out_array = context.make_array(signature.args[0])(context, builder, arguments[0])
        data_array = context.make_array(signature.args[2])(context, builder, arguments[2])
        to = cgutils.pointer_add(builder, out_array.data, arguments[1])
        what = cgutils.pointer_add(builder, data_array.data, arguments[3])
        cgutils.raw_memcpy(builder, to, what, arguments[4], 1)
        return context.get_dummy_value()

    return types.void(out, types.int64, data, types.int64, types.int64), generate


@njit(  # type: ignore[untyped-decorator]
    types.int64(_bytes_in, _i32, _i32, types.int64, types.int64, _i32, _bytes_out, _bytes_out),
    cache=True,
)
def gather(
    data: Any,
    starts: Any,
    sizes: Any,
    first_row: int,
    last_row: int,
    offsets: Any,
    validity: Any,
    out: Any,
) -> int:
    """Copy the bytes of rows [first_row, last_row) from one payload, with Arrow's offsets and validity bits.

    Spans come from `find_rows`, which checked them; the bits are zero before. `out` must have GATHER_SLACK bytes more
    than is copied: returns the number of nulls, or, with nothing done, -1 less what `out` must have at least.
    """
    total = types.int64(offsets[first_row])
    for row in range(first_row, last_row):
        total += max(sizes[row], 0)
    if total + GATHER_SLACK > out.shape[0]:
        return -1 - (total + GATHER_SLACK)
    nulls = 0
    at = types.int64(offsets[first_row])
    last_start = data.shape[0] - GATHER_SLACK
    for row in range(first_row, last_row):
        size, start = types.int64(sizes[row]), types.int64(starts[row])
        if size < 0:
            nulls += 1
        else:
            validity[row >> 3] |= types.uint8(1 << (row & 7))
            if size <= GATHER_SLACK and start <= last_start:
                # One move, whatever the size: what is too much is written over by the next.
                _copy(out, at, data, start, types.int64(GATHER_SLACK))
            else:
                _copy(out, at, data, start, size)
            at += size
        offsets[row + 1] = at
    return nulls
