"""The compiled part: walks record batches of format v2 and gathers their records into columns.

In: bytes, and arrays to fill. Out: filled arrays and a state with a status. It never reads outside its input whatever
the bytes are, never raises, and is called by `decode.py` and `rows.py` alone.

Everything numba compiles is in this one file, because numba's cache looks only at the file that declares a kernel
to see whether it changed. Signatures are explicit: declaring a kernel loads it from the cache or compiles it, and
no call ever does. Formats: Kafka's DefaultRecordBatch and DefaultRecord.

`read_rows` finds a record's fields and copies them to their columns at once, while they are in the processor's cache.
Noting all positions first and copying later takes half as long again.
"""

from pathlib import Path
from typing import Any

from stratalog.kernels.cache import choose_cache_directory

choose_cache_directory(Path(__file__).parent)

from numba import njit, types  # type: ignore[import-untyped]  # noqa: E402 - after the choice of its cache
from numba.core import cgutils  # type: ignore[import-untyped]  # noqa: E402
from numba.extending import intrinsic  # type: ignore[import-untyped]  # noqa: E402

# Columns of the batch table that `scan` fills.
POSITION, SIZE, BASE_OFFSET, LAST_DELTA, COUNT, BASE_TIMESTAMP, MAX_TIMESTAMP = range(7)
ATTRIBUTES, PRODUCER_ID, CRC, START, END = range(7, 12)
"""START and END bound the records inside the payload; `scan` sets them for uncompressed batches."""
TABLE_COLUMNS = 12

# Slots of the state of `read_rows`: position, results, end, and the filter.
BATCH, RECORD, CURSOR, PREVIOUS_DELTA, ROWS, BYTES, HEADERS, STATUS, WANTED = range(9)
BEGIN, STOP, MAX_ROWS, MAX_BYTES, WITH_KEYS, WITH_VALUES, WITH_HEADERS = range(9, 16)
NULLS, NEEDED = 16, 20
"""From here on, two slots for each column of bytes: nulls; bytes that it needs room for."""
SINCE, LATEST = 24, 25
"""The least and the largest timestamp (epoch ms) of records that become rows."""
STATE_SLOTS = 26

KEYS, VALUES, NAMES, TEXTS = range(4)
"""Columns of bytes: of records, and of their headers."""
LISTS = 2
"""A record's headers as a column, for counting nulls: header names are never null."""

# Rows of the matrices that `read_rows` fills, a column for each record; ends have a 0 before the first.
OFFSET, TIMESTAMP = range(2)
TIMESTAMP_TYPE, KEY_ENDS, VALUE_ENDS, HEADER_ENDS = range(4)
LONGS, INTS, BITS, ENDS = 2, 4, 3, 2

SLACK = 32
"""Bytes that `read_rows` may write past a copied field."""

# Slots of the state of `sift`: offsets, allowed exceptions, and the numbers of waiting and open transactions.
NEXT, FIRST, UNTIL, FOLLOWS, GAPS, WAITING, OPEN, OLDEST, YOUNGEST = range(9)
"""OLDEST and YOUNGEST: as SINCE and LATEST."""
SIFT_SLOTS = 9

# Why `sift` stopped.
SIFTED, ENOUGH, UNKNOWN_CODEC, TOO_MANY, BACKWARDS, GAP, BAD_MARKER = range(7)

# Statuses.
DONE, FULL, MORE_HEADERS, MORE_ROOM = range(4)
BAD_LENGTH, BAD_VARINT, BAD_KEY, BAD_VALUE, BAD_HEADERS, BAD_DELTA, TRAILING, BAD_BATCH = range(
    10, 18
)

HEADER_SIZE = 61
_LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0x08, 0x10, 0x20
_MAX_MS = (2**63 - 1) // 1000

_bytes_in = types.Array(types.uint8, 1, "C", readonly=True)
_bytes_out = types.Array(types.uint8, 1, "C")
_bits = types.Array(types.uint8, 2, "C")
_i64 = types.Array(types.int64, 1, "C")
_table = types.Array(types.int64, 2, "C")
_matrix = types.Array(types.int32, 2, "C")
_varint = types.UniTuple(types.int64, 2)

# No kernel creates an array, so `_nrt` (reference counts of arrays) is off. With it every inlined function that reads
# an array counts up and down, atomically, and finding a record's fields took three times as long.
_INLINED: Any = njit(inline="always", _nrt=False)


def _kernel(signature: Any) -> Any:
    return njit(signature, cache=True, _nrt=False)


@_kernel(types.int64(_bytes_in, types.int64, types.int64))
def _big_endian(data: Any, position: int, size: int) -> int:
    """Return signed big-endian integer of `size` bytes (1, 2, 4 or 8)."""
    value = types.int64(0)
    for index in range(size):
        value = (value << 8) | types.int64(data[position + index])
    shift = 64 - 8 * size
    return (value << shift) >> shift


@njit(_varint(_bytes_in, types.int64, types.int64), cache=True, _nrt=False)  # type: ignore[untyped-decorator]
def _read_long_varint(data: Any, position: int, end: int) -> tuple[int, int]:
    """Read as `_read_varint`, for any length."""
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


@_INLINED
def _read_varint(data: Any, position: int, end: int) -> tuple[int, int]:
    """Return a zigzag varint at `position` and the position behind it; -1 for the latter where it does not end in time.

    Nearly all varints have one or two bytes. An unsigned index avoids a check for negative indexes.
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


@_kernel(types.UniTuple(types.int64, 3)(_bytes_in, types.int64, _table))
def scan(data: Any, position: int, table: Any) -> tuple[int, int, int]:
    """Fill `table` with the whole batches from `position` on.

    Returns (batches, position behind the last whole one, status). DONE: the input ended, perhaps inside a batch; FULL:
    the table did; BAD_BATCH: the bytes at the position are no batch of format v2.
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


@_INLINED
def _find_fields(
    data: Any, position: int, end: int
) -> tuple[int, int, int, int, int, int, int, int, int, int]:
    """Return where the fields of one record lie.

    Returns (status, stop, timestamp delta, offset delta, key, its size, value, its size, headers' number, headers).
    Where the status is DONE or TRAILING, every span lies inside [position, stop), and stop <= end.
    """
    none = types.int64(0)
    length, at = _read_varint(data, position, end)
    if at < 0 or length < 0 or length > end - at:
        return BAD_LENGTH, none, none, none, none, none, none, none, none, none
    stop = at + length
    timestamp_delta, at = _read_varint(data, at + 1, stop)  # behind the attributes
    if at < 0:
        return BAD_VARINT, none, none, none, none, none, none, none, none, none
    delta, at = _read_varint(data, at, stop)
    if at < 0:
        return BAD_VARINT, none, none, none, none, none, none, none, none, none
    key_size, key = _read_varint(data, at, stop)
    if key < 0 or key_size < -1 or key_size > stop - key:
        return BAD_KEY, none, none, none, none, none, none, none, none, none
    value_size, value = _read_varint(data, key + max(key_size, 0), stop)
    if value < 0 or value_size < -1 or value_size > stop - value:
        return BAD_VALUE, none, none, none, none, none, none, none, none, none
    count, at = _read_varint(data, value + max(value_size, 0), stop)
    if at < 0 or count < 0 or count > (stop - at) >> 1:
        return BAD_HEADERS, none, none, none, none, none, none, none, none, none
    status = TRAILING if count == 0 and at != stop else DONE
    return status, stop, timestamp_delta, delta, key, key_size, value, value_size, count, at


@_kernel(types.int64(_bytes_in, types.int64, types.int64))
def _marker_type(data: Any, position: int, end: int) -> int:
    """Return the type of the control record there: 0 (abort), 1 (commit) or another one; -1 for a malformed record."""
    status, _, _, _, key, key_size, _, _, _, _ = _find_fields(data, position, end)
    if status != DONE or key_size < 4:
        return -1
    return _big_endian(data, key + 2, 2)


@_kernel(types.int64(_table, _i64, types.int64, types.int64))
def _place_open(transactions: Any, state: Any, producer: int, last_offset: int) -> int:
    """Open the aborted transactions that begin up to `last_offset`; return the producer's place among the open ones, or
    -1.

    `transactions` has a row for each in the order of first offsets: producer, first offset. Its third column lists the
    producers of open transactions, from the first row on.
    """
    while state[WAITING] < transactions.shape[0] and transactions[state[WAITING], 1] <= last_offset:
        is_open = False
        for place in range(state[OPEN]):
            is_open |= transactions[place, 2] == transactions[state[WAITING], 0]
        if not is_open:
            transactions[state[OPEN], 2] = transactions[state[WAITING], 0]
            state[OPEN] += 1
        state[WAITING] += 1
    for place in range(state[OPEN]):
        if transactions[place, 2] == producer:
            return place
    return -1


@_kernel(types.UniTuple(types.int64, 2)(_bytes_in, _table, types.int64, types.int64, _table, _i64))
def sift(
    data: Any, table: Any, begin: int, found: int, transactions: Any, state: Any
) -> tuple[int, int]:
    """Check the batches [begin, found) of `table`: which ones count, and whether their offsets are consecutive.

    A batch that does not count becomes a batch without records. Return the stop and its reason: SIFTED at the end,
    ENOUGH behind the requested offsets; any other one is an error.
    """
    for index in range(begin, found):
        row = table[index]
        if state[NEXT] >= state[UNTIL]:
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
        counts = last >= state[FIRST] and base < state[UNTIL] and row[COUNT] > 0
        # The header has only the largest timestamp; that is also the least where all records have the same one.
        counts &= row[MAX_TIMESTAMP] >= state[OLDEST]
        if row[ATTRIBUTES] & _LOG_APPEND_TIME:
            counts &= row[MAX_TIMESTAMP] <= state[YOUNGEST]
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


@intrinsic  # type: ignore[untyped-decorator]
def _copy(_typing: Any, out: Any, _target: Any, data: Any, _source: Any, _size: Any) -> Any:
    """Copy between two byte arrays with memcpy: a loop over bytes runs at 0.7 GB/s, because its checks prevent vector
    code.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        out_array = context.make_array(signature.args[0])(context, builder, arguments[0])
        data_array = context.make_array(signature.args[2])(context, builder, arguments[2])
        to = cgutils.pointer_add(builder, out_array.data, arguments[1])
        what = cgutils.pointer_add(builder, data_array.data, arguments[3])
        cgutils.raw_memcpy(builder, to, what, arguments[4], 1)
        return context.get_dummy_value()

    return types.void(out, types.int64, data, types.int64, types.int64), generate


@_INLINED
def _take(data: Any, start: int, size: int, out: Any, at: int, bits: Any, row: int) -> int:
    """Copy one row's bytes into `out`, which has SLACK more bytes; return 1 for a null, else 0."""
    if size < 0:
        bits[types.uint64(row >> 3)] &= types.uint8(0xFF ^ (1 << (row & 7)))
        return types.int64(1)
    if size <= SLACK and start <= data.shape[0] - SLACK:
        # One move of a fixed size: the next row overwrites surplus bytes.
        _copy(out, at, data, start, types.int64(SLACK))
    else:
        _copy(out, at, data, start, size)
    return types.int64(0)


@_kernel(
    types.int64(
        *(_bytes_in, types.int64, types.int64, types.int64, _i64),
        *(_matrix, _bytes_out, _bytes_out, _bytes_out),
    )
)
def _take_headers(
    data: Any,
    position: int,
    end: int,
    count: int,
    state: Any,
    ends: Any,
    bits: Any,
    names: Any,
    texts: Any,
) -> int:
    """Copy the `count` headers at the end of a record; return a status, and copy none unless that is DONE."""
    first, found, nulls = state[HEADERS], state[HEADERS], types.int64(0)
    name_at, text_at = types.int64(ends[0, first]), types.int64(ends[1, first])
    most = end - position + SLACK
    state[NEEDED + NAMES], state[NEEDED + TEXTS] = name_at + most, text_at + most
    if name_at + most > names.shape[0] or text_at + most > texts.shape[0]:
        return types.int64(MORE_ROOM)
    status = types.int64(DONE)
    for _ in range(count):
        size, start = _read_varint(data, position, end)
        if start < 0 or size < 0 or size > end - start:
            status = types.int64(BAD_HEADERS)
            break
        text_size, text = _read_varint(data, start + size, end)
        if text < 0 or text_size < -1 or text_size > end - text:
            status = types.int64(BAD_HEADERS)
            break
        _take(data, start, size, names, name_at, bits, found)
        nulls += _take(data, text, text_size, texts, text_at, bits, found)
        text_size = max(text_size, 0)
        position, found = text + text_size, found + 1
        name_at, text_at = name_at + size, text_at + text_size
        ends[0, found], ends[1, found] = name_at, text_at
    if status == DONE and position != end:
        status = types.int64(TRAILING)
    if status == DONE:
        state[HEADERS] = found
        state[NULLS + TEXTS] += nulls
    else:
        for row in range(first, found):
            bits[row >> 3] |= types.uint8(1 << (row & 7))
    return status


@_INLINED
def _is_full(state: Any, rows: int, taken: int, count: int, ends: Any) -> int:
    """Return FULL where a row with this many headers does not fit after the others, MORE_HEADERS where not even
    alone.
    """
    if rows > 0 and (rows >= state[MAX_ROWS] or taken > state[MAX_BYTES]):
        return types.int64(FULL)
    if state[HEADERS] + count >= ends.shape[1]:
        state[WANTED] = count
        return types.int64(FULL if rows > 0 else MORE_HEADERS)
    return types.int64(DONE)


@_INLINED
def _has_room(state: Any, key_end: int, keys: Any, value_end: int, values: Any) -> int:
    """Return MORE_ROOM, with the needed size in the state, where a key and a value would not fit."""
    if key_end + SLACK > keys.shape[0] or value_end + SLACK > values.shape[0]:
        state[NEEDED + KEYS], state[NEEDED + VALUES] = key_end + SLACK, value_end + SLACK
        return types.int64(MORE_ROOM)
    return types.int64(DONE)


@_INLINED
def _timestamp(table: Any, batch: int, later: int) -> int:
    """Return a record's timestamp (epoch ms): with log append time the batch's own."""
    if table[batch, ATTRIBUTES] & _LOG_APPEND_TIME:
        return table[batch, MAX_TIMESTAMP]  # type: ignore[no-any-return]
    return table[batch, BASE_TIMESTAMP] + later  # type: ignore[no-any-return]


@_INLINED
def _is_wanted(state: Any, offset: int, timestamp: int) -> bool:
    """Return whether a record of this offset and timestamp becomes a row."""
    is_inside = state[BEGIN] <= offset < state[STOP]
    return is_inside and state[SINCE] <= timestamp <= state[LATEST]  # type: ignore[no-any-return]


@_INLINED
def _put_numbers(
    table: Any, batch: int, delta: int, timestamp: int, longs: Any, ints: Any, row: int
) -> None:
    """Note a row's offset and time; timestamps become microseconds, as far as an int64 carries them."""
    place = types.uint64(row)
    longs[OFFSET, place] = table[batch, BASE_OFFSET] + delta
    longs[TIMESTAMP, place] = min(max(timestamp, -_MAX_MS), _MAX_MS) * 1000
    ints[TIMESTAMP_TYPE, place] = (table[batch, ATTRIBUTES] >> 3) & 1


@_INLINED
def _put_headers(state: Any, count: int, ints: Any, bits: Any, row: int) -> None:
    """Note the end of a row's headers; a row without headers has a null."""
    ints[HEADER_ENDS, row + 1] = state[HEADERS]
    if count == 0:
        bits[LISTS, row >> 3] &= types.uint8(0xFF ^ (1 << (row & 7)))
        state[NULLS + LISTS] += 1


@_kernel(
    types.void(
        *(_bytes_in, _table, _i64, _table, _matrix, _bits, _matrix, _bytes_out),
        *(_bytes_out, _bytes_out, _bytes_out, _bytes_out),
    )
)
def read_rows(
    data: Any,
    table: Any,
    state: Any,
    longs: Any,
    ints: Any,
    bits: Any,
    ends: Any,
    text_bits: Any,
    keys: Any,
    values: Any,
    names: Any,
    texts: Any,
) -> None:
    """Turn the records of `table`'s batches into rows, from where `state` stopped, until done, full or wrong.

    Only records with BEGIN <= offset < STOP and SINCE <= timestamp <= LATEST become rows; every record is checked. All
    bits are set before.
    """
    batch, record, position = state[BATCH], state[RECORD], state[CURSOR]
    previous, rows, taken = state[PREVIOUS_DELTA], state[ROWS], state[BYTES]
    key_at, value_at = types.int64(ints[KEY_ENDS, rows]), types.int64(ints[VALUE_ENDS, rows])
    key_nulls, value_nulls, status = types.int64(0), types.int64(0), types.int64(DONE)
    while batch < table.shape[0]:
        if record == 0:
            position, previous = table[batch, START], types.int64(-1)
        while record < table[batch, COUNT]:
            status, behind, later, delta, key, key_size, value, value_size, count, at = (
                _find_fields(data, position, table[batch, END])
            )
            if status == DONE and (delta <= previous or delta > table[batch, LAST_DELTA]):
                status = types.int64(BAD_DELTA)
            if status != DONE:
                break
            timestamp = _timestamp(table, batch, later)
            if _is_wanted(state, table[batch, BASE_OFFSET] + delta, timestamp):
                length = behind - position  # bounds key, value and headers together
                key_size *= state[WITH_KEYS]
                value_size *= state[WITH_VALUES]
                count *= state[WITH_HEADERS]
                status = _is_full(state, rows, taken + length, count, ends)
                if status == DONE:
                    status = _has_room(
                        state, key_at + key_size, keys, value_at + value_size, values
                    )
                if status == DONE and count > 0:
                    status = _take_headers(
                        data, at, behind, count, state, ends, text_bits, names, texts
                    )
                if status != DONE:
                    break
                _put_numbers(table, batch, delta, timestamp, longs, ints, rows)
                key_nulls += _take(data, key, key_size, keys, key_at, bits[KEYS], rows)
                value_nulls += _take(data, value, value_size, values, value_at, bits[VALUES], rows)
                key_at, value_at = key_at + max(key_size, 0), value_at + max(value_size, 0)
                ints[KEY_ENDS, rows + 1], ints[VALUE_ENDS, rows + 1] = key_at, value_at
                _put_headers(state, count, ints, bits, rows)
                rows, taken = rows + 1, taken + length
            position, previous, record = behind, delta, record + 1
        if status == DONE and position != table[batch, END]:
            status = types.int64(TRAILING)
        if status != DONE:
            break
        batch, record = batch + 1, types.int64(0)
    state[BATCH], state[RECORD], state[CURSOR] = batch, record, position
    state[PREVIOUS_DELTA], state[ROWS], state[BYTES] = previous, rows, taken
    state[STATUS] = status
    state[NULLS + KEYS] += key_nulls
    state[NULLS + VALUES] += value_nulls
