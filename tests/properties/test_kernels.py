"""The decoder equals the reference reader for any records, and survives any bytes.

Method: Hypothesis makes records, codecs, batch borders, ranges, bounds and places to cut buffers; the rows must be
those of `read_records`. Then bytes are damaged at will and no checksum is asked (`checked`), so that only the walk over
records stands between them and the output: it must raise Corrupt or give rows, nothing else.
"""

from typing import NamedTuple

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.errors import Corrupt
from stratalog.kernels.columns import COLUMNS, HEADERS, ORIGIN
from stratalog.kernels.decode import Decoder
from stratalog.kernels.rows import Layout, arrow_schema
from stratalog.wire.compression import CODEC_NAMES
from stratalog.wire.records import Record, build_batch, read_records

SOME = settings(max_examples=60, deadline=None)

some_bytes = st.one_of(st.none(), st.binary(max_size=40), st.just(b"x" * 300))
headers = st.lists(
    st.tuples(st.text(max_size=4), st.one_of(st.none(), st.binary(max_size=4))), max_size=3
)
records = st.builds(
    lambda key, value, at, found: Record(0, at, key, value, tuple(found)),
    some_bytes,
    some_bytes,
    st.integers(0, 1 << 42),
    headers,
)


class Log(NamedTuple):
    """Consecutive batches from offset 100 on, and their records."""

    batches: list[bytes]
    records: list[Record]


@st.composite
def logs(draw: st.DrawFn) -> Log:
    batches, found = [], []
    base = 100
    for content in draw(st.lists(st.lists(records, min_size=1, max_size=8), max_size=6)):
        built = build_batch(content, codec=draw(st.sampled_from(CODEC_NAMES)), base_offset=base)
        batches.append(bytes(built))
        found += list(read_records(memoryview(built)))
        base += len(content)
    return Log(batches, found)


def column_choices() -> st.SearchStrategy[tuple[str, ...]]:
    """Some of the columns, in any order."""
    every = st.permutations((*COLUMNS, HEADERS, ORIGIN))
    return st.tuples(every, st.integers(1, len(COLUMNS) + 2)).map(lambda it: tuple(it[0][: it[1]]))


@SOME
@given(logs(), column_choices())
def test_fewer_columns_have_the_same_values(log: Log, columns: tuple[str, ...]) -> None:
    def table(wanted: tuple[str, ...]) -> pa.Table:
        decoder = Decoder(Layout("t", 1, wanted, "here"), 0, 1 << 60)
        rows = list(decoder.decode(b"".join(log.batches), "here", gaps=True))
        return pa.Table.from_batches([*rows, *decoder.flush()], arrow_schema(wanted))

    whole = table((*COLUMNS, HEADERS, ORIGIN))
    assert table(columns).equals(whole.select(list(columns)))


@SOME
@given(logs(), st.data())
def test_rows_equal_those_of_the_reference_reader(log: Log, data: st.DataObject) -> None:
    end_of_log = 100 + len(log.records)
    first = data.draw(st.integers(100, end_of_log))
    end = data.draw(st.integers(first, end_of_log))
    layout = Layout(
        "t",
        1,
        (*COLUMNS, HEADERS) if data.draw(st.booleans()) else COLUMNS,
        max_rows=data.draw(st.integers(1, 20)),
        max_bytes=data.draw(st.integers(1, 500)),
    )
    decoder = Decoder(layout, first, end)
    rows: list[pa.RecordBatch] = []
    waiting = b""
    for batch in log.batches:
        waiting += batch
        if data.draw(st.booleans()):
            cut = data.draw(st.integers(0, 30))
            buffer = waiting[: len(waiting) - cut]
            rows += decoder.decode(buffer, "here", gaps=True)
            waiting = waiting[decoder.consumed :]
    rows += decoder.decode(waiting, "here", gaps=True)
    rows += decoder.flush()
    assert all(0 < found.num_rows <= layout.max_rows for found in rows)
    for found in rows:
        found.validate(full=True)
    table = pa.Table.from_batches(rows, arrow_schema(layout.columns))
    wanted = [one for one in log.records if first <= one.offset < end]
    assert table["offset"].to_pylist() == [one.offset for one in wanted]
    assert table["key"].to_pylist() == [one.key for one in wanted]
    assert table["value"].to_pylist() == [one.value for one in wanted]
    stamps = table["timestamp"].cast(pa.int64()).to_pylist()
    assert stamps == [one.timestamp * 1000 for one in wanted]
    if HEADERS in layout.columns:
        expected = [
            [{"key": key, "value": value} for key, value in one.headers] or None for one in wanted
        ]
        assert table["headers"].to_pylist() == expected


@SOME
@given(logs(), st.data())
def test_damaged_records_are_corrupt_or_rows(log: Log, data: st.DataObject) -> None:
    damaged = bytearray(b"".join(log.batches))
    for _ in range(data.draw(st.integers(1, 4))):
        if damaged:
            at = data.draw(st.integers(0, len(damaged) - 1))
            damaged[at] = data.draw(st.integers(0, 255))
    decoder = Decoder(
        Layout("t", 1, (*COLUMNS, HEADERS) if data.draw(st.booleans()) else COLUMNS), 0, 1 << 62
    )
    rows: list[pa.RecordBatch] = []
    try:
        rows += decoder.decode(damaged, "here", gaps=True, checked=True)
    except Corrupt as error:
        assert "here" in str(error)
    rows += decoder.flush()
    for found in rows:
        found.validate()
        assert sum(len(value) for value in found["value"].to_pylist() if value) <= 300 * 48


@SOME
@given(st.binary(max_size=400))
def test_any_bytes_are_rows_or_corrupt(data: bytes) -> None:
    decoder = Decoder(Layout("t", 1, (*COLUMNS, HEADERS)), 0, 1 << 62)
    try:
        found = [*decoder.decode(data, "here", gaps=True, checked=True), *decoder.flush()]
    except Corrupt as error:
        assert "here" in str(error)
    else:
        assert all(rows.num_rows for rows in found)
