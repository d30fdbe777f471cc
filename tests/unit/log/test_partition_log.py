"""One partition's log: appends, rolls, syncs and reads."""

import pytest
from tests.log_steps import DIRECTORY, Steps, batch, clean_once
from tests.sim.disk import paths

from stratalog.config import LogConfig
from stratalog.errors import Corrupt, ErrorCode, Rejected
from stratalog.log.effects import Append, Sync, SyncDirectory, run
from stratalog.log.reading import ReadPlan
from stratalog.wire.batch import crc_holds, parse_header
from stratalog.wire.records import read_records

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


# Appending


def test_an_append_assigns_offsets_and_epoch_in_place_and_counts_once_performed():
    steps = Steps(LogConfig())
    data = batch(3)
    first = steps.decide(data, leader_epoch=4)
    second = steps.decide(batch(2), leader_epoch=4)
    log = steps.log
    assert (first.base_offset, first.last_offset, second.base_offset) == (0, 2, 3)
    assert parse_header(data).leader_epoch == 4
    assert crc_holds(data, 0, parse_header(data))
    assert (log.next_offset, log.log_end_offset) == (5, 0)
    assert steps.read(0).buffers == []
    steps.perform_effect()
    assert log.log_end_offset == 3
    assert steps.read(0).next_offset == 3
    steps.perform_all()
    assert log.log_end_offset == 5


@pytest.mark.parametrize("timestamp", [1, 10**15])
def test_log_append_time_stamps_a_batch_and_updates_its_crc(timestamp):
    steps = Steps(LogConfig(message_timestamp_type="LogAppendTime"), now_ms=5000)
    appended = steps.append(batch(2, timestamp=timestamp))
    assert appended.log_append_time_ms == 5000
    data = steps.read_all()
    assert crc_holds(data, 0, parse_header(data))
    assert {record.timestamp for record in read_records(data)} == {5000}
    assert steps.log.segments[0].max_timestamp == 5000


@pytest.mark.parametrize(
    ("timestamp", "accepted"),
    [(NOW - 1000, True), (NOW - 1001, False), (NOW + 500, True), (NOW + 501, False), (-1, True)],
)
def test_timestamps_outside_the_topics_bounds_are_refused(timestamp, accepted):
    config = LogConfig(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=500)
    steps = Steps(config, now_ms=NOW)
    data = batch(1, timestamp=timestamp)
    if accepted:
        steps.append(data)
    else:
        assert refusal(steps.append, data) is ErrorCode.invalid_timestamp
    assert steps.log.next_offset == int(accepted)


def test_a_batch_larger_than_a_segment_is_refused():
    steps = Steps(LogConfig(segment_bytes=SIZE))
    steps.append(batch(1))
    assert refusal(steps.append, batch(1, size=21)) is ErrorCode.record_list_too_large


def test_a_repeated_batch_gets_its_first_offsets_before_and_after_the_append_is_performed():
    steps = Steps(LogConfig())
    fields = {"producer_id": 9, "producer_epoch": 0, "base_sequence": 0}
    steps.decide(batch(2, **fields))
    for _ in range(2):
        again = steps.decide(batch(2, **fields))
        assert again.duplicate
        assert (again.base_offset, again.last_offset, again.effects) == (0, 1, ())
        steps.perform_all()
    assert steps.log.next_offset == steps.log.log_end_offset == 2


def test_a_refused_append_changes_nothing():
    steps = Steps(LogConfig())
    steps.append(batch(2, producer_id=9, producer_epoch=0, base_sequence=0))
    before = steps.read_all()
    data = batch(1, producer_id=9, producer_epoch=0, base_sequence=7)
    assert refusal(steps.append, data) is ErrorCode.out_of_order_sequence_number
    assert (steps.log.next_offset, steps.read_all()) == (2, before)
    assert not steps.append(batch(1, producer_id=9, producer_epoch=0, base_sequence=2)).duplicate


def test_a_coordinator_may_append_control_batches():
    steps = Steps(LogConfig())
    data = batch(1, control=True)
    appended = steps.log.append_as_leader(
        memoryview(data),
        parse_header(data),
        leader_epoch=0,
        now_ms=NOW,
        wall_ms=NOW,
        origin="coordinator",
    )
    assert appended.base_offset == 0


def test_a_follower_appends_several_batches_at_once():
    leader, follower = Steps(LogConfig()), Steps(LogConfig())
    for count in (1, 2, 3):
        leader.append(batch(count))
    appended = follower.log.append_as_follower(memoryview(bytearray(leader.read_all())), NOW)
    follower.decided(appended.effects, lambda: follower.log.performed(appended))
    follower.perform_all()
    assert (appended.base_offset, appended.last_offset) == (0, 5)
    assert follower.read(3).first_offset == 3
    records = [r for view in follower.read(1).buffers for r in read_records(view)]
    assert [record.offset for record in records] == [1, 2, 3, 4, 5]


def test_a_follower_keeps_offsets_epochs_and_gaps():
    leader, follower = Steps(LogConfig()), Steps(LogConfig())
    leader.append(batch(2), leader_epoch=1)
    leader.append(batch(2), leader_epoch=3)
    leader.append(batch(1, producer_id=4, producer_epoch=0, base_sequence=8), leader_epoch=3)
    pieces = [bytes(view) for view in leader.read(0).buffers]
    for piece in (pieces[0], pieces[2]):
        appended = follower.log.append_as_follower(memoryview(bytearray(piece)), NOW)
        follower.decided(appended.effects, lambda a=appended: follower.log.performed(a))
    follower.perform_all()
    assert follower.read_all() == pieces[0] + pieces[2]
    assert follower.log.epochs.entries() == [(1, 0), (3, 4)]
    assert follower.log.producers.get(4).batches[-1][:4] == (8, 8, 4, 4)
    for wrong in (pieces[0], pieces[2][:-1], b"", b"\0" * 100):
        with pytest.raises(Corrupt):
            follower.log.append_as_follower(memoryview(bytearray(wrong)), NOW)
    damaged = bytearray(pieces[2])
    damaged[0:8] = (9).to_bytes(8, "big")
    damaged[-1] ^= 1
    with pytest.raises(Corrupt, match="CRC"):
        follower.log.append_as_follower(memoryview(damaged), NOW)


def test_a_follower_refuses_a_batch_of_a_later_epoch_than_its_leaders():
    leader, follower = Steps(LogConfig()), Steps(LogConfig())
    leader.append(batch(2), leader_epoch=3)
    data = memoryview(bytearray(leader.read_all()))
    with pytest.raises(Corrupt, match="epoch 3 from a leader of epoch 2"):
        follower.log.append_as_follower(data, NOW, leader_epoch=2)
    assert follower.log.next_offset == 0
    assert follower.log.append_as_follower(data, NOW, leader_epoch=3).last_offset == 1


# Rolling


def test_a_segment_ends_before_the_batch_that_would_not_fit():
    steps = Steps(LogConfig(segment_bytes=3 * SIZE))
    for _ in range(7):
        steps.append(batch(1))
    assert bases(steps) == [0, 3, 6]
    assert {"00000000000000000003.log", "00000000000000000003.snapshot"} <= names(steps)
    assert "00000000000000000006.index" not in names(steps)


def test_a_segment_ends_by_the_records_own_time():
    steps = Steps(LogConfig(segment_ms=100))
    for timestamp in (1000, 1100, 900, 1101, 1150, 1202):
        steps.append(batch(1, timestamp=timestamp))
        steps.now_ms += 10_000
    assert bases(steps) == [0, 3, 5]


def test_without_timestamps_a_segment_ends_by_its_age():
    steps = Steps(LogConfig(segment_ms=100))
    for _ in range(3):
        steps.append(batch(1, timestamp=-1))
        steps.now_ms += 60
    assert bases(steps) == [0, 2]


def test_a_segment_ends_when_its_index_is_full():
    steps = Steps(LogConfig(index_interval_bytes=0, segment_index_bytes=60))
    for at in range(20):
        steps.append(batch(1, timestamp=1000 + at))
    assert bases(steps) == [0, 5, 10, 15]
    for segment in steps.log.segments[:-1]:
        assert segment.index_size <= 60
        assert segment.time_index_size <= 60


def test_a_segment_ends_before_its_offsets_leave_32_bits():
    steps = Steps(LogConfig())
    steps.append(batch(1))
    far = batch(1, base_offset=2**31 - 1)
    farther = batch(1, base_offset=2**31)
    for data in (far, farther):
        appended = steps.log.append_as_follower(memoryview(data), NOW)
        steps.decided(appended.effects, lambda a=appended: steps.log.performed(a))
    steps.perform_all()
    assert bases(steps) == [0, 2**31]
    assert steps.read(5).first_offset == 2**31 - 1


def test_a_base_offset_from_a_client_is_ignored():
    steps = Steps(LogConfig())
    for _ in range(3):
        steps.append(batch(1, base_offset=2**40))
    assert bases(steps) == [0]
    assert steps.read(2).next_offset == 3


def test_roll_closes_only_a_segment_with_records_and_keeps_the_next_offset():
    steps = Steps(LogConfig())
    steps.roll()
    assert bases(steps) == [0]
    steps.append(batch(2))
    steps.roll()
    steps.roll()
    steps.perform_all()
    assert bases(steps) == [0, 2]
    assert steps.load().next_offset == 2


# Durability


def test_flush_messages_syncs_with_the_append_that_reaches_it():
    steps = Steps(LogConfig(flush_messages=3))
    assert not [e for e in steps.append(batch(2)).effects if isinstance(e, Sync)]
    effects = steps.append(batch(1)).effects
    kinds = [type(effect) for effect in effects]
    assert kinds.index(Sync) > kinds.index(Append)
    assert steps.log.recovery_point == 3


@pytest.mark.parametrize("flushed", [0, 1, 3])
def test_a_roll_syncs_nothing_in_the_order_of_appends(flushed):
    steps = Steps(LogConfig(segment_bytes=2 * SIZE))
    for at in range(5):
        effects = steps.append(batch(1)).effects
        assert not [one for one in effects if isinstance(one, Sync | SyncDirectory)]
        if at + 1 == flushed:
            steps.flush()  # in the middle of a segment
            steps.perform_all()
    assert bases(steps) == [0, 2, 4]


def test_files_of_a_segment_that_ends_at_the_recovery_point_are_durable_before_the_next_begins():
    """Recovery trusts those files: it scans from the segment that begins at the recovery point."""
    steps = Steps(LogConfig(segment_bytes=2 * SIZE, flush_messages=2))
    for _ in range(2):
        steps.append(batch(1))
    assert steps.log.recovery_point == 2
    *before, last = steps.append(batch(1)).effects
    assert isinstance(last, Append)
    synced = {e.path.rpartition(".")[2] for e in before if isinstance(e, Sync)}
    assert synced == {"log", "index", "timeindex", "snapshot"}


def test_closed_segments_that_another_thread_synced_are_not_synced_again():
    steps = Steps(LogConfig(segment_bytes=2 * SIZE))
    for _ in range(3):
        steps.append(batch(1))
    end, first, syncs = steps.log.unsynced()
    assert end == 2
    assert syncs
    assert steps.log.recovery_point == 0, "the segment is durable before its sync"
    steps.decided(first)
    steps.perform_all()
    steps.log.synced(end)
    assert steps.log.recovery_point == 2
    assert steps.log.due(steps.now_ms, wall_ms=steps.now_ms) == ()
    assert steps.log.unsynced() == (2, (), [])
    steps.log.synced(0)
    assert steps.log.recovery_point == 2


def test_a_restart_that_changes_nothing_writes_nothing():
    steps = Steps(LogConfig(segment_bytes=2 * SIZE))
    for _ in range(3):
        steps.append(batch(1))
    steps.restart()
    steps.disk.before = lambda operation, path: pytest.fail(f"{operation} {path}")
    steps.restart()
    assert steps.log.next_offset == 3


# Reading


def test_a_decided_append_is_not_read_before_it_is_performed():
    steps = Steps(LogConfig(), tail_cache_bytes=0)
    for _ in range(3):
        steps.decide(batch(1))
    steps.perform_effect()
    found = steps.read(0)
    assert (found.next_offset, found.size) == (1, SIZE)


def test_a_closed_segment_is_read_before_its_index_files_are_written():
    steps = Steps(LogConfig(segment_bytes=3 * SIZE, index_interval_bytes=0), tail_cache_bytes=0)
    for _ in range(3):
        steps.append(batch(1))
    steps.decide(batch(1))
    steps.decide(batch(1))
    steps.roll()
    steps.decide(batch(1))
    assert bases(steps) == [0, 3, 5]
    while steps.queue:
        for offset in range(steps.log.log_end_offset):
            assert steps.read(offset).first_offset == offset
        steps.perform_effect()
    assert steps.log.segments[0].index is None
    assert steps.read(2).first_offset == 2
    assert steps.read(4).first_offset == 4


def test_a_read_outside_the_log_is_refused_and_at_its_end_is_empty():
    steps = Steps(LogConfig())
    steps.append(batch(3))
    assert steps.read(3).buffers == []
    for offset in (-1, 4):
        assert refusal(steps.read, offset) is ErrorCode.offset_out_of_range


def test_the_tail_is_read_from_memory_and_older_records_by_a_plan():
    steps = Steps(LogConfig(), tail_cache_bytes=3 * (SIZE + 300))
    for _ in range(10):
        steps.append(batch(1))
    assert not isinstance(steps.log.read(9, 1000, end_offset=10), ReadPlan)
    assert isinstance(steps.log.read(2, 1000, end_offset=10), ReadPlan)


def test_a_first_batch_larger_than_asked_for_comes_whole_if_one_is_the_minimum():
    steps = Steps(LogConfig(), tail_cache_bytes=0)
    steps.append(batch(1))
    steps.append(batch(1, size=300_000))
    assert steps.read(1, 10).next_offset == 2
    assert steps.read(1, 10, minimum_one_batch=False).buffers == []


def test_a_consumer_in_sequence_reads_every_byte_once():
    steps = Steps(LogConfig(index_interval_bytes=1 << 20), tail_cache_bytes=0)
    for _ in range(200):
        steps.append(batch(1))
    reads = []
    original = steps.disk.read
    steps.disk.read = lambda path, position, size: (
        reads.append(position) or original(path, position, size)
    )
    offset = 0
    while offset < 200:
        offset = steps.read(offset, 10 * SIZE).next_offset
    assert reads == [at * 10 * SIZE for at in range(20)]


def test_a_file_that_another_process_cut_is_corrupt_and_named():
    steps = Steps(LogConfig(), tail_cache_bytes=0)
    steps.append(batch(1))
    steps.append(batch(1))
    steps.disk.truncate(steps.log.segments[0].path, SIZE + 5)
    with pytest.raises(Corrupt, match=r"00000000000000000000\.log"):
        steps.read(1)


def test_a_malformed_header_is_corrupt_and_named():
    steps = Steps(LogConfig(), tail_cache_bytes=0)
    steps.append(batch(1))
    steps.disk.flip(steps.log.segments[0].path, 16)
    with pytest.raises(Corrupt, match=r"00000000000000000000\.log"):
        steps.read(0)


@pytest.mark.parametrize("closed", [False, True])
def test_a_timestamp_is_found_at_its_first_record_even_where_it_is_an_index_entry(closed):
    steps = Steps(LogConfig(index_interval_bytes=0))
    for timestamp in (1000, 1010, 1010, 1005, 1020, 1020):
        steps.append(batch(2, timestamp=timestamp))
    if closed:
        steps.roll()
        steps.append(batch(1, timestamp=2000))
    answers = {
        timestamp: run(steps.disk, steps.log.offset_for_timestamp(timestamp))
        for timestamp in (0, 1000, 1001, 1002, 1010, 1011, 1012, 1020, 1021, 1022)
    }
    assert {t: found and found[0] for t, found in answers.items()} == {
        0: 0,
        1000: 0,
        1001: 1,
        1002: 2,
        1010: 2,
        1011: 3,
        1012: 8,
        1020: 8,
        1021: 9,
        1022: 12 if closed else None,
    }
    assert run(steps.disk, steps.log.offset_for_timestamp(1012, end_offset=8)) is None


# A coordinator's log


def append_mebibytes(steps, count):
    """Append so many mebibytes, less a KiB each, of one key; return the closed segments' sizes in MiB."""
    for _ in range(8 * count):
        steps.append(batch(1, size=(1 << 17) - 128))
    return [round(segment.size / (1 << 20)) for segment in steps.log.segments[:-1]]


def test_a_coordinators_segment_closes_once_it_is_larger_than_all_before_it():
    config = LogConfig(cleanup_policy=("compact",), segment_bytes=20 << 20, is_state=True)
    steps = Steps(config)
    assert append_mebibytes(steps, 56) == [2, 2, 4, 9, 18, 20]
    steps.sync_closed()
    clean_once(steps)
    assert append_mebibytes(steps, 5)[-3:] == [0, 2, 2], "little is left, so little is loaded"


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_other_segments_close_by_their_settings(policy):
    config = LogConfig(cleanup_policy=(policy,), is_state=policy == "delete")
    assert append_mebibytes(Steps(config), 10) == []
