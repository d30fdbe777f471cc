"""Read record batches (Kafka's format v2) as views.

In: bytes of consecutive batches. Out: headers as values; patches in place. It never decodes records and never copies a
batch.

Layout (big-endian): base offset i64, length i32 (of the bytes after it), partition leader epoch i32, magic i8 = 2,
CRC32C u32 (of all bytes after it), attributes i16, last offset delta i32, base and max timestamp i64, producer id
i64, producer epoch i16, base sequence i32, record count i32, records. Offset, length and epoch lie outside the CRC,
so a broker assigns them without touching the rest. Kafka: `DefaultRecordBatch`; the checks of a produced batch:
`LogValidator`.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from stratalog.errors import Corrupt, ErrorCode, Rejected
from stratalog.ports import Buffer

__all__ = [
    "ATTRIBUTES",
    "BASE_OFFSET",
    "BASE_SEQUENCE",
    "BASE_TIMESTAMP",
    "HEADER_SIZE",
    "LAST_OFFSET_DELTA",
    "LEADER_EPOCH",
    "MAX_TIMESTAMP",
    "PRODUCER_EPOCH",
    "PRODUCER_ID",
    "SIZE",
    "BatchHeader",
    "assign",
    "check_produced",
    "crc_holds",
    "last_whole",
    "parse_header",
    "scan",
    "set_log_append_time",
    "set_max_timestamp",
]

HEADER_SIZE: Final = 61
PREFIX_SIZE: Final = 12
CRC_START: Final = 21
MAX_TIMESTAMP_AT: Final = 35
NO_TIMESTAMP: Final = -1

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40

HEADER: Final = Struct(">qiibIhiqqqhii")
_OFFSET: Final = Struct(">q")
_EPOCH: Final = Struct(">i")
_CRC: Final = Struct(">I")
_ATTRIBUTES: Final = Struct(">h")
_MAGIC_AT: Final = 16
_RECORD_BYTES_MIN: Final = 7
"""Seven fields of one byte each: bounds the record count of an uncompressed batch before its records are decoded."""


class BatchHeader(NamedTuple):
    """One batch's header. `size` is the whole batch in bytes, the first twelve included."""

    base_offset: int
    size: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """The codec's number: 0..4 are known (`compression.CODEC_NAMES`), 5..7 are possible values."""
        return self.attributes & CODEC_MASK

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL != 0

    @property
    def is_log_append_time(self) -> bool:
        return self.attributes & LOG_APPEND_TIME != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """From when on compaction may drop the batch's tombstones or marker, as wall time; None before it was cleaned.

        It takes the base timestamp's place (KIP-534); the records' timestamps are relative to it then.
        """
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None

    @property
    def last_sequence(self) -> int:
        """The last record's sequence number (it wraps from 2^31 - 1 to 0); -1 without a producer."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


# Places of fields in a BatchHeader: `header[SIZE]` costs half of `header.size` on the path of each batch.
BASE_OFFSET: Final = 0
SIZE: Final = 1
LEADER_EPOCH: Final = 2
ATTRIBUTES: Final = 5
LAST_OFFSET_DELTA: Final = 6
BASE_TIMESTAMP: Final = 7
MAX_TIMESTAMP: Final = 8
PRODUCER_ID: Final = 9
PRODUCER_EPOCH: Final = 10
BASE_SEQUENCE: Final = 11


def parse_header(buf: Buffer, position: int = 0) -> BatchHeader:
    """Return the header at `position`; raises Corrupt where 61 bytes are not there or they are no v2 header."""
    if position < 0 or position + HEADER_SIZE > len(buf):
        raise Corrupt(
            f"{max(len(buf) - position, 0)} bytes where a batch header needs {HEADER_SIZE}"
        )
    fields = HEADER.unpack_from(buf, position)
    size = fields[1] + PREFIX_SIZE
    if size < HEADER_SIZE:
        raise Corrupt(f"a batch of {size} bytes at {position}")
    if fields[3] != 2:
        raise Corrupt(f"a batch of magic {fields[3]} at {position}")
    return BatchHeader._make((fields[0], size, *fields[2:]))


def scan(
    buf: Buffer, position: int = 0, end: int | None = None
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield every whole batch in `buf[position:end]` with its position.

    Ends silently at an incomplete last batch; raises Corrupt (from the iterator) for a malformed header. Does not check
    CRCs.
    """
    stop = len(buf) if end is None else end
    while position + HEADER_SIZE <= stop:
        header = parse_header(buf, position)
        if position + header.size > stop:
            return
        yield position, header
        position += header.size


def crc_holds(buf: Buffer, position: int, header: BatchHeader) -> bool:
    """Return whether the batch at `position` is complete and its CRC32C matches."""
    end = position + header.size
    if end > len(buf):
        return False
    with memoryview(buf) as view, view[position + CRC_START : end] as covered:
        return crc32c(covered) == header.crc


def check_produced(view: memoryview, *, max_batch_bytes: int) -> list[BatchHeader]:
    """Return the headers of a produced records field, which must be one or more whole, sound batches.

    Raises Rejected with the code that Kafka answers: CORRUPT_MESSAGE (nonsense, CRC), MESSAGE_TOO_LARGE,
    UNSUPPORTED_COMPRESSION_TYPE, INVALID_RECORD (no whole batch, magic 0 or 1, record count, control batch, sequence),
    INVALID_TIMESTAMP. The base offset is ignored, because the log assigns it. Records are not decoded.
    """
    headers = []
    position = 0
    end = len(view)
    if end == 0:
        raise Rejected(ErrorCode.invalid_record, "a produce request without a record batch")
    while position < end:
        header = _produced_header(view, position, end, max_batch_bytes)
        start, position = position, position + header[1]
        if crc32c(view[start + CRC_START : position]) != header[4]:
            raise Rejected(ErrorCode.corrupt_message, "the batch's CRC does not hold")
        _check_fields(header)
        headers.append(header)
    return headers


def _produced_header(
    view: memoryview, position: int, end: int, max_batch_bytes: int
) -> BatchHeader:
    left = end - position
    if left > _MAGIC_AT and view[position + _MAGIC_AT] < 2:
        raise Rejected(ErrorCode.invalid_record, "message formats 0 and 1 are not served")
    if left < HEADER_SIZE:
        raise Rejected(ErrorCode.invalid_record, f"{left} bytes are not a whole record batch")
    try:
        header = parse_header(view, position)
    except Corrupt as error:
        raise Rejected(ErrorCode.corrupt_message, str(error)) from error
    size = header[1]
    if size > left:
        # An incomplete batch is no batch to Kafka, which expects exactly one.
        raise Rejected(ErrorCode.invalid_record, f"a batch of {size} bytes in a field with {left}")
    if size > max_batch_bytes:
        raise Rejected(
            ErrorCode.message_too_large,
            f"a batch of {size} bytes where {max_batch_bytes} are allowed",
        )
    return header


def _check_fields(header: BatchHeader) -> None:
    # Fields by unpacking and flags by masks: names and properties would cost more than all the comparisons.
    _, size, _, _, _, attributes, delta, _, _, producer, epoch, sequence, count = header
    codec = attributes & CODEC_MASK
    if count < 1 or delta != count - 1:
        raise Rejected(
            ErrorCode.invalid_record, f"{count} records with a last offset delta of {delta}"
        )
    payload = size - HEADER_SIZE
    if payload < (1 if codec else count * _RECORD_BYTES_MIN):
        raise Rejected(ErrorCode.invalid_record, f"{count} records in {payload} bytes")
    if attributes & CONTROL:
        raise Rejected(ErrorCode.invalid_record, "clients do not write control batches")
    if producer >= 0 and (sequence < 0 or epoch < 0):
        raise Rejected(ErrorCode.invalid_record, f"producer {producer} without epoch and sequence")
    if codec > 4:
        raise Rejected(ErrorCode.unsupported_compression_type, f"codec {codec}")
    if attributes & LOG_APPEND_TIME:
        raise Rejected(ErrorCode.invalid_timestamp, "only a broker writes log append time")


def assign(
    view: memoryview | bytearray, position: int, base_offset: int, leader_epoch: int
) -> None:
    """Give the batch at `position` its offset and leader epoch, in place; its CRC does not cover them."""
    _OFFSET.pack_into(view, position, base_offset)
    _EPOCH.pack_into(view, position + 12, leader_epoch)


def set_log_append_time(
    view: memoryview | bytearray, position: int, header: BatchHeader, now_ms: int
) -> BatchHeader:
    """Stamp the batch at `position` with the broker's time, in place: attributes, max timestamp, CRC.

    Returns the new header (offset and epoch as in `header`). All records of the batch then have `now_ms`.
    """
    attributes = header.attributes | LOG_APPEND_TIME
    _ATTRIBUTES.pack_into(view, position + CRC_START, attributes)
    return set_max_timestamp(view, position, header._replace(attributes=attributes), now_ms)


def set_max_timestamp(
    view: memoryview | bytearray, position: int, header: BatchHeader, timestamp: int
) -> BatchHeader:
    """Set the largest timestamp of the batch at `position` in place, and its CRC.

    Returns the new header.
    """
    _OFFSET.pack_into(view, position + MAX_TIMESTAMP_AT, timestamp)
    with memoryview(view) as whole, whole[position + CRC_START : position + header.size] as covered:
        crc = crc32c(covered)
    _CRC.pack_into(view, position + 17, crc)
    return header._replace(max_timestamp=timestamp, crc=crc)


def last_whole(buf: Buffer) -> int:
    """Return how many bytes of `buf` are whole batches whose CRC holds, counted from its start."""
    position = 0
    with memoryview(buf) as view:
        try:
            for start, header in scan(view):
                if not crc_holds(view, start, header):
                    break
                position = start + header.size
        except Corrupt:
            pass  # Bytes after the last sound batch are a torn tail, and no error.
    return position
