"""Cleaning of a compacted log: the cleanable part, its time, tombstones, markers, the table of keys, the swap."""

import pytest
from msgspec.structs import replace
from tests.log_steps import DIRECTORY, Steps, clean_once
from tests.sim.disk import PowerLoss, SimDisk, paths

from stratalog.config import LogConfig
from stratalog.config.kinds import LONG_MAX
from stratalog.errors import Corrupt
from stratalog.log.cleaning.choosing import cleanable, read_first_timestamps
from stratalog.log.cleaning.transactions import Aborted, Transactions
from stratalog.log.effects import run
from stratalog.log.recovery import load
from stratalog.log.segment import CLEANED, DELETED, SWAP
from stratalog.wire.batch import parse_header, scan
from stratalog.wire.records import Record, build_batch, read_records
from stratalog.wire.validation import NO_DEMANDS, check_batch

CONFIG = LogConfig(cleanup_policy=("compact",), delete_retention_ms=1000, segment_bytes=100_000)


def log_of(*segments: list[tuple[bytes, bytes | None]], config: LogConfig = CONFIG) -> Steps:
    """Return a log with a closed segment for each list, in batches of one record, and an active segment."""
    steps = Steps(config)
    for segment in segments:
        for key, value in segment:
            steps.append(build_batch([Record(0, steps.now_ms, key, value)]))
        steps.roll()
        steps.perform_all()
    steps.append(build_batch([Record(0, steps.now_ms, b"active", b"")]))
    steps.sync_closed()
    return steps


def records(steps: Steps) -> list[tuple[int, bytes | None, bytes | None]]:
    data = steps.read_all()
    found = []
    for at, header in scan(data):
        found += read_records(data[at : at + header.size])
    return [(one.offset, one.key, one.value) for one in found if one.key != b"active"]


def test_the_active_segment_and_unstable_or_unsynced_records_stay_dirty():
    steps = log_of([(b"a", b"1")], [(b"a", b"2")], [(b"a", b"3")])
    found = cleanable(steps.log, 4, steps.now_ms)
    assert [one.base_offset for one in found.segments] == [0, 1, 2]
    assert (found.first_dirty, found.end) == (0, 3)
    assert cleanable(steps.log, 2, steps.now_ms).end == 2, (
        "cleaning must end at the last stable offset"
    )
    steps.log.recovery_point = 1
    assert cleanable(steps.log, 4, steps.now_ms).end == 1, "cleaning must end at the durable offset"


def test_a_log_is_due_above_min_cleanable_dirty_ratio():
    steps = log_of([(b"a", b"1")], [(b"a", b"2")])
    steps.log.cleaned_end = 1
    steps.log.config = replace(CONFIG, min_cleanable_dirty_ratio=0.49)
    assert cleanable(steps.log, 3, steps.now_ms).ratio == 0.5
    assert cleanable(steps.log, 3, steps.now_ms).is_due
    steps.log.config = replace(CONFIG, min_cleanable_dirty_ratio=0.5)
    assert not cleanable(steps.log, 3, steps.now_ms).is_due


def test_min_compaction_lag_ms_ends_the_cleanable_part():
    steps = log_of([(b"a", b"1")])
    steps.log.config = replace(CONFIG, min_compaction_lag_ms=10)
    assert cleanable(steps.log, 2, steps.now_ms + 9).end == 0
    assert cleanable(steps.log, 2, steps.now_ms + 10).end == 1


def test_max_compaction_lag_ms_makes_a_log_due_at_any_ratio():
    steps = log_of([(b"a", b"1")], [(b"a", b"2")])
    steps.log.cleaned_end = 1
    steps.log.config = replace(CONFIG, min_cleanable_dirty_ratio=1, max_compaction_lag_ms=10)
    steps.log.segments[1].first_timestamp = -1  # as after a start
    run(steps.disk, read_first_timestamps(steps.log))
    assert not cleanable(steps.log, 3, steps.now_ms + 10).is_due
    assert cleanable(steps.log, 3, steps.now_ms + 11).is_due
    steps.log.config = replace(steps.log.config, max_compaction_lag_ms=LONG_MAX)
    assert not cleanable(steps.log, 3, steps.now_ms + 11).is_due


def test_max_compaction_lag_ms_rolls_the_active_segment():
    steps = Steps(replace(CONFIG, max_compaction_lag_ms=10))
    for wait in (0, 10, 11):
        steps.append(build_batch([Record(0, steps.now_ms + wait, b"a", b"1")]))
    assert [one.base_offset for one in steps.log.segments] == [0, 2]


def test_a_tombstone_stays_for_delete_retention_ms():
    steps = log_of([(b"a", b"1"), (b"b", b"1")], [(b"a", None)])
    clean_once(steps)
    assert records(steps) == [(1, b"b", b"1"), (2, b"a", None)]
    headers = [header for _, header in scan(steps.read_all())]
    assert headers[1].delete_horizon_ms == steps.now_ms + 1000
    for waited, left in ((999, True), (1, False)):
        steps.now_ms += waited
        steps.log.cleaned_end = 0
        clean_once(steps)
        assert ((2, b"a", None) in records(steps)) is left
    assert (1, b"b", b"1") in records(steps)


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_a_tombstone_stays_for_the_longest_delete_retention_ms(codec):
    steps = Steps(replace(CONFIG, delete_retention_ms=LONG_MAX))
    for value in (b"1", None):
        steps.append(build_batch([Record(0, 1000, b"a", value)], codec=codec))
    steps.roll()
    steps.append(build_batch([Record(0, 1, b"active", b"")]))
    steps.sync_closed()
    for _ in range(2):
        clean_once(steps)
        steps.log.cleaned_end = 0
        header = parse_header(steps.read_all())
        (kept,) = read_records(steps.read_all()[: header.size])
        assert (kept.offset, kept.timestamp, kept.key, kept.value) == (1, 1000, b"a", None)
        assert (header.delete_horizon_ms or 0) > 1 << 60


@pytest.mark.parametrize("behind", [(), (b"2",)], ids=["last of its segment", "in a run"])
def test_a_tombstone_of_the_brokers_time_stays_readable_whatever_the_clients_time_was(behind):
    steps = Steps(replace(CONFIG, message_timestamp_type="LogAppendTime"))
    for value in (b"1", None):
        steps.append(build_batch([Record(0, (1 << 63) - 1, b"a", value)]))
    for value in behind:
        steps.append(build_batch([Record(0, 1, b"b", value)]))
    steps.roll()
    steps.append(build_batch([Record(0, 1, b"active", b"")]))
    steps.sync_closed()
    clean_once(steps)
    header = parse_header(steps.read_all())
    data = steps.read_all()[: header.size]
    assert header.delete_horizon_ms is not None
    check_batch(memoryview(data), header, NO_DEMANDS)
    (kept,) = read_records(data)
    assert (kept.offset, kept.timestamp, kept.value) == (1, header.max_timestamp, None)


@pytest.mark.parametrize("behind", [(), (b"2",)], ids=["last of its segment", "in a run"])
def test_a_smaller_batch_from_before_1970_has_minus_one_as_its_largest_time(behind):
    steps = Steps(CONFIG)
    steps.append(build_batch([Record(0, -700, b"a", b"1"), Record(0, -600, b"b", b"1")]))
    for value in behind:
        steps.append(build_batch([Record(0, 1, b"c", value)]))
    steps.roll()
    steps.append(build_batch([Record(0, 1, b"b", b"2")]))
    steps.roll()
    steps.append(build_batch([Record(0, 1, b"active", b"")]))
    steps.sync_closed()
    clean_once(steps)
    header = parse_header(steps.read_all())
    assert (header.record_count, header.base_timestamp, header.max_timestamp) == (1, -700, -1)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_smaller_batch_keeps_its_codec_offsets_times_and_sequence(codec):
    steps = Steps(CONFIG)
    made = [Record(0, 500 + at, b"k%d" % (at % 4), b"%d" % at, (("h", b"x"),)) for at in range(6)]
    made[5] = made[5]._replace(value=None)
    steps.append(build_batch(made, codec=codec, producer_id=7, producer_epoch=1, base_sequence=0))
    steps.append(build_batch(made[:1]))
    steps.roll()
    steps.append(build_batch([Record(0, 1, b"active", b"")]))
    steps.sync_closed()
    clean_once(steps)
    data = steps.read_all()
    header = parse_header(data)
    assert (header.codec, header.base_offset, header.last_offset) == (
        parse_header(build_batch(made, codec=codec)).codec,
        0,
        5,
    )
    assert (header.producer_id, header.base_sequence, header.last_sequence) == (7, 0, 5)
    assert header.max_timestamp == 505
    found = list(read_records(data[: header.size]))
    assert found == [made[at]._replace(offset=at) for at in (2, 3, 5)]


def test_a_swap_unlinks_the_files_that_an_earlier_one_replaced_under_the_same_names():
    steps = log_of([(b"a", b"1"), (b"a", b"2")])
    for value in (b"3", b"4"):
        clean_once(steps)  # it checks that no rename replaces a file
        assert f"{DIRECTORY}/00000000000000000000.log{DELETED}" in paths(steps.disk, DIRECTORY)
        steps.append(build_batch([Record(0, steps.now_ms, b"a", value)]))
        steps.roll()
        steps.perform_all()
        steps.sync_closed()
    steps.due()
    steps.perform_all()
    assert not [path for path in paths(steps.disk, DIRECTORY) if path.endswith(DELETED)]


def test_keys_that_exceed_the_table_are_cleaned_in_another_pass():
    steps = log_of([(b"%d" % (at % 5), b"%d" % at) for at in range(20)])
    ends = []
    while steps.log.cleaned_end < 20:
        clean_once(steps, memory=24 * 4)
        ends.append(steps.log.cleaned_end)
    assert len(ends) > 1
    assert [one[0] for one in records(steps)] == [15, 16, 17, 18, 19]


def test_a_table_too_small_for_one_batch_names_the_setting():
    steps = Steps(CONFIG)
    steps.append(build_batch([Record(0, 1, b"%d" % at, b"") for at in range(20)]))
    steps.roll()
    steps.append(build_batch([Record(0, 1, b"active", b"")]))
    steps.sync_closed()
    with pytest.raises(Corrupt, match=r"log\.cleaner\.dedupe\.buffer\.size"):
        clean_once(steps, memory=24 * 4)


@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize(("offset", "cleaned_end"), [(1 << 62, 0), (4, 0), (1, 0), (-1, 0), (1, 4)])
def test_a_batch_with_offsets_outside_its_segment_is_damage(codec, offset, cleaned_end):
    """No CRC covers a batch's base offset. A key at a wrong offset would remove the key's other records."""
    steps = Steps(CONFIG)
    for _ in range(3):
        steps.append(build_batch([Record(0, 1, b"%d" % at, b"1") for at in (1, 2)], codec=codec))
        steps.roll()
    steps.append(build_batch([Record(0, 1, b"active", b"")]))
    steps.sync_closed()
    steps.log.cleaned_end = cleaned_end
    path = steps.log.segments[1].path
    rest = steps.disk.read(path, 8, 1000)
    steps.disk.append(path, 0, [offset.to_bytes(8, "big", signed=True) + rest])
    with pytest.raises(Corrupt, match="a batch has the offsets"):
        clean_once(steps)


def batch_of(producer: int, offset: int, *, kind: int | None = None) -> memoryview:
    if kind is None:
        made = [Record(0, 1, b"k", b"v")]
    else:
        made = [Record(0, 1, b"\0\0" + kind.to_bytes(2, "big"), bytes(6))]
    return memoryview(
        build_batch(
            made,
            base_offset=offset,
            producer_id=producer,
            producer_epoch=0,
            transactional=True,
            control=kind is not None,
        )
    )


def test_a_marker_stays_while_a_batch_of_its_transaction_stays():
    one = Aborted(1, 0, 2, 3)
    transactions = Transactions([one])
    assert transactions.is_aborted(parse_header(batch_of(1, 0)))
    assert not transactions.is_aborted(parse_header(batch_of(2, 1)))
    abort, commit = batch_of(1, 2, kind=0), batch_of(2, 3, kind=1)
    assert not transactions.may_go(abort, parse_header(abort)), (
        "the batch was there at this cleaning"
    )
    assert transactions.kept == [one]
    assert not transactions.may_go(commit, parse_header(commit)), "its batch stays"
    again = Transactions([one])
    assert again.may_go(abort, parse_header(abort)), "a marker without a batch stays"
    assert again.may_go(commit, parse_header(commit))


def test_a_transaction_that_ended_before_the_first_batch_hides_no_later_one():
    """The dirty part is read alone: it may begin behind an aborted transaction that the index still lists."""
    transactions = Transactions([Aborted(1, 0, 2, 2)])
    assert not transactions.is_aborted(parse_header(batch_of(1, 5))), "the batch belongs to another"


def test_a_crash_at_each_step_of_a_cleaning_leaves_the_old_or_the_new_log():
    """Each change of the disk is once the last one; the crash loses all bytes that were not synced."""
    whole = log_of([(b"a", b"1"), (b"b", b"1")], [(b"a", b"2"), (b"c", None)], [(b"b", b"2")])
    old = records(whole)
    changes = 0
    new: list[object] = []
    while not new:
        steps = log_of([(b"a", b"1"), (b"b", b"1")], [(b"a", b"2"), (b"c", None)], [(b"b", b"2")])
        steps.flush()
        steps.perform_all()
        left = changes

        def stop(_operation: str, path: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise PowerLoss(path)

        steps.disk.before = stop
        try:
            clean_once(steps)
        except PowerLoss:
            pass
        else:
            new = records(steps)
        steps.disk.before = lambda _operation, _path: None
        for lost in (False, True):
            disk = steps.disk if not lost else _after_power_loss(steps.disk)
            log = run(
                disk,
                load(DIRECTORY, CONFIG, clean=False, recovery_point=5, now_ms=1),
            )
            again = Steps(CONFIG)
            again.log, again.disk = log, disk
            assert not log.recovered.damage
            assert records(again) in (old, [(2, b"a", b"2"), (3, b"c", None), (4, b"b", b"2")])
            assert not [one for one in paths(disk) if one.endswith((CLEANED, SWAP))]
        changes += 1
    assert new == [(2, b"a", b"2"), (3, b"c", None), (4, b"b", b"2")]
    assert changes > 15


class _Nothing:
    """Entropy by which a power loss keeps no unsynced byte."""

    def randint(self, low: int, _high: int) -> int:
        return low

    def random(self) -> float:
        return 0.0


def _after_power_loss(disk: SimDisk) -> SimDisk:
    disk.crash(_Nothing())
    return disk
