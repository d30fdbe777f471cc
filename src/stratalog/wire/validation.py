"""Check a produced batch's records: readable by consumers, and within its topic's demands.

In: one whole batch whose header and CRC were checked, and a topic's demands. Out: the largest timestamp of its records,
or a refusal that names the records at fault. It never changes a batch, and never decompresses more than
`RESTORED_BYTES_MAX`, whatever a batch claims.

Kafka: `LogValidator`, which makes the same checks, but accepts some records that stop every consumer: wrong lengths
of compressed records, offset deltas that do not count from 0 (docs/decisions/0009).
"""

from typing import Final, NamedTuple

from stratalog.errors import Corrupt, ErrorCode, Rejected
from stratalog.wire.batch import HEADER_SIZE, BatchHeader
from stratalog.wire.compression import Oversized, decompress
from stratalog.wire.walk import FINE, NO_KEY, OUT_OF_TIME, walk

__all__ = [
    "NO_DEMANDS",
    "RESTORED_BYTES_MAX",
    "Demands",
    "RecordsRefused",
    "check_batch",
    "check_records",
    "restore",
]

RESTORED_BYTES_MAX: Final = 64 << 20
"""Limit for a decompressed batch: a client must not fill the broker's memory. librdkafka's limit is 100 MB
(`receive.message.max.bytes`).
"""
_AT_ONCE: Final = 1 << 16
"""Records checked before other threads get their turn."""
_ERRORS_MAX: Final = 1000
_INVALID_TIMESTAMP: Final = "One or more records have been rejected due to invalid timestamp"
"""Kafka's messages, here and for each record below: clients show and compare them."""
_FAR: Final = 1 << 61
"""`walk` does not report timestamps of this value or above, nor below its negative."""
_LEAST: Final = -(1 << 63)
_MOST: Final = (1 << 63) - 1


class Demands(NamedTuple):
    """A topic's demands on each record: a timestamp from `earliest` to `latest` in ms, if it has one; a key."""

    earliest: int = _LEAST
    latest: int = _MOST
    keyed: bool = False


NO_DEMANDS: Final = Demands()


class RecordsRefused(Rejected):
    """Records at fault, each with its index in the batch and a reason (Kafka: RecordValidationException)."""

    def __init__(
        self, code: ErrorCode, message: str, record_errors: tuple[tuple[int, str], ...]
    ) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors

    def __reduce__(self) -> tuple[type["RecordsRefused"], tuple[object, ...]]:  # type: ignore[override]
        """Support pickling: a refusal may come from another process."""
        return RecordsRefused, (self.code, self.message, self.record_errors)


def check_batch(
    batch: memoryview, header: BatchHeader, demands: Demands, bytes_max: int = RESTORED_BYTES_MAX
) -> int:
    """Return the result of `check_records` for a batch in any codec."""
    return check_records(restore(batch, header, bytes_max=bytes_max), header, demands)


def restore(
    batch: memoryview, header: BatchHeader, *, bytes_max: int = RESTORED_BYTES_MAX
) -> bytes:
    """Return the batch's records as they were before compression.

    Raises Rejected: INVALID_RECORD for malformed bytes; MESSAGE_TOO_LARGE for more than `bytes_max`, on which Java's
    producer splits the batch.
    """
    try:
        return decompress(header.codec, batch[HEADER_SIZE : header.size], max_bytes=bytes_max)
    except Oversized as error:
        raise Rejected(ErrorCode.message_too_large, str(error)) from error
    except Corrupt as error:
        raise Rejected(ErrorCode.invalid_record, str(error)) from error


def check_records(records: bytes, header: BatchHeader, demands: Demands) -> int:
    """Return the largest timestamp of the decompressed `records`, which must be as many as the header says; -1 where
    none is later, as in Kafka. Without a bound on timestamps, one that is beyond all bounds does not count.

    Raises Rejected(INVALID_RECORD) for a record with a wrong length or offset delta, and RecordsRefused
    (INVALID_RECORD, or INVALID_TIMESTAMP if any record has that fault) for records that violate the demands.
    """
    count, base = header.record_count, header.base_timestamp
    earliest, latest = max(demands.earliest, _LEAST), min(demands.latest, _MOST)
    largest = -1
    position = index = 0
    late = False
    errors: list[tuple[int, str]] = []
    while index < count:
        verdict, position, index, found = walk(
            records,
            position,
            index,
            min(index + _AT_ONCE, count),
            base,
            earliest,
            latest,
            demands.keyed,
        )
        if verdict == FINE:
            largest = max(largest, found)
            continue
        if verdict == OUT_OF_TIME and earliest == _LEAST and latest == _MOST:
            index += 1
            continue
        if verdict == OUT_OF_TIME:
            late = True
            errors.append((index, _out_of_time(index, found, demands)))
        elif verdict == NO_KEY:
            errors.append((index, "a compacted topic needs a key in every record"))
        else:
            raise Rejected(ErrorCode.invalid_record, f"record {index} of {count} is unsound")
        if len(errors) == _ERRORS_MAX:
            break
        index += 1
    if errors:
        raise _refusal(errors, late=late)
    if position != len(records):
        raise Rejected(
            ErrorCode.invalid_record,
            f"{len(records) - position} bytes after the last of {count} records",
        )
    return largest


def _refusal(errors: list[tuple[int, str]], *, late: bool) -> RecordsRefused:
    return RecordsRefused(
        ErrorCode.invalid_timestamp if late else ErrorCode.invalid_record,
        _INVALID_TIMESTAMP if late else f"{len(errors)} records that the topic does not take",
        tuple(errors),
    )


def _out_of_time(index: int, timestamp: int, demands: Demands) -> str:
    named = "Timestamp" if timestamp >= _FAR else f"Timestamp {timestamp}"
    return (
        f"{named} of message with offset {index} is out of range. "
        f"The timestamp should be within [{demands.earliest}, {demands.latest}]"
    )
