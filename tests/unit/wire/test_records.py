"""Records inside batches, and the codecs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import Corrupt
from stratalog.wire.batch import parse_header
from stratalog.wire.compression import CODEC_NAMES, CODECS, compress, decompress
from stratalog.wire.records import BatchBuilder, Record, build_batch, read_records

NOT_COMPRESSIBLE = bytes((index * index * 7919 >> 3) & 0xFF for index in range(100_000))


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_a_batch_returns_the_records_put_into_it(codec):
    records = [
        Record(10, 5000, None, None),
        Record(11, 4000, b"", b""),
        Record(12, 2**45, b"k" * 9000, NOT_COMPRESSIBLE),
        Record(13, -1, b"k", b"v", (("h", b"1"), ("h", None), ("größe", b""))),
        *(Record(14 + n, 5000 + n, b"%d" % n, b"v" * (n % 300)) for n in range(9000)),
    ]
    made = build_batch(records, codec=codec, base_offset=10)
    header = parse_header(made)
    assert header.codec == CODECS[codec]
    assert header.base_timestamp == 5000
    assert header.max_timestamp == 2**45
    assert list(read_records(made)) == records


def test_the_size_of_a_builder_is_the_size_of_its_batch():
    builder = BatchBuilder()
    for n in range(200):
        builder.add(b"key" * n, None if n % 7 == 0 else b"v" * n * 50, n * 1000, [("h", b"x")])
    assert builder.size == len(builder.build())
    assert builder.count == 200


def test_a_builder_can_build_twice():
    builder = BatchBuilder("lz4")
    builder.add(None, b"v", 1)
    assert builder.build(5) == builder.build(5)


@pytest.mark.parametrize("codec", range(1, 5))
def test_a_compressed_bomb_is_bounded(codec):
    bomb = compress(codec, bytes(5_000_000))
    assert len(bomb) < 300_000
    with pytest.raises(Corrupt):
        decompress(codec, bomb, max_bytes=4_999_999)
    assert decompress(codec, bomb, max_bytes=5_000_000) == bytes(5_000_000)
    batch = build_batch([Record(0, 0, None, bytes(1_000_000))], codec=CODEC_NAMES[codec])
    with pytest.raises(Corrupt):
        list(read_records(batch, max_bytes=900_000))


@pytest.mark.parametrize("codec", range(5))
def test_every_codec_compresses_empty_input(codec):
    assert decompress(codec, compress(codec, b"")) == b""


def test_raw_snappy_is_read_too():
    from cramjam import snappy

    raw = bytes(snappy.compress_raw(NOT_COMPRESSIBLE))
    assert decompress(CODECS["snappy"], raw) == NOT_COMPRESSIBLE


@pytest.mark.parametrize("codec", range(1, 8))
@pytest.mark.parametrize("junk", [b"", b"\5", b"junk" * 30, b"\x82SNAPPY\0" + b"\xff" * 20])
def test_bytes_of_no_codec_are_corrupt(codec, junk):
    with pytest.raises(Corrupt):
        decompress(codec, junk)


def test_snappy_is_written_in_xerials_blocks():
    made = compress(CODECS["snappy"], bytes(40_000))
    assert made[:16] == b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"
    first = int.from_bytes(made[16:20], "big")
    second = int.from_bytes(made[20 + first : 24 + first], "big")
    assert 24 + first + second == len(made)


def test_lz4_blocks_are_independent():
    made = compress(CODECS["lz4"], bytes(200_000))
    assert made[:4] == b"\x04\x22\x4d\x18"
    assert (
        made[4] & 0b11101011 == 0b01100000
    )  # version 1, independent, no content size, no dictionary


@pytest.mark.parametrize(
    ("position", "byte"),
    [
        (61, 0x7F),  # the record's length: negative
        (61, 0x7E),  # longer than the batch
        (65, 0x40),  # the key's length
        (65, 0x03),  # -2
        (68, 0x40),  # the value's length
        (57, 0x01),  # the count
        (71, 0x02),  # headers that the record does not have
    ],
)
def test_a_damaged_record_is_corrupt(position, byte):
    made = build_batch([Record(0, 0, b"ke", b"va")])
    assert bytes(made[61:]) == bytes.fromhex("140000 00 046b65 047661 00")
    made[position] = byte
    with pytest.raises(Corrupt):
        list(read_records(made))


def test_a_record_shorter_than_its_length_is_corrupt():
    made = build_batch([Record(0, 0, b"ke", b"va")]) + b"\0"
    made[8:12] = (len(made) - 12).to_bytes(4, "big")
    made[61] += 2
    with pytest.raises(Corrupt, match="do not fill"):
        list(read_records(made))


def test_bytes_after_the_last_record_are_corrupt():
    made = build_batch([Record(0, 0, None, b"1"), Record(0, 0, None, b"2")])
    made[57:61] = (1).to_bytes(4, "big")
    with pytest.raises(Corrupt, match="after the last record"):
        list(read_records(made))


def test_a_truncated_batch_is_corrupt():
    made = build_batch([Record(0, 0, None, b"1")])
    with pytest.raises(Corrupt):
        list(read_records(made[:-1]))


@given(
    st.lists(st.lists(st.binary(max_size=300), max_size=20), max_size=4),
    st.lists(st.integers(0, 1 << 40), min_size=4, max_size=4),
    st.lists(st.none() | st.binary(max_size=200), min_size=20, max_size=20) | st.none(),
)
def test_values_added_together_are_the_same_batch_as_one_by_one(groups, times, keys):
    one, other = BatchBuilder(), BatchBuilder()
    for values, timestamp in zip(groups, times, strict=False):
        named = None if keys is None else keys[: len(values)]
        one.extend(values, timestamp, named)
        for key, value in zip(named or [None] * len(values), values, strict=True):
            other.add(key, value, timestamp)
    assert (one.count, one.size) == (other.count, other.size)
    if one.count:
        assert one.build() == other.build()


@pytest.mark.parametrize("keys", [None, [b"k" * (n % 70) if n % 9 else None for n in range(9000)]])
def test_a_batch_of_many_values_is_the_same_in_either_way(keys):
    values = [b"x" * (n % 9000) for n in range(9000)]
    one, other = BatchBuilder(), BatchBuilder()
    one.extend(values, 7, keys)
    for key, value in zip(keys or [None] * 9000, values, strict=True):
        other.add(key, value, 7)
    assert one.size == other.size
    assert one.build() == other.build()
