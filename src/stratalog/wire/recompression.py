"""A record batch in another codec.

In: one whole batch, a codec, a level. Out: the same records in that codec, with header and CRC to match. It never
changes a record, an offset, a timestamp or a sequence, and never restores more than `RESTORED_BYTES_MAX`.

Kafka does this where a topic's `compression.type` is neither `producer` nor the batch's own (`LogValidator`). Only then
does a broker look at records at all, so only then does it refuse a batch for what they are.
"""

from struct import Struct
from typing import Final

from crc32c import crc32c

from stratalog.errors import Corrupt, ErrorCode, Rejected
from stratalog.ports import Buffer
from stratalog.wire.batch import (
    CODEC_MASK,
    CRC_START,
    HEADER_SIZE,
    PREFIX_SIZE,
    BatchHeader,
    parse_header,
)
from stratalog.wire.compression import CODEC_NAMES, compress, decompress
from stratalog.wire.varint import read_signed

__all__ = ["RESTORED_BYTES_MAX", "recompress"]

RESTORED_BYTES_MAX: Final = 64 << 20
"""A batch that claims more is refused: nobody's memory is a client's to take."""

_LENGTH: Final = Struct(">i")
_CRC: Final = Struct(">I")
_ATTRIBUTES: Final = Struct(">h")


def recompress(batch: Buffer, codec: int, level: int | None = None) -> bytearray:
    """`batch`, whose header and CRC were checked, with its records in `codec` (`compression.CODECS`).

    Raises Rejected(INVALID_RECORD) where the records are not the codec's bytes, not what the header says, or more than
    `RESTORED_BYTES_MAX`: no client need try again.
    """
    view = memoryview(batch)
    header = parse_header(view)
    try:
        records = decompress(header.codec, view[HEADER_SIZE:], max_bytes=RESTORED_BYTES_MAX)
        _check_records(records, header)
    except Corrupt as error:
        raise Rejected(ErrorCode.invalid_record, str(error)) from error
    out = bytearray(view[:HEADER_SIZE])
    out += compress(codec, records, level)
    _LENGTH.pack_into(out, 8, len(out) - PREFIX_SIZE)
    _ATTRIBUTES.pack_into(out, CRC_START, header.attributes & ~CODEC_MASK | codec)
    with memoryview(out) as whole, whole[CRC_START:] as covered:
        crc = crc32c(covered)
    _CRC.pack_into(out, CRC_START - 4, crc)
    assert CODEC_NAMES[parse_header(out).codec] == CODEC_NAMES[codec]
    return out


def _check_records(records: bytes, header: BatchHeader) -> None:
    """Raise Corrupt unless there are as many records as the header says, one behind the other, offsets in order."""
    position = 0
    end = len(records)
    for number in range(header.record_count):
        length, start = read_signed(records, position)
        position = start + length
        if length < 1 or position > end:
            raise Corrupt(f"record {number} of {length} bytes with {end - start} left")
        _timestamp, at = read_signed(records, start + 1, 64)
        delta, _at = read_signed(records, at)
        if delta != number:
            raise Corrupt(f"record {number} has the offset delta {delta}")
    if position != end:
        raise Corrupt(f"{end - position} bytes after the last record")
