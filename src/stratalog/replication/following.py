"""Decide a follower's step after each answer of its leader: append, truncate, restart the log, wait.

In: the follower's log, the fetch of one partition that it sent, the leader's answer. Out: one step for the shell to
carry out. It never changes the log, never sends, and never decides which broker leads.

A fetch names the epoch of the last record that the follower has. Where the leader's log differs, the answer names the
leader's largest epoch that is not newer, and that epoch's end (KIP-595's form of KIP-101 and KIP-279). The follower
truncates to the end that both logs share, and fetches again. Each round but the last ends in an older epoch.

Kafka: `AbstractFetcherThread`, `ReplicaFetcherThread`; for the leader's side `Partition.readRecords`.
"""

from typing import Final, NamedTuple, Protocol

from stratalog.errors import ErrorCode, Rejected
from stratalog.log.epochs import NO_EPOCH, NO_OFFSET, LeaderEpochs
from stratalog.ports import Buffer
from stratalog.wire.messages.fetch import (
    NO_EPOCH_END_OFFSET,
    EpochEndOffset,
    PartitionData,
)

__all__ = [
    "Append",
    "AskOffsets",
    "BeginAnew",
    "Discard",
    "FetchFromTier",
    "Log",
    "Step",
    "Truncate",
    "Wait",
    "diverging_epoch",
    "reposition",
    "step",
]


class Log(Protocol):
    """The follower's log as the rules read it. Every append has been performed."""

    @property
    def log_start_offset(self) -> int:
        """Where the log begins."""

    @property
    def log_end_offset(self) -> int:
        """Where the log ends."""

    @property
    def epochs(self) -> LeaderEpochs:
        """The leader epochs of its batches."""


class Append(NamedTuple):
    """Append `records` (perhaps none), then take the leader's high watermark and log start."""

    records: Buffer
    high_watermark: int
    log_start_offset: int


class Truncate(NamedTuple):
    """Cut off every batch that reaches `offset` or beyond."""

    offset: int


class BeginAnew(NamedTuple):
    """Drop the whole log and begin at `offset`: the leader has nothing below it."""

    offset: int


class AskOffsets(NamedTuple):
    """Ask the leader for its log start and its log end (ListOffsets), then call `reposition`."""


class FetchFromTier(NamedTuple):
    """Begin where the bucket's history ends: the leader's local log begins above the fetch offset (KIP-405)."""


class Wait(NamedTuple):
    """Try again after `replica.fetch.backoff.ms`. Either the leader or this broker lacks the newest metadata.

    Kafka ends the fetches of a partition after FENCED_LEADER_EPOCH. One damaged answer with that code would end them
    for good: no metadata would come.
    """

    error: ErrorCode


class Discard(NamedTuple):
    """Count a damaged answer, and fetch again later: no sound leader sends it."""

    reason: str


Step = Append | Truncate | BeginAnew | AskOffsets | FetchFromTier | Wait | Discard
_NOTHING: Final = b""


def step(log: Log, answer: PartitionData) -> Step:
    """Return the next step after the leader's `answer` to a fetch from the log's end."""
    error = ErrorCode(answer.error_code)
    if error is ErrorCode.none:
        if answer.diverging_epoch != NO_EPOCH_END_OFFSET:
            return _part(log, answer.diverging_epoch)
        if answer.high_watermark < 0 or answer.log_start_offset < NO_OFFSET:
            return Discard(
                f"high watermark {answer.high_watermark}, log start {answer.log_start_offset}"
            )
        records = answer.records
        assert records is None or isinstance(records, memoryview), "a read answer has one piece"
        return Append(records or _NOTHING, answer.high_watermark, answer.log_start_offset)
    if error is ErrorCode.offset_out_of_range:
        return AskOffsets()
    if error is ErrorCode.offset_moved_to_tiered_storage:
        return FetchFromTier()
    return Wait(error)


def reposition(
    log: Log, leader_start: int, leader_end: int
) -> Truncate | BeginAnew | Discard | None:
    """Return the step that brings the log back into the leader's range after OFFSET_OUT_OF_RANGE; None within the
    range.
    """
    if not 0 <= leader_start <= leader_end:
        return Discard(f"a log from {leader_start} to {leader_end}")
    if leader_end < log.log_end_offset:
        return Truncate(leader_end)
    if leader_start > log.log_end_offset:
        return BeginAnew(leader_start)
    return None


def diverging_epoch(log: Log, last_fetched_epoch: int, fetch_offset: int) -> EpochEndOffset | None:
    """Return, on the leader, the point where a follower's log diverges; None where it does not.

    The follower has every record below `fetch_offset`; the last one is of `last_fetched_epoch`, where -1 means no
    check. Raises `Rejected(OFFSET_OUT_OF_RANGE)` where this log has no epoch that old, or none at all.
    """
    if last_fetched_epoch == NO_EPOCH:
        return None
    epoch, end = log.epochs.end_of(last_fetched_epoch, log.log_end_offset)
    if epoch == NO_EPOCH:
        raise Rejected(
            ErrorCode.offset_out_of_range,
            f"the last fetched epoch {last_fetched_epoch} is newer than {log.epochs.latest}",
        )
    if epoch < last_fetched_epoch or end < fetch_offset:
        return EpochEndOffset(epoch=epoch, end_offset=end)
    return None


def _part(log: Log, diverging: EpochEndOffset) -> Truncate | Discard:
    """Return the truncation that a diverging epoch demands.

    A sound leader names none that cuts neither a record nor an epoch: this broker may have led one without appending.
    """
    end = _common_end(log, diverging)
    cuts = end < log.log_end_offset or diverging.epoch < log.epochs.latest
    if diverging.epoch < 0 or end < 0 or not cuts:
        return Discard(
            f"the logs part at the end {diverging.end_offset} of epoch {diverging.epoch}"
        )
    return Truncate(end)


def _common_end(log: Log, diverging: EpochEndOffset) -> int:
    """Return the offset to which the follower truncates: the end of the newest epoch that both logs may share."""
    epoch, end = log.epochs.end_of(diverging.epoch, log.log_end_offset)
    if epoch == NO_EPOCH:
        return min(diverging.end_offset, log.log_end_offset)
    return min(end, diverging.end_offset, log.log_end_offset)
