"""The decoder compared with the reference reader, and its errors for damaged bytes.

Method: the tests build batches with `wire.records`, and compare the compiled decoder's rows with `read_records`, field
by field. Then they damage one thing at a time, and the error must name the place.
"""

from collections.abc import Sequence

import pyarrow as pa
import pytest
from crc32c import crc32c

from stratalog.errors import Corrupt
from stratalog.kernels.columns import COLUMNS, HEADERS, ORIGIN
from stratalog.kernels.decode import Decoder
from stratalog.kernels.missing import Missing
from stratalog.kernels.rows import Layout, arrow_schema
from stratalog.wire.compression import CODEC_NAMES, decompress_into
from stratalog.wire.records import Record, build_batch, read_records

Header = tuple[str, bytes | None]


def record(number: int, headers: tuple[Header, ...] = ()) -> Record:
    key = None if number % 5 == 0 else b"k%d" % number
    value = None if number % 7 == 0 else b"value %d" % number * (number % 4)
    return Record(0, 1_700_000_000_000 + number * 3, key, value, headers)


def batch(base: int, count: int = 4, codec: str = "none", **fields: int | bool) -> bytearray:
    built = build_batch([record(base + at) for at in range(count)], codec=codec, base_offset=base)
    if fields:
        return build_batch(
            [record(base + at) for at in range(count)],
            codec=codec,
            base_offset=base,
            **fields,  # type: ignore[arg-type]
        )
    return built


def reseal(changed: bytearray) -> bytearray:
    """Return the batch with a new valid checksum, as a broken producer would send it."""
    changed[17:21] = crc32c(changed[21:]).to_bytes(4, "big")
    return changed


def decode(
    data: bytes | bytearray,
    first: int = 0,
    end: int = 1 << 60,
    layout: Layout | None = None,
    **options: bool | Sequence[tuple[int, int]],
) -> tuple[pa.Table, Decoder]:
    layout = layout or Layout("t", 3)
    decoder = Decoder(layout, first, end)
    batches = [*decoder.decode(data, "here", **options), *decoder.flush()]  # type: ignore[arg-type]
    schema = arrow_schema(layout.columns)
    for found in batches:
        found.validate(full=True)
    return pa.Table.from_batches(batches, schema=schema), decoder


def offsets(table: pa.Table) -> list[int]:
    found: list[int] = table["offset"].to_pylist()
    return found


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_every_codec_gives_the_rows_of_the_reference_reader(codec: str) -> None:
    batches = [batch(0, 40, codec), batch(40, 1, codec), batch(41, 9)]
    table, decoder = decode(b"".join(batches))
    expected = [one for built in batches for one in read_records(memoryview(built))]
    assert offsets(table) == [one.offset for one in expected]
    assert table["key"].to_pylist() == [one.key for one in expected]
    assert table["value"].to_pylist() == [one.value for one in expected]
    stamps = table["timestamp"].cast(pa.int64()).to_pylist()
    assert stamps == [one.timestamp * 1000 for one in expected]
    assert set(table["topic"].to_pylist()) == {"t"}
    assert set(table["partition"].to_pylist()) == {3}
    assert set(table["timestampType"].to_pylist()) == {0}
    assert decoder.next_offset == 50
    assert decoder.consumed == sum(map(len, batches))


def test_headers_and_origin_are_optional_columns() -> None:
    headers: list[tuple[Header, ...]] = [(), (("a", b"1"), ("b", None)), (("", b""), ("ü", b"x"))]
    built = build_batch([record(at, found) for at, found in enumerate(headers)])
    table, _ = decode(built, layout=Layout("t", 0, (*COLUMNS, HEADERS, ORIGIN), "bucket"))
    assert table["headers"].to_pylist() == [
        None if not found else [{"key": key, "value": value} for key, value in found]
        for found in headers
    ]
    assert table["origin"].to_pylist() == ["bucket"] * 3


def test_a_header_key_that_is_not_utf8_is_replaced_not_refused() -> None:
    built = build_batch([record(1, (("abc", b""),))])
    at = bytes(built).index(b"abc")
    built[at] = 0xFF
    table, _ = decode(reseal(built), layout=Layout("t", 0, (*COLUMNS, HEADERS)))
    assert table["headers"].to_pylist() == [[{"key": "�bc", "value": b""}]]


def test_more_headers_than_the_buffer_holds_are_decoded() -> None:
    many = tuple((f"h{number}", b"%d" % number) for number in range(3000))
    built = build_batch([record(1), record(2, many), record(3, many)])
    table, _ = decode(built, layout=Layout("t", 0, (*COLUMNS, HEADERS), max_rows=100))
    assert [len(found or ()) for found in table["headers"].to_pylist()] == [0, 3000, 3000]
    assert table["headers"].to_pylist()[2][2999] == {"key": "h2999", "value": b"2999"}


def test_headers_of_a_skipped_record_do_not_reach_the_next_one() -> None:
    """The decoder notes a null header, then finds a fault after it: the next record does not get the header."""
    built = build_batch([record(1, (("a", None), ("b", b"fault")))], base_offset=0)
    built[built.index(b"fault") - 1] = 0x7E  # its length: beyond the record's end
    following = build_batch([record(1, (("c", b"1"), ("d", None)))], base_offset=1)
    reports: list[str] = []
    decoder = Decoder(
        Layout("t", 0, ("offset", HEADERS)), 0, 2, unreadable=lambda what, _: reports.append(what)
    )
    (found,) = [*decoder.decode(reseal(built) + following, "here"), *decoder.flush()]
    found.validate(full=True)
    assert found["offset"].to_pylist() == [1]
    headers = [{"key": "c", "value": b"1"}, {"key": "d", "value": None}]
    assert found["headers"].to_pylist() == [headers]
    assert ["headers do not fit" in one for one in reports] == [True]


def test_log_append_time_is_the_time_of_the_batch() -> None:
    built = batch(0, 3)
    built[22] |= 8  # timestamp type
    table, _ = decode(reseal(built))
    assert table["timestampType"].to_pylist() == [1, 1, 1]
    assert set(table["timestamp"].cast(pa.int64()).to_pylist()) == {1_700_000_000_006_000}


def test_a_timestamp_beyond_the_range_of_microseconds_is_clamped() -> None:
    built = build_batch([Record(0, (1 << 63) - 1, b"", b"", ()), Record(0, 5, b"", b"", ())])
    table, _ = decode(built)
    edge = ((1 << 63) - 1) // 1000 * 1000
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [edge, 5000]


def test_only_wanted_offsets_are_decoded() -> None:
    data = b"".join(batch(base) for base in range(0, 40, 4))
    table, decoder = decode(data, 6, 17)
    assert offsets(table) == list(range(6, 17))
    assert decoder.next_offset == 20
    assert decoder.consumed == len(b"".join(batch(base) for base in range(0, 20, 4)))


def test_the_next_buffer_continues_where_the_last_one_ended() -> None:
    decoder = Decoder(Layout("t", 0), 2, 12)
    found = []
    for base in (0, 4, 8):
        found += [one for rows in decoder.decode(batch(base), "here") for one in rows["offset"]]
    found += [one for rows in decoder.flush() for one in rows["offset"]]
    assert [one.as_py() for one in found] == list(range(2, 12))


def test_a_partial_batch_at_the_end_is_ignored() -> None:
    whole = bytes(batch(0) + batch(4))
    for cut in (1, 16, 17, 60, 61, len(batch(4)) - 1):
        table, decoder = decode(whole[: len(batch(0)) + cut])
        assert offsets(table) == [0, 1, 2, 3]
        assert decoder.consumed == len(batch(0))
        assert decoder.next_offset == 4


def test_arrow_batches_are_bounded() -> None:
    built = build_batch([Record(0, 0, b"k", b"v" * 100, ()) for _ in range(100)], codec="zstd")
    decoder = Decoder(Layout("t", 0, max_rows=30), 0, 100)
    assert [rows.num_rows for rows in decoder.decode(built, "here")] == [30, 30, 30]
    assert [rows.num_rows for rows in decoder.flush()] == [10]
    decoder = Decoder(Layout("t", 0, max_bytes=1000), 0, 100)
    sizes = [rows.num_rows for rows in [*decoder.decode(built, "here"), *decoder.flush()]]
    assert sum(sizes) == 100
    assert max(sizes) == 9  # records of 108 bytes


def test_a_record_larger_than_the_bound_comes_alone() -> None:
    values = [b"a", b"b" * 5000, b"c"]
    built = build_batch([Record(0, 0, None, value, ()) for value in values])
    decoder = Decoder(Layout("t", 0, max_bytes=100), 0, 3)
    found = [*decoder.decode(built, "here"), *decoder.flush()]
    assert [rows["value"].to_pylist() for rows in found] == [[value] for value in values]


def test_control_batches_have_no_rows() -> None:
    ends = batch(4, 1, control=True, transactional=True, producer_id=9)
    table, _ = decode(b"".join([batch(0), ends, batch(5)]))
    assert offsets(table) == [0, 1, 2, 3, 5, 6, 7, 8]


def marker(base: int, producer_id: int, kind: int) -> bytearray:
    """Return the marker that ends a producer's transaction: 0 aborts, 1 commits."""
    ends = [Record(0, 0, b"\0\0" + kind.to_bytes(2, "big"), b"\0" * 6, ())]
    return build_batch(
        ends, base_offset=base, producer_id=producer_id, transactional=True, control=True
    )


def test_aborted_transactions_are_hidden_up_to_their_marker() -> None:
    data = b"".join(
        [
            batch(0, 2, producer_id=9, transactional=True),  # before the aborted one: committed
            marker(2, 9, 1),
            batch(3, 2, producer_id=9, transactional=True),  # aborted
            batch(5, 2, producer_id=8, transactional=True),
            batch(7, 2, producer_id=9),  # not in a transaction
            marker(9, 9, 0),
            batch(10, 2, producer_id=9, transactional=True),  # the next transaction
        ]
    )
    table, _ = decode(data, aborted=[(9, 3)])
    assert offsets(table) == [0, 1, 5, 6, 7, 8, 10, 11]
    table, _ = decode(data)
    assert offsets(table) == [0, 1, 3, 4, 5, 6, 7, 8, 10, 11]


def test_reading_may_begin_between_an_aborted_transaction_and_its_marker() -> None:
    """The reader knows open transactions before their marker; the producer's next transaction is not hidden."""
    data = b"".join(
        [
            batch(0, 2, producer_id=9, transactional=True),  # aborted
            marker(2, 9, 0),
            batch(3, 2, producer_id=9, transactional=True),
            marker(5, 9, 1),
        ]
    )
    for first, seen in ((0, [3, 4]), (2, [3, 4])):
        begin = 0 if first == 0 else len(batch(0, 2, producer_id=9, transactional=True))
        table, _ = decode(data[begin:], first, aborted=[(9, 0)])
        assert offsets(table) == seen


def test_a_malformed_marker_is_corrupt() -> None:
    broken = build_batch(
        [Record(0, 0, b"\0", b"", ())],
        base_offset=2,
        producer_id=9,
        transactional=True,
        control=True,
    )
    data = batch(0, 2, producer_id=9, transactional=True) + broken
    with pytest.raises(Corrupt, match="here: batch at offset 2: a transaction's marker"):
        decode(data, aborted=[(9, 0)])
    assert offsets(decode(data)[0]) == [0, 1], (
        "the decoder must not hide records behind a marker that it does not open"
    )


def test_alternating_large_and_small_batches_of_every_codec_are_decoded() -> None:
    """The decoder decompresses small batches together, and each large one into its own buffer."""
    built, base = [], 0
    for number, size in enumerate([10, 3 << 20, 700_000, 10, 20 << 20, 300_000, 300_000, 5]):
        codec = CODEC_NAMES[number % 5]
        one = Record(0, 0, None, b"%d" % number * size, ())
        built.append(build_batch([one, record(number)], codec=codec, base_offset=base))
        base += 2
    table, _ = decode(b"".join(built))
    expected = [one.value for each in built for one in read_records(memoryview(each))]
    assert table["value"].to_pylist() == expected


def test_a_batch_emptied_by_compaction_has_no_rows_but_its_offsets_count() -> None:
    built = batch(0)
    del built[61:]
    built[8:12] = (len(built) - 12).to_bytes(4, "big")
    built[57:61] = bytes(4)
    table, decoder = decode(reseal(built) + batch(4))
    assert offsets(table) == [4, 5, 6, 7]
    assert decoder.next_offset == 8


# --- errors name the fault and its place ---------------------------------------------------------------------------


def test_a_gap_is_missing_offsets_unless_gaps_are_allowed() -> None:
    data = bytes(batch(0) + batch(6))
    with pytest.raises(Missing, match="here: offsets 4 to 5 are missing") as missing:
        decode(data)
    assert (missing.value.first, missing.value.found) == (4, 6)
    table, _ = decode(data, gaps=True)
    assert offsets(table) == [0, 1, 2, 3, 6, 7, 8, 9]
    with pytest.raises(Missing, match="offsets 0 to 5"):
        decode(batch(6))


def test_records_before_a_gap_are_returned() -> None:
    decoder = Decoder(Layout("t", 0), 0, 10)
    with pytest.raises(Missing):
        list(decoder.decode(batch(0) + batch(6), "here"))
    assert [rows["offset"].to_pylist() for rows in decoder.flush()] == [[0, 1, 2, 3]]


def test_decreasing_offsets_are_corrupt() -> None:
    with pytest.raises(Corrupt, match="batch at offset 2 where 4 should be"):
        decode(batch(0) + batch(2))


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_every_flipped_bit_behind_the_checksum_is_found(codec: str) -> None:
    built = batch(8, 3, codec)
    for at in range(21, len(built)):
        damaged = bytearray(built)
        damaged[at] ^= 0x10
        with pytest.raises(Corrupt, match="here"):
            decode(damaged, 8)


def test_bytes_that_are_not_a_batch_are_corrupt() -> None:
    for damaged in (
        b"\0" * 100,
        batch(0)[:16] + b"\1" + batch(0)[17:],
        bytes(batch(4)) + b"\xff" * 70,
    ):
        with pytest.raises(Corrupt, match="no record batch of format v2"):
            decode(damaged, gaps=True)


@pytest.mark.parametrize(
    ("at", "value", "says"),
    [
        (0, b"\xff\xff\xff\xff\x0f", "length does not fit"),
        (0, b"\x01", "length does not fit"),
        (2, b"\xff" * 11, "varint does not end"),
        (3, b"\x7e", "offsets do not rise"),
        (4, b"\x7e", "key does not fit"),
        (4, b"\x03", "key does not fit"),
        (7, b"\x7e", "value does not fit"),
        (10, b"\x7e", "headers do not fit"),
        (10, b"\x01", "headers do not fit"),
    ],
)
def test_a_malformed_record_names_its_batch(at: int, value: bytes, says: str) -> None:
    """The checksum is valid: a broken producer wrote the batch so, and brokers do not open records."""
    built = build_batch([Record(0, 0, b"kk", b"vv", ())], base_offset=7)
    built[61 + at : 61 + at + len(value)] = value
    built = built[: max(len(built), 61 + at + len(value))]
    built[8:12] = (len(built) - 12).to_bytes(4, "big")
    with pytest.raises(Corrupt, match=f"here: batch at offset 7, record 0 of 1: .*{says}"):
        decode(reseal(built), 7)


def test_offsets_inside_a_batch_must_increase() -> None:
    built = build_batch([Record(0, 0, b"kk", b"vv", ()) for _ in range(3)])
    at = built.index(b"\0\0\2\4kk", 61) + 2  # the second record's offset delta: 1
    for delta in (0, 2):
        changed = bytearray(built)
        changed[at] = delta << 1
        with pytest.raises(Corrupt, match="of 3: offsets do not rise"):
            decode(reseal(changed))


def test_unwanted_batches_are_not_decompressed(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"".join(batch(base, codec="zstd") for base in (0, 4, 8))
    opened = []

    def counted(codec: int, records: memoryview, target: memoryview) -> int:
        opened.append(codec)
        return decompress_into(codec, records, target)

    monkeypatch.setattr("stratalog.kernels.decode.decompress_into", counted)
    table, _ = decode(data, 4, 8)
    assert offsets(table) == [4, 5, 6, 7]
    assert len(opened) == 1


def test_more_or_fewer_records_than_the_header_says_are_corrupt() -> None:
    for count in (3, 5):
        built = batch(0, 4)
        built[57:61] = count.to_bytes(4, "big")
        with pytest.raises(Corrupt, match="here: batch at offset 0"):
            decode(reseal(built))


def test_bytes_that_do_not_decompress_are_corrupt() -> None:
    for number, codec in enumerate(CODEC_NAMES):
        if number:
            built = batch(5, 4, codec)
            del built[70:]
            built[8:12] = (len(built) - 12).to_bytes(4, "big")
            with pytest.raises(Corrupt, match="here: batch at offset 5"):
                decode(reseal(built), 5)


def test_an_unknown_codec_is_corrupt() -> None:
    built = batch(0)
    built[22] |= 5
    with pytest.raises(Corrupt, match="here: batch at offset 0: unknown compression codec 5"):
        decode(reseal(built))
