"""The records that a partition's log keeps: retention, local retention, truncation, and segments for the archiver."""

from random import Random

import pytest
from msgspec.structs import replace
from tests.log_steps import DIRECTORY, Steps, batch
from tests.sim.disk import paths

from stratalog.config import LogConfig
from stratalog.errors import Corrupt, ErrorCode, Rejected
from stratalog.log.archiving import closed_segments, segment_parts
from stratalog.log.effects import WriteFile, perform, run
from stratalog.log.reading import NotLocal
from stratalog.log.values import TieredHistory
from stratalog.wire.batch import parse_header

SIZE = len(batch(1))
NOW = 1_000_000


def refusal(call, *arguments, **options):
    with pytest.raises(Rejected) as caught:
        call(*arguments, **options)
    return caught.value.code


def bases(steps):
    return [segment.base_offset for segment in steps.log.segments]


def names(steps):
    return {path.removeprefix(f"{DIRECTORY}/") for path in paths(steps.disk)}


def kept(config, **due):
    """Apply retention to five segments of two batches each; the last one is active."""
    steps = Steps(LogConfig(segment_bytes=2 * SIZE), now_ms=NOW)
    for at in range(10):
        steps.append(batch(1, timestamp=NOW - 1000 + at * 100))
    steps.log.config = config
    steps.due(**due)
    steps.perform_all()
    return steps


def test_retention_by_bytes_keeps_at_least_the_configured_bytes():
    assert bases(kept(LogConfig(retention_bytes=4 * SIZE, retention_ms=-1))) == [6, 8]
    assert bases(kept(LogConfig(retention_bytes=5 * SIZE, retention_ms=-1))) == [4, 6, 8]
    assert bases(kept(LogConfig(retention_bytes=-1, retention_ms=-1))) == [0, 2, 4, 6, 8]


def test_retention_by_time_looks_at_the_newest_record_of_a_segment():
    assert bases(kept(LogConfig(retention_ms=500))) == [4, 6, 8]
    assert bases(kept(LogConfig(retention_ms=499))) == [6, 8]


def test_an_expired_active_segment_is_closed_first_and_the_offset_goes_on():
    steps = kept(LogConfig(retention_ms=50))
    assert bases(steps) == [10]
    assert (steps.log.log_start_offset, steps.log.next_offset) == (10, 10)
    assert steps.append(batch(1)).base_offset == 10


def test_the_next_offset_and_the_producers_outlive_the_last_segment():
    for flush in (False, True):
        for seed in range(30):
            steps = Steps(LogConfig(retention_ms=0), now_ms=NOW)
            steps.append(batch(2, timestamp=1, producer_id=3, producer_epoch=0, base_sequence=0))
            if flush:
                steps.flush()
            steps.due()
            steps.perform_all()
            assert bases(steps) == [2]
            steps.disk.crash(Random(seed))
            log = steps.load()
            assert (log.next_offset, seed) == (2, seed)
            assert log.producers.get(3).batches[-1][:2] == (0, 1)


def test_no_segment_at_or_above_the_limit_offset_is_deleted():
    assert bases(kept(LogConfig(retention_ms=0), limit_offset=5)) == [4, 6, 8]


def test_retention_deletes_nothing_from_a_compacted_topic():
    config = LogConfig(retention_ms=0, retention_bytes=0, cleanup_policy=("compact",))
    assert bases(kept(config)) == [0, 2, 4, 6, 8]


def test_deleted_files_are_renamed_first_and_unlinked_after_the_delay():
    steps = kept(LogConfig(retention_bytes=4 * SIZE, retention_ms=-1, file_delete_delay_ms=500))
    assert "00000000000000000002.snapshot.deleted" in names(steps)
    assert "00000000000000000004.log.deleted" in names(steps)
    assert "00000000000000000004.log" not in names(steps)
    steps.now_ms += 499
    steps.due()
    steps.perform_all()
    assert "00000000000000000004.log.deleted" in names(steps)
    steps.now_ms += 1
    steps.due()
    steps.perform_all()
    assert not [name for name in names(steps) if name.endswith(".deleted")]
    assert steps.log.epochs.entries() == [(0, 6)]


def test_a_raised_log_start_hides_records_at_once_and_frees_segments_below_it():
    steps = kept(LogConfig(retention_ms=-1, cleanup_policy=("compact",)))
    steps.log.raise_log_start(5)
    assert refusal(steps.read, 4) is ErrorCode.offset_out_of_range
    assert steps.read(5).first_offset == 5
    steps.due()
    assert bases(steps) == [4, 6, 8]
    steps.log.raise_log_start(3)
    assert steps.log.log_start_offset == 5
    assert refusal(steps.log.raise_log_start, 11) is ErrorCode.offset_out_of_range


TIERED = LogConfig(remote_storage_enable=True, retention_ms=-1, local_retention_ms=0)


def test_local_retention_takes_only_what_is_tiered_and_leaves_the_log_start():
    steps = kept(TIERED)
    assert bases(steps) == [0, 2, 4, 6, 8, 10]
    steps.log.mark_tiered(5)
    steps.due()
    steps.perform_all()
    assert bases(steps) == [4, 6, 8, 10]
    assert (steps.log.log_start_offset, steps.log.local_start_offset) == (0, 4)
    # The tail still has these batches. Their index of aborted transactions went with the segment.
    with pytest.raises(NotLocal):
        steps.read(3)
    steps.log.raise_log_start(2)
    assert refusal(steps.read, 1) is ErrorCode.offset_out_of_range
    with pytest.raises(NotLocal):
        steps.read(2)


def test_a_log_whose_tier_is_disabled_starts_at_its_first_local_segment():
    steps = kept(TIERED)
    steps.log.mark_tiered(5)
    steps.due()
    steps.perform_all()
    steps.log.configure(replace(TIERED, remote_storage_enable=False, retention_ms=-1))
    assert (steps.log.log_start_offset, steps.log.tiered_end) == (4, 0)
    assert refusal(steps.read, 3) is ErrorCode.offset_out_of_range
    steps.log.mark_tiered(10)  # an upload that was in progress
    steps.log.configure(TIERED)
    steps.due()
    assert bases(steps) == [4, 6, 8, 10], "the bucket has no record of the log"


@pytest.mark.parametrize(
    ("limits", "rolls"),
    [
        ({"retention_ms": 2000}, True),
        ({"retention_ms": 60_000, "local_retention_ms": 2000}, True),
        ({"local_retention_ms": 0}, True),
        ({"retention_bytes": 0}, True),
        ({"retention_ms": 60_000}, False),
        ({"retention_bytes": 1}, False),
        ({"retention_ms": 2000, "remote_log_copy_disable": True}, None),
        ({"retention_ms": 2000, "remote_storage_enable": False}, None),
    ],
)
def test_an_expired_active_segment_is_closed_for_the_tier_as_soon_as_it_is_committed(limits, rolls):
    """None: without copies to a tier the segment goes at once."""
    config = replace(TIERED, retention_ms=-1, local_retention_ms=-2, tier_max_lag_ms=-1)
    steps = Steps(replace(config, **limits))
    steps.append(batch(5, timestamp=steps.now_ms))
    steps.now_ms += 5000
    steps.due(limit_offset=4)
    assert bases(steps) == [0]
    steps.due()
    steps.perform_all()
    assert bases(steps) == {True: [0, 5], False: [0], None: [5]}[rolls]
    assert steps.log.log_start_offset == (5 if rolls is None else 0), "the tier expires the rest"
    steps.log.mark_tiered(5)
    steps.due()
    steps.perform_all()
    assert bases(steps) == ([0] if rolls is False else [5])
    steps.due()
    assert bases(steps) == ([0] if rolls is False else [5]), "an empty segment stays"


def test_an_empty_hotset_keeps_no_tiered_record_of_the_future():
    steps = kept(TIERED)
    steps.now_ms = 0  # every record's timestamp is in the future
    steps.log.mark_tiered(5)
    steps.due()
    steps.perform_all()
    assert bases(steps) == [4, 6, 8, 10]


def test_local_retention_of_minus_two_means_the_total_retention():
    config = replace(TIERED, local_retention_ms=-2, local_retention_bytes=4 * SIZE)
    steps = kept(config)
    steps.log.mark_tiered(10)
    steps.due()
    assert bases(steps) == [6, 8]


def test_a_quiet_segment_is_closed_for_the_tier_once_it_lags():
    steps = Steps(replace(TIERED, local_retention_ms=-1, tier_max_lag_ms=1000))
    steps.now_ms += 5000
    steps.append(batch(1))
    steps.now_ms += 999
    steps.due(tier=True)
    assert bases(steps) == [0]
    steps.now_ms += 1
    steps.due()
    assert bases(steps) == [0]
    steps.due(tier=True)
    assert bases(steps) == [0, 1]


def test_the_archiver_sees_closed_segments_that_are_written_and_not_tiered():
    steps = kept(LogConfig(retention_ms=-1, remote_storage_enable=True))
    log = steps.log
    assert [(s.base_offset, s.next_offset) for s in closed_segments(log, 10)] == [
        (0, 2),
        (2, 4),
        (4, 6),
        (6, 8),
    ]
    assert [s.base_offset for s in closed_segments(log, 5)] == [0, 2]
    log.mark_tiered(4)
    assert [s.base_offset for s in closed_segments(log, 10)] == [4, 6]
    parts = segment_parts(log, 4)
    assert parts.snapshot_path == f"{DIRECTORY}/00000000000000000006.snapshot"
    assert parts.leader_epochs == [(0, 4)]
    for path in (parts.snapshot_path, parts.index_path, parts.time_index_path):
        assert steps.disk.size(path) >= 0


def test_a_new_epoch_is_known_at_once_and_written_before_it_is_needed():
    steps = Steps(LogConfig())
    steps.append(batch(2), leader_epoch=1)
    steps.log.assign_epoch(3)
    assert steps.log.offset_for_epoch(1) == (1, 2)
    assert steps.log.offset_for_epoch(3) == (3, 2)
    effects = steps.log.flush()
    assert isinstance(effects[0], WriteFile)


# Truncation


def test_truncation_cuts_whole_batches_and_forgets_what_was_above():
    steps = Steps(LogConfig(segment_bytes=4 * SIZE, index_interval_bytes=0))
    for at in range(10):
        steps.append(
            batch(1, producer_id=3, producer_epoch=0, base_sequence=at), leader_epoch=at // 4
        )
    steps.truncate(5)
    log = steps.log
    assert (log.log_end_offset, bases(steps)) == (5, [0, 4])
    assert log.epochs.entries() == [(0, 0), (1, 4)]
    assert log.producers.get(3).batches[-1][:4] == (4, 4, 4, 4)
    assert "00000000000000000008.snapshot" not in names(steps)
    assert not steps.append(batch(1, producer_id=3, producer_epoch=0, base_sequence=5)).duplicate
    assert parse_header(steps.read(5).buffers[0]).base_offset == 5


def test_truncation_counts_a_producers_batches_once():
    steps = Steps(LogConfig())
    for at in range(3):
        steps.append(batch(1, producer_id=3, producer_epoch=0, base_sequence=at))
    steps.restart()
    for at in range(3, 6):
        steps.append(batch(1, producer_id=3, producer_epoch=0, base_sequence=at))
    steps.truncate(5)
    # The snapshot has the first three; two came after it.
    assert [found[0] for found in steps.log.producers.get(3).batches] == [0, 1, 2, 3, 4]


def test_truncation_inside_a_batch_takes_all_of_it():
    steps = Steps(LogConfig())
    steps.append(batch(3))
    steps.append(batch(3))
    steps.truncate(4)
    assert steps.log.log_end_offset == 3
    steps.truncate(3)
    steps.truncate(10)
    assert steps.log.log_end_offset == 3


def test_truncation_below_the_first_segment_restarts_the_log():
    steps = kept(LogConfig(retention_bytes=4 * SIZE, retention_ms=-1))
    steps.truncate(3)
    assert (steps.log.log_start_offset, steps.log.next_offset, bases(steps)) == (3, 3, [3])
    assert steps.append(batch(1)).base_offset == 3
    assert steps.load().next_offset == 4


def test_truncated_records_do_not_come_back_after_a_power_loss():
    for seed in range(30):
        steps = Steps(LogConfig(segment_bytes=2 * SIZE))
        for _ in range(5):
            steps.append(batch(1))
        steps.flush()
        steps.truncate(2 + seed % 3)
        steps.disk.crash(Random(seed))
        assert steps.load().log_end_offset == 2 + seed % 3, seed


def test_truncation_at_the_end_removes_an_epoch_without_records():
    """Kafka truncates the epochs always: a leader that lacks that epoch would report it for ever."""
    steps = Steps(LogConfig())
    steps.append(batch(3), leader_epoch=1)
    steps.log.assign_epoch(2)
    steps.truncate(3)
    assert steps.log.epochs.entries() == [(1, 0)]
    steps.truncate(5)
    assert steps.log.epochs.entries() == [(1, 0)]
    assert steps.load().epochs.entries() == [(1, 0)]


def test_truncation_is_refused_while_an_append_is_decided_and_not_performed():
    steps = Steps(LogConfig())
    steps.decide(batch(1))
    with pytest.raises(AssertionError):
        run(steps.disk, steps.log.truncate_to(0, NOW))


def replica_of_tiered_topic():
    """Return a replica with four batches, and the history of which it misses everything from offset 4 to 9."""
    donor = Steps(LogConfig())
    for at in range(10):
        donor.append(
            batch(1, producer_id=3, producer_epoch=0, base_sequence=at), leader_epoch=1 + at // 6
        )
    history = TieredHistory(10, ((1, 0), (2, 6)), donor.log.producers.encode())
    steps = Steps(LogConfig(segment_bytes=2 * SIZE, remote_storage_enable=True), replicated=True)
    for _ in range(4):
        steps.append(batch(1), leader_epoch=1)
    steps.flush()
    steps.perform_all()
    return steps, history


def test_a_log_that_begins_after_the_bucket_has_its_epochs_producers_and_start():
    steps, history = replica_of_tiered_topic()
    run(steps.disk, steps.log.restart_after(history, 2, NOW))
    steps.log_start_offset = 2  # as the checkpoint will have it
    for log in (steps.log, steps.load(), steps.restart()):
        assert (log.log_start_offset, log.local_start_offset, log.log_end_offset) == (2, 10, 10)
        assert log.epochs.entries() == [(1, 2), (2, 6)]
        state = log.producers.get(3)
        assert state is not None
        assert state.batches[-1][:2] == (9, 9)


def test_a_loss_of_power_leaves_the_old_log_or_one_that_knows_its_producers():
    seen = set()
    for crash_after in range(30):
        for seed in range(3):
            steps, history = replica_of_tiered_topic()
            program = steps.log.restart_after(history, 0, NOW)
            for _, effect in zip(range(crash_after), program, strict=False):
                perform(steps.disk, effect)
            steps.disk.crash(Random(seed))
            log = steps.load()
            seen.add(log.log_end_offset)
            if log.log_end_offset == 10:
                assert log.producers.get(3) is not None, crash_after
            else:
                assert log.epochs.entries() == [(1, 0)]
                assert log.log_end_offset <= 4
    assert {4, 10} <= seen


def test_a_damaged_snapshot_from_the_bucket_changes_nothing():
    steps, history = replica_of_tiered_topic()
    torn = replace(history, producer_snapshot=history.producer_snapshot[:-1])
    with pytest.raises(Corrupt):
        run(steps.disk, steps.log.restart_after(torn, 0, NOW))
    assert steps.log.log_end_offset == 4
    assert steps.read(0).first_offset == 0
