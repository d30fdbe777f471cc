"""Recompression keeps a batch's records, and refuses bytes that are not a sound batch."""

import pytest

from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.batch import crc_holds, parse_header
from stratalog.wire.compression import CODEC_NAMES
from stratalog.wire.recompression import recompress
from stratalog.wire.records import BatchBuilder, Record, build_batch, read_records

RECORDS = [Record(n, 1000 - n, b"key" if n % 2 else None, b"v" * n) for n in range(50)]


@pytest.mark.parametrize("to", range(5))
@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_only_codec_size_and_crc_change(codec: str, to: int):
    batch = build_batch(
        RECORDS, codec=codec, leader_epoch=3, producer_id=9, producer_epoch=1, base_sequence=77
    )
    made = recompress(batch, to)
    header = parse_header(made)
    assert crc_holds(made, 0, header)
    assert header.codec == to
    assert header.size == len(made)
    was = parse_header(batch)
    assert header == was._replace(
        size=header.size, crc=header.crc, attributes=was.attributes & ~7 | to
    )
    assert list(read_records(made)) == RECORDS


class Poisoned(BatchBuilder):
    """Return a batch whose records contradict its header."""

    def __init__(self, parts: list[bytes], count: int) -> None:
        super().__init__("gzip")
        self._parts = parts
        self.count = count


def parts_of(count: int) -> list[bytes]:
    builder = BatchBuilder()
    for _ in range(count):
        builder.add(None, b"x", 5)
    return list(builder._parts)


@pytest.mark.parametrize(
    ("parts", "count"),
    [
        (parts_of(2), 3),
        (parts_of(3), 2),
        (parts_of(2)[:-1], 2),
        ([*parts_of(1), *parts_of(1)], 2),
        ([b"\xff" * 20], 1),
    ],
    ids=["too few", "too many", "cut short", "offset delta twice", "no record"],
)
def test_records_that_contradict_the_header_are_refused(parts: list[bytes], count: int):
    with pytest.raises(Rejected) as refused:
        recompress(Poisoned(parts, count).build(), 4)
    assert refused.value.code is ErrorCode.invalid_record


def test_bytes_that_do_not_decompress_are_refused():
    batch = build_batch(RECORDS)
    batch[22] |= 4  # says zstd
    with pytest.raises(Rejected) as refused:
        recompress(batch, 1)
    assert refused.value.code is ErrorCode.invalid_record
