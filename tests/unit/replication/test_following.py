"""A follower's step for each answer, and the offset at which a leader finds that a follower's log diverges."""

from dataclasses import dataclass, field

import pytest

from stratalog.errors import ErrorCode, Rejected
from stratalog.log.epochs import LeaderEpochs
from stratalog.replication.following import (
    Append,
    AskOffsets,
    BeginAnew,
    Discard,
    FetchFromTier,
    Truncate,
    Wait,
    diverging_epoch,
    reposition,
    step,
)
from stratalog.wire.messages.fetch import EpochEndOffset, PartitionData


@dataclass
class Log:
    """Offsets [start, end) and the epochs in which they were written."""

    log_end_offset: int
    entries: list[tuple[int, int]]
    log_start_offset: int = 0
    epochs: LeaderEpochs = field(init=False)

    def __post_init__(self):
        self.epochs = LeaderEpochs(self.entries)


def answer(error=ErrorCode.none, **more):
    values = {"high_watermark": 0, "records": None} | more
    return PartitionData(partition_index=0, error_code=error, aborted_transactions=None, **values)


def test_records_are_appended_with_the_leaders_offsets():
    records = memoryview(b"batches")
    data = answer(records=records, high_watermark=7, log_start_offset=3)
    assert step(Log(5, [(1, 0)]), data) == Append(records, 7, 3)
    assert step(Log(5, [(1, 0)]), answer(high_watermark=7, log_start_offset=3)) == Append(b"", 7, 3)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ErrorCode.offset_out_of_range, AskOffsets()),
        (ErrorCode.offset_moved_to_tiered_storage, FetchFromTier()),
        (ErrorCode.fenced_leader_epoch, Wait(ErrorCode.fenced_leader_epoch)),
        (ErrorCode.unknown_leader_epoch, Wait(ErrorCode.unknown_leader_epoch)),
        (ErrorCode.not_leader_or_follower, Wait(ErrorCode.not_leader_or_follower)),
        (ErrorCode.corrupt_message, Wait(ErrorCode.corrupt_message)),
    ],
)
def test_each_error_has_its_step(error, expected):
    assert step(Log(5, [(1, 0)]), answer(error)) == expected


@pytest.mark.parametrize(
    ("name", "leader", "follower", "cut"),
    [
        ("the same epoch ended earlier", [(1, 0), (3, 12)], [(1, 0)], 12),
        (
            "the follower has an epoch that the leader never saw",
            [(1, 0), (3, 10)],
            [(1, 0), (2, 8)],
            8,
        ),
        (
            "the leader's epoch of that number is shorter",
            [(1, 0), (2, 5), (3, 9)],
            [(1, 0), (2, 5)],
            9,
        ),
        ("no epoch is shared", [(3, 4), (5, 6)], [(2, 0), (4, 5)], 5),
    ],
)
def test_a_diverging_log_is_truncated_to_the_last_common_offset(name, leader, follower, cut):
    theirs, mine = Log(30, leader), Log(20, follower)
    found = diverging_epoch(theirs, mine.epochs.latest, mine.log_end_offset)
    assert found is not None, name
    assert step(mine, answer(diverging_epoch=found)) == Truncate(cut)


def test_an_epoch_that_is_shared_up_to_the_fetch_offset_does_not_diverge():
    assert diverging_epoch(Log(30, [(1, 0), (3, 20)]), 1, 20) is None
    assert diverging_epoch(Log(30, [(1, 0), (3, 20)]), 3, 30) is None
    assert diverging_epoch(Log(30, [(1, 0)]), -1, 0) is None, "the follower's log is empty"


def test_an_epoch_newer_than_all_of_the_leaders_is_out_of_range():
    with pytest.raises(Rejected) as refused:
        diverging_epoch(Log(30, [(1, 0)]), 2, 20)
    assert refused.value.code is ErrorCode.offset_out_of_range


def test_a_log_without_epochs_is_truncated_to_the_end_of_the_diverging_epoch():
    data = answer(diverging_epoch=EpochEndOffset(epoch=1, end_offset=4))
    assert step(Log(9, []), data) == Truncate(4)


def test_a_follower_outside_the_leaders_range_moves_into_it():
    mine = Log(20, [(1, 0)])
    assert reposition(mine, leader_start=0, leader_end=15) == Truncate(15)
    assert reposition(mine, leader_start=25, leader_end=40) == BeginAnew(25)
    assert reposition(mine, leader_start=5, leader_end=40) is None


@pytest.mark.parametrize(
    "more",
    [
        {"high_watermark": -5},
        {"high_watermark": 7, "log_start_offset": -9},
        {"diverging_epoch": EpochEndOffset(epoch=-1, end_offset=4)},
        {"diverging_epoch": EpochEndOffset(epoch=1, end_offset=-4)},
        {"diverging_epoch": EpochEndOffset(epoch=1, end_offset=1 << 40)},
        {"diverging_epoch": EpochEndOffset(epoch=1 << 30, end_offset=1 << 40)},
    ],
)
def test_an_answer_that_no_sound_leader_sends_is_discarded(more):
    assert isinstance(step(Log(20, [(1, 0)]), answer(**more)), Discard)


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (9, 8), (0, -1)])
def test_offsets_that_no_sound_leader_has_are_discarded(start, end):
    assert isinstance(reposition(Log(20, [(1, 0)]), start, end), Discard)


def test_an_epoch_that_the_follower_led_without_a_record_is_forgotten():
    found = diverging_epoch(Log(30, [(2, 1), (4, 2)]), 3, 2)
    assert found == EpochEndOffset(epoch=2, end_offset=2)
    assert step(Log(2, [(2, 1), (3, 2)]), answer(diverging_epoch=found)) == Truncate(2)
