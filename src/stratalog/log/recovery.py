"""Load a partition from its files, after a clean shutdown or a crash.

In: a directory, and the values of its checkpoints. Out: a program that reads (and repairs) files and ends with a
PartitionLog. It trusts bytes above the recovery point only where a CRC confirms them.

After a crash it scans every segment that reaches beyond the recovery point. The first batch that is torn, damaged or
out of order ends the log, and everything after it is removed (Kafka: `LogLoader`, `LogSegment.recover`). A gap between
two segments ends no log: a cleaner leaves gaps. In a log that is not compacted, a gap is reported. It rebuilds indexes
and producer snapshots above the recovery point. After a clean shutdown a few small reads suffice, and recovery writes
nothing. It first completes a cleaner's replacement of segments that a crash interrupted (`swaps.py`).

Below the lower one of the checkpointed recovery point and high watermark, recovery cuts nothing, because those bytes
were durable. Unreadable bytes there are damage, not a torn tail: they stay in their file, and recovery reports them. It
continues behind them; the log's next offset is no lower than in the checkpoints. (Kafka cuts there too, or silently
starts an empty log.)
"""

import uuid
from bisect import bisect_right
from itertools import pairwise
from typing import Final

from stratalog.config import LogConfig
from stratalog.errors import Corrupt
from stratalog.log.checkpoints import (
    PARTITION_METADATA,
    decode_partition_metadata,
    encode_partition_metadata,
)
from stratalog.log.effects import (
    Program,
    Read,
    WriteFile,
)
from stratalog.log.partition_log import PartitionLog
from stratalog.log.rebuild import Rebuild
from stratalog.log.tail import TailBudget
from stratalog.log.values import Contents, Recovered

__all__ = ["load", "read_topic_id"]

_SMALL_FILE_BYTES: Final = 16 * 1024 * 1024


def read_topic_id(directory: str) -> Program[uuid.UUID | None]:
    """Return the topic id in a partition's directory; None where a crash came before it was written. Raises Corrupt."""
    try:
        data = yield Read(f"{directory}/{PARTITION_METADATA}", 0, _SMALL_FILE_BYTES)
    except FileNotFoundError:
        return None
    assert isinstance(data, bytes)
    return decode_partition_metadata(data)


def load(  # noqa: PLR0913  # each is a fact from a checkpoint
    directory: str,
    config: LogConfig,
    *,
    clean: bool,
    recovery_point: int,
    now_ms: int,
    topic_id: uuid.UUID | None = None,
    log_start_offset: int = 0,
    high_watermark: int = 0,
    tiered_end: int = 0,
    synced: bool = False,
    replicated: bool = False,
    was_cleaned: bool = False,
    tails: TailBudget | None = None,
) -> Program[PartitionLog]:
    """Load a partition. `clean`, and the offsets up to `high_watermark`, come from the directory's checkpoints.

    `tiered_end` comes from the last known manifest: if the disk lost records that the bucket holds, the log continues
    from there. `topic_id` is for a directory without one; `tails` as in `create`. `synced`: the log synced every batch
    before it wrote the next one, so damage before sound bytes is no torn tail. Raises Corrupt for such damage, before
    any cut, and where the directory belongs to another topic or to none. `replicated`: other brokers have replicas, so
    a log that must be scanned ends at its first hole. A follower fetches from the end of its log: it would never fill a
    hole, and could be elected with it. `was_cleaned`: a cleaner left gaps, whatever the policy is now.
    """
    found_id = yield from _topic_id(directory, topic_id)
    loading = Rebuild(directory, config, now_ms, replicated=replicated, was_cleaned=was_cleaned)
    loading.take_checkpoints(recovery_point, high_watermark, clean=clean)
    yield from loading.list_files(max(log_start_offset, tiered_end))
    if synced:
        loading.take_for_synced(log_start_offset)
    if not (yield from loading.read_epochs()):
        clean, recovery_point = False, 0
    bases = loading.bases
    if clean and bases and not config.remote_storage_enable:
        log_start_offset = loading.confirmed_start(log_start_offset)
    trusted = len(bases) - 1 if clean else _first_to_scan(bases, recovery_point)
    trusted = max(trusted, 0)
    for base, following in pairwise(bases[: trusted + 1]):
        yield from loading.load_closed(base, following)
    if clean and bases:
        clean = yield from loading.load_active(bases[-1])
    if not (clean and bases):
        yield from loading.recover(bases[trusted:])
    clean = (yield from loading.begin_at_least(max(log_start_offset, tiered_end))) and clean
    end = loading.segments[-1].next_offset
    yield from loading.restore_producers(end)
    if loading.epochs.latest >= 0:
        loading.epochs.truncate_end(end)
    if not config.remote_storage_enable:
        log_start_offset = max(log_start_offset, loading.segments[0].base_offset)
    # As Kafka does: a crash may have come before this was written.
    if log_start_offset < end:
        loading.epochs.truncate_start(log_start_offset)
    else:
        loading.epochs.truncate_end(0)
    contents = Contents(
        segments=loading.segments,
        producers=loading.producers,
        epochs=loading.epochs,
        snapshots=loading.snapshots,
        log_start_offset=log_start_offset,
        recovery_point=end if clean else min(recovery_point, end),
        recovered=Recovered(loading.bytes_cut, loading.segments_scanned, tuple(loading.damage)),
    )
    log = PartitionLog(directory, found_id, config, contents, tails=tails or TailBudget())
    log.mark_tiered(tiered_end)
    if clean and end in loading.snapshots:
        log.mark_saved()
    return log


def _topic_id(directory: str, expected: uuid.UUID | None) -> Program[uuid.UUID]:
    found = yield from read_topic_id(directory)
    if found is None:
        if expected is None:
            raise Corrupt(f"{directory} has no {PARTITION_METADATA}")
        path = f"{directory}/{PARTITION_METADATA}"
        yield WriteFile(path, encode_partition_metadata(expected))
        return expected
    if expected is not None and found != expected:
        raise Corrupt(f"{directory} belongs to topic id {found}, not {expected}")
    return found


def _first_to_scan(bases: list[int], recovery_point: int) -> int:
    """Return the first segment that may reach beyond the recovery point; the last one is always scanned."""
    return max(min(bisect_right(bases, recovery_point), len(bases)) - 1, 0)
