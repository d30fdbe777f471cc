"""Convert a record batch to another codec.

In: one whole batch, a codec, a level. Out: the same records in that codec, with matching header and CRC. It never
changes a record, an offset, a timestamp or a sequence, and never decompresses more than `validation` allows.

Kafka does this where a topic's `compression.type` is neither `producer` nor the batch's own (`LogValidator`).
"""

from struct import Struct
from typing import Final

from crc32c import crc32c

from stratalog.ports import Buffer
from stratalog.wire.batch import (
    CODEC_MASK,
    CRC_START,
    HEADER_SIZE,
    MAX_TIMESTAMP_AT,
    PREFIX_SIZE,
    parse_header,
)
from stratalog.wire.compression import CODEC_NAMES, compress
from stratalog.wire.validation import NO_DEMANDS, Demands, check_records, restore

__all__ = ["recompress"]

_LENGTH: Final = Struct(">i")
_CRC: Final = Struct(">I")
_ATTRIBUTES: Final = Struct(">h")
_MAX_TIMESTAMP: Final = Struct(">q")


def recompress(
    batch: Buffer, codec: int, level: int | None = None, demands: Demands = NO_DEMANDS
) -> bytearray:
    """Return `batch`, whose header and CRC were checked, with its records in `codec` (`compression.CODECS`).

    It corrects a wrong largest timestamp in the header. Raises Rejected as `validation` does; a retry would not help.
    """
    view = memoryview(batch)
    header = parse_header(view)
    records = restore(view, header)
    largest = check_records(records, header, demands)
    out = bytearray(view[:HEADER_SIZE])
    out += compress(codec, records, level)
    _LENGTH.pack_into(out, 8, len(out) - PREFIX_SIZE)
    _MAX_TIMESTAMP.pack_into(out, MAX_TIMESTAMP_AT, largest)
    _ATTRIBUTES.pack_into(out, CRC_START, header.attributes & ~CODEC_MASK | codec)
    with memoryview(out) as whole, whole[CRC_START:] as covered:
        crc = crc32c(covered)
    _CRC.pack_into(out, CRC_START - 4, crc)
    assert CODEC_NAMES[parse_header(out).codec] == CODEC_NAMES[codec]
    return out
