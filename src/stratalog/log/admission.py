"""Check batches before they get a place in the log.

In: batch headers, a topic's settings, the active segment. Out: nothing, or a refusal; whether a new segment begins. It
never decodes records: it checks timestamps by the batch's first and largest.
"""

from collections.abc import Sequence

from crc32c import crc32c

from stratalog.config import LogConfig
from stratalog.errors import Corrupt, ErrorCode, Rejected
from stratalog.log.segment import RELATIVE_OFFSET_MAX, Segment
from stratalog.wire.batch import (
    BASE_TIMESTAMP,
    MAX_TIMESTAMP,
    NO_TIMESTAMP,
    SIZE,
    BatchHeader,
    crc_holds,
    scan,
)

__all__ = ["check_fetched", "check_row", "is_full"]


def check_row(header: BatchHeader, config: LogConfig, now_ms: int | None) -> None:
    """Raise Rejected(RECORD_LIST_TOO_LARGE) for a batch larger than a segment, and Rejected(INVALID_TIMESTAMP) for one
    outside `message.timestamp.{before,after}.max.ms`. With None as the time every timestamp is accepted.
    """
    if header[SIZE] > config.segment_bytes:
        raise Rejected(
            ErrorCode.record_list_too_large,
            f"{header[SIZE]} bytes where segments have {config.segment_bytes}",
        )
    if now_ms is None:
        return
    earliest = now_ms - config.message_timestamp_before_max_ms
    latest = now_ms + config.message_timestamp_after_max_ms
    first, largest = header[BASE_TIMESTAMP], header[MAX_TIMESTAMP]
    if largest > latest or (first != NO_TIMESTAMP and (first < earliest or first > latest)):
        raise Rejected(
            ErrorCode.invalid_timestamp,
            f"timestamps {first} to {largest} outside {earliest} to {latest}",
        )


def check_fetched(
    view: memoryview, next_offset: int, directory: str, leader_epoch: int
) -> list[BatchHeader]:
    """Return the headers of batches that have offsets already; raises Corrupt unless they are whole, sound and in
    order, and of `leader_epoch` or an earlier epoch (KAFKA-18723).
    """
    headers: list[BatchHeader] = []
    end = 0
    offset = next_offset
    for position, header in scan(view):
        if not crc_holds(view, position, header):
            raise Corrupt(f"{directory}: the CRC of fetched batch {header.base_offset} fails")
        if header.base_offset < offset or header.last_offset_delta < 0:
            raise Corrupt(f"{directory}: fetched batch {header.base_offset} at {offset}")
        if header.leader_epoch > leader_epoch:
            raise Corrupt(
                f"{directory}: fetched batch {header.base_offset} of epoch {header.leader_epoch} from a leader of "
                f"epoch {leader_epoch}"
            )
        offset = header.next_offset
        end = position + header.size
        headers.append(header)
    if not headers or end != len(view):
        raise Corrupt(f"{directory}: {len(view) - end} fetched bytes are no whole batch")
    return headers


def is_full(
    segment: Segment,
    config: LogConfig,
    size: int,
    headers: Sequence[BatchHeader],
    *,
    last_offset: int,
    now_ms: int,
) -> bool:
    """Return whether batches of `size` bytes in all must go to a new segment (Kafka: `LogSegment.shouldRoll`).

    The age uses the records' timestamps, if they have any.
    """
    if segment.size + size > config.segment_bytes:
        return True
    index, time_index = segment.index, segment.time_index
    assert index is not None
    assert time_index is not None, "the active segment is indexed in memory"
    # Every batch may add one entry to each index, and closing the segment one more to the time index.
    room = config.segment_index_bytes
    more = len(headers)
    if (len(index.offsets) + more) * 8 > room or (len(time_index.offsets) + more + 1) * 12 > room:
        return True
    if last_offset - segment.base_offset > RELATIVE_OFFSET_MAX:
        return True
    timestamp = (
        headers[0][MAX_TIMESTAMP] if more == 1 else max(header[MAX_TIMESTAMP] for header in headers)
    )
    first = segment.first_timestamp
    waited = timestamp - first if first >= 0 else now_ms - segment.created_ms
    # The exact jitter needs a hash, so it is computed only where it may matter.
    longest = config.segment_ms
    if config.is_compacted:  # the active segment is never cleaned
        longest = min(longest, config.max_compaction_lag_ms)
    least = longest - config.segment_jitter_ms
    return waited > least and waited > longest - _jitter_ms(segment, config)


def _jitter_ms(segment: Segment, config: LogConfig) -> int:
    """Return how much earlier this segment rolls: below `segment.jitter.ms`, always the same for one segment."""
    spread = min(config.segment_jitter_ms, config.segment_ms)
    return crc32c(segment.path.encode()) % spread if spread else 0
