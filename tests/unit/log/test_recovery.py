"""Loading a partition: the bytes that it trusts, the bytes that it truncates, the files that it rebuilds."""

import uuid
from random import Random

import pytest
from msgspec.structs import replace
from tests.log_steps import DIRECTORY, TOPIC_ID, Steps, batch
from tests.sim.disk import SimDisk, paths

from stratalog.config import LogConfig
from stratalog.errors import Corrupt
from stratalog.log.effects import run
from stratalog.log.recovery import load, read_topic_id
from stratalog.log.values import Recovered
from stratalog.wire.batch import scan

SIZE = len(batch(1))
SEGMENTS = LogConfig(segment_bytes=3 * SIZE, index_interval_bytes=0)


def filled(count=8, config=SEGMENTS) -> Steps:
    steps = Steps(config)
    for at in range(count):
        steps.append(
            batch(1, timestamp=1000 + at, producer_id=3, producer_epoch=0, base_sequence=at)
        )
    return steps


def file(steps, base, suffix):
    return f"{DIRECTORY}/{base:020}{suffix}"


def names(steps):
    return {path.removeprefix(f"{DIRECTORY}/") for path in paths(steps.disk)}


def test_a_killed_process_loses_nothing_that_was_performed():
    steps = filled()
    before = steps.read_all()
    log = steps.load()
    assert log.recovered == Recovered(0, 3)
    assert steps.read_all() == before
    assert [found[0] for found in log.producers.get(3).batches] == [3, 4, 5, 6, 7]
    assert log.epochs.entries() == [(0, 0)]


def test_only_segments_beyond_the_recovery_point_are_scanned():
    steps = filled()
    steps.flush()
    steps.perform_all()
    steps.recovery_point = 4
    assert steps.load().recovered.segments_scanned == 2
    steps.recovery_point = 8
    assert steps.load().recovered.segments_scanned == 1


def test_damage_ends_the_log_there_and_removes_later_segments():
    steps = filled()
    steps.disk.flip(file(steps, 3, ".log"), SIZE + SIZE - 1)
    log = steps.load()
    assert (log.log_end_offset, log.recovered) == (4, Recovered(2 * SIZE + 2 * SIZE, 2))
    assert [s.base_offset for s in log.segments] == [0, 3]
    assert file(steps, 6, ".log").split("/")[1] not in names(steps)
    assert log.producers.get(3).batches[-1][0] == 3
    assert steps.append(batch(1)).base_offset == 4


def test_a_missing_segment_is_reported_and_the_log_continues_behind_it():
    steps = filled()
    steps.disk.unlink(file(steps, 3, ".log"))
    log = steps.load()
    assert log.log_end_offset == 8
    assert [damage.reason for damage in log.recovered.damage] == [
        f"it ends at byte {3 * SIZE}: offsets 3 to 5 are missing"
    ]
    assert [header.base_offset for _, header in scan(steps.read_all())] == [0, 1, 2, 6, 7]


@pytest.mark.parametrize("left", [0, 20])
def test_a_gap_without_a_sound_batch_behind_it_ends_the_log(left):
    steps = filled()
    steps.disk.truncate(file(steps, 3, ".log"), 0)
    steps.disk.truncate(file(steps, 6, ".log"), left)
    log = steps.load()
    assert (log.log_end_offset, log.recovered.damage) == (3, ())
    assert steps.append(batch(1)).base_offset == 3


@pytest.mark.parametrize(
    ("is_tiered", "is_durable", "lost", "end"),
    [(0, 0, 0, 8), (1, 0, 0, 0), (1, 1, 0, 8), (1, 0, 3, 8)],
)
def test_a_gap_of_lost_bytes_ends_a_log_where_only_the_bucket_is_before_it(
    is_tiered, is_durable, lost, end
):
    steps = filled(config=replace(SEGMENTS, remote_storage_enable=bool(is_tiered)))
    if is_durable:
        steps.flush()
        steps.perform_all()
    steps.disk.truncate(file(steps, lost, ".log"), 0)
    log = steps.load()
    assert log.log_end_offset == end
    assert bool(log.recovered.damage) is (end == 8)


def test_a_torn_batch_ends_the_log_before_later_segments():
    steps = filled()
    steps.disk.truncate(file(steps, 3, ".log"), SIZE + 20)
    log = steps.load()
    assert (log.log_end_offset, log.recovered.damage) == (4, ())


def test_an_older_batch_behind_the_end_is_not_taken_for_a_newer_one():
    steps = filled(2)
    data = steps.disk.read(file(steps, 0, ".log"), 0, 10_000)
    steps.disk.append(file(steps, 0, ".log"), len(data), [data[:SIZE]])
    assert steps.load().log_end_offset == 2


def test_zeros_at_the_end_are_cut():
    steps = filled(2)
    steps.disk.append(file(steps, 0, ".log"), steps.log.segments[0].size, [bytes(4096)])
    log = steps.load()
    assert (log.log_end_offset, log.recovered.bytes_cut) == (2, 4096)
    assert steps.disk.size(file(steps, 0, ".log")) == log.segments[0].size


def test_indexes_of_recovered_segments_equal_the_lost_ones():
    steps = filled()
    before = {
        name: steps.disk.read(f"{DIRECTORY}/{name}", 0, 10_000)
        for name in names(steps)
        if name.endswith(("index", "snapshot"))
    }
    assert len(before) == 6
    for name in before:
        steps.disk.unlink(f"{DIRECTORY}/{name}")
    steps.load()
    after = {name: steps.disk.read(f"{DIRECTORY}/{name}", 0, 10_000) for name in before}
    assert after == before


def test_after_a_clean_shutdown_the_log_loads_fully_without_a_scan():
    steps = filled()
    before = steps.log
    log = steps.restart()
    assert log.recovered == Recovered(0, 0)
    assert log.recovery_point == 8
    for mine, other in zip(log.segments, before.segments, strict=True):
        for field in ("base_offset", "next_offset", "size", "readable", "max_timestamp"):
            assert getattr(mine, field) == getattr(other, field), field
    assert log.segments[-1].first_timestamp == before.segments[-1].first_timestamp
    assert log.segments[-1].index.encode() == before.segments[-1].index.encode()
    assert steps.append(batch(1, producer_id=3, producer_epoch=0, base_sequence=7)).duplicate


def test_a_closed_segment_without_sound_indexes_gets_new_ones():
    for suffix in (".index", ".timeindex"):
        for damage in ("missing", "odd", "zeros"):
            steps = filled()
            expected = steps.disk.read(file(steps, 0, suffix), 0, 1000)
            steps.restart()
            steps.disk.unlink(file(steps, 0, suffix))
            if damage == "odd":
                steps.disk.append(file(steps, 0, suffix), 0, [bytes(7)])
            elif damage == "zeros" and suffix == ".timeindex":
                steps.disk.append(file(steps, 0, suffix), 0, [bytes(120)])
            log = steps.load(clean=True)
            assert steps.disk.read(file(steps, 0, suffix), 0, 1000) == expected
            assert log.segments[0].max_timestamp == 1002
            assert log.recovered.segments_scanned == 0


def test_an_active_segment_without_sound_indexes_is_scanned():
    steps = filled()
    steps.restart()
    steps.disk.unlink(file(steps, 6, ".index"))
    log = steps.load(clean=True)
    assert (log.log_end_offset, log.recovered) == (8, Recovered(0, 1))


def test_an_old_mark_of_a_clean_stop_does_not_hide_later_records():
    steps = filled()
    steps.restart()
    steps.append(batch(1))
    log = steps.load(clean=True)
    assert (log.log_end_offset, log.recovered) == (9, Recovered(0, 1))


def test_a_mark_of_a_clean_stop_does_not_hide_a_torn_end():
    steps = filled()
    steps.restart()
    steps.disk.truncate(file(steps, 6, ".log"), SIZE + 20)
    log = steps.load(clean=True)
    assert (log.log_end_offset, log.recovered.bytes_cut) == (7, 20)


def test_an_unsound_snapshot_is_replaced_by_an_older_one_and_the_batches_after_it():
    steps = filled()
    steps.restart()
    for offset in (6, 8):
        steps.disk.flip(file(steps, offset, ".snapshot"), 12)
    log = steps.load(clean=True)
    assert [found[0] for found in log.producers.get(3).batches] == [2, 3, 4, 5, 6, 7][-5:]


def test_a_stop_needs_no_snapshot_that_the_directory_lacked_at_the_start():
    steps = filled()
    steps.restart()
    for name in names(steps):
        if name.endswith(".snapshot"):
            steps.disk.unlink(f"{DIRECTORY}/{name}")
    # The mark of a clean stop counts for the closed segments, and the recovery point lies below them.
    steps.disk.unlink(file(steps, 6, ".index"))
    steps.recovery_point = 0
    producer = steps.load(clean=True).producers.get(3).batches
    assert [found[0] for found in producer] == [3, 4, 5, 6, 7]
    log = steps.restart()
    assert (log.recovery_point, log.recovered) == (8, Recovered(0, 0))
    assert log.producers.get(3).batches == producer
    snapshots = {name for name in names(steps) if name.endswith(".snapshot")}
    assert snapshots == {"00000000000000000008.snapshot"}


def test_snapshots_above_the_end_are_removed():
    steps = filled()
    steps.disk.unlink(file(steps, 6, ".log"))
    steps.disk.unlink(file(steps, 3, ".log"))
    steps.load()
    assert {n for n in names(steps) if n.endswith(".snapshot")} <= {"00000000000000000003.snapshot"}


def test_an_unreadable_epoch_checkpoint_is_rebuilt_from_the_batches():
    steps = Steps(SEGMENTS)
    for at in range(8):
        steps.append(batch(1), leader_epoch=at // 3)
    steps.restart()
    expected = steps.log.epochs.entries()
    assert len(expected) == 3
    steps.disk.write_file(f"{DIRECTORY}/leader-epoch-checkpoint", b"nonsense")
    log = steps.load(clean=True)
    assert log.epochs.entries() == expected
    assert log.recovered.segments_scanned == 3


def test_epochs_above_the_end_are_removed():
    steps = Steps(LogConfig())
    first = steps.append(batch(2), leader_epoch=1)
    steps.append(batch(2), leader_epoch=2)
    steps.flush()
    steps.perform_all()
    steps.disk.truncate(steps.log.segments[0].path, first.size)
    log = steps.load()
    assert (log.log_end_offset, log.epochs.entries()) == (2, [(1, 0)])


def test_leftovers_are_removed():
    steps = filled()
    for name in ("00000000000000000000.log.deleted", "x.tmp", "00000000000000000001.index"):
        steps.disk.append(f"{DIRECTORY}/{name}", 0, [b"x"])
    steps.load()
    assert not {n for n in names(steps) if n.endswith((".deleted", ".tmp")) or "01.index" in n}


def test_a_log_that_ends_below_its_start_or_its_tier_begins_there():
    for known in ({"log_start_offset": 20}, {"tiered_end": 20}):
        disk = filled().disk
        log = run(
            disk,
            load(DIRECTORY, SEGMENTS, clean=False, recovery_point=0, now_ms=1, **known),
        )
        assert (log.next_offset, log.local_start_offset) == (20, 20)
        assert not log.producers.items()
        again = run(disk, load(DIRECTORY, SEGMENTS, clean=False, recovery_point=0, now_ms=1))
        assert again.next_offset == 20


def test_with_a_tier_the_log_start_is_that_of_the_checkpoint():
    config = LogConfig(segment_bytes=3 * SIZE, remote_storage_enable=True)
    steps = filled(config=config)
    steps.disk.unlink(file(steps, 0, ".log"))
    log = run(
        steps.disk,
        load(
            DIRECTORY,
            config,
            clean=False,
            recovery_point=0,
            now_ms=1,
            tiered_end=3,
            log_start_offset=1,
        ),
    )
    assert (log.log_start_offset, log.local_start_offset, log.tiered_end) == (1, 3, 3)


def test_an_empty_directory_is_an_empty_log_of_the_topic_that_is_expected():
    disk = SimDisk()
    disk.make_directory(DIRECTORY)
    assert run(disk, read_topic_id(DIRECTORY)) is None
    program = load(DIRECTORY, SEGMENTS, clean=False, recovery_point=0, now_ms=1)
    with pytest.raises(Corrupt, match=r"partition\.metadata"):
        run(disk, program)
    log = run(
        disk,
        load(DIRECTORY, SEGMENTS, clean=False, recovery_point=0, now_ms=1, topic_id=TOPIC_ID),
    )
    assert (log.next_offset, log.topic_id) == (0, TOPIC_ID)
    assert run(disk, read_topic_id(DIRECTORY)) == TOPIC_ID


def test_a_directory_of_another_topic_is_refused():
    steps = filled()
    with pytest.raises(Corrupt, match="belongs to topic"):
        run(
            steps.disk,
            load(
                DIRECTORY,
                SEGMENTS,
                clean=False,
                recovery_point=0,
                now_ms=1,
                topic_id=uuid.UUID(int=9),
            ),
        )


def test_flushed_records_survive_any_loss_of_power():
    for seed in range(60):
        steps = filled(5)
        steps.flush()
        steps.perform_all()
        for at in range(5):
            steps.append(batch(1, producer_id=3, producer_epoch=0, base_sequence=5 + at))
        steps.disk.crash(Random(seed))
        assert steps.load().log_end_offset >= 5, seed


def test_closed_segments_survive_any_loss_of_power_after_their_scheduled_sync():
    for seed in range(30):
        steps = filled(7)
        steps.due()
        steps.perform_all()
        steps.disk.crash(Random(seed))
        log = steps.load()
        assert log.log_end_offset >= 6, seed
        assert log.recovered.segments_scanned == 1
        log.tail.clear()
        assert steps.read(1).first_offset == 1


def test_a_new_partition_survives_a_loss_of_power_right_after_its_creation():
    for seed in range(20):
        steps = Steps(SEGMENTS)
        steps.disk.crash(Random(seed))
        log = steps.load()
        assert (log.topic_id, log.next_offset) == (TOPIC_ID, 0)


@pytest.mark.parametrize("start", [1, 2])
def test_a_kill_between_the_log_start_and_the_epochs_is_no_damage(start):
    """The log writes the checkpoint of its start and not the epochs' file; then the log is stopped cleanly."""
    steps = Steps(LogConfig())
    steps.append(batch(2), leader_epoch=1)
    steps.flush()
    steps.perform_all()
    steps.log_start_offset = start
    steps.load()
    log = steps.restart()
    assert log.recovered.damage == ()
    assert (log.log_start_offset, log.log_end_offset) == (start, 2)
