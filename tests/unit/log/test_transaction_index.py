"""Transactions in a partition's log: the last stable offset, the abort index on disk, and the lists of aborted ones."""

from random import Random
from struct import pack

import pytest
from tests.log_steps import DIRECTORY, Steps, batch
from tests.sim.disk import paths

from stratalog.config import LogConfig
from stratalog.errors import Corrupt
from stratalog.log.archiving import segment_parts
from stratalog.log.effects import run
from stratalog.log.transaction_index import Aborted, check_index, entries, overlapping
from stratalog.wire.batch import parse_header
from stratalog.wire.records import Record, build_batch

SMALL = LogConfig(segment_bytes=2 * len(batch(1)))


def write(steps, producer_id, sequence):
    """One record of a producer's transaction."""
    steps.append(
        batch(
            1, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=True
        )
    )


def end(steps, producer_id, *, kind=0):
    """The marker of a producer's transaction: an abort, unless `kind` is 1."""
    data = build_batch(
        [Record(0, 1000, pack(">hh", 0, kind), pack(">hi", 0, 1))],
        producer_id=producer_id,
        producer_epoch=0,
        transactional=True,
        control=True,
    )
    appended = steps.log.append_as_leader(
        memoryview(data),
        parse_header(data),
        leader_epoch=0,
        now_ms=steps.now_ms,
        wall_ms=steps.now_ms,
        origin="coordinator",
    )
    steps.decided(appended.effects, lambda: steps.log.performed(appended))
    steps.perform_all()


def story(config=SMALL):
    """Offsets 0 to 7: producers 1 and 2 abort, producer 3 commits between them."""
    steps = Steps(config)
    for producer in (1, 2, 3):
        write(steps, producer, 0)
    write(steps, 1, 1)
    end(steps, 3, kind=1)
    end(steps, 1)
    write(steps, 3, 1)
    end(steps, 2)
    return steps


EXPECTED = [Aborted(1, 0, 5, 1), Aborted(2, 1, 7, 6)]


def index_of(log):
    return [one for segment in log.segments for one in entries(segment.transaction_index)]


def aborted(log, first, last):
    found = overlapping(log.segments_from(first), first, last)
    return [(one.producer_id, one.first_offset) for one in found]


def test_a_range_of_offsets_lists_the_aborted_transactions_in_it():
    log = story().log
    assert index_of(log) == EXPECTED
    assert aborted(log, 0, 8) == [(1, 0), (2, 1)]
    assert aborted(log, 0, 1) == [(1, 0)]
    assert aborted(log, 6, 7) == [(2, 1)]
    assert aborted(log, 5, 6) == [(1, 0), (2, 1)]
    assert log.first_unstable_offset(8) == 6, "producer 3 has its second transaction open"


def test_the_file_has_kafkas_bytes():
    steps = story(LogConfig())
    path = steps.log.segments[0].transaction_index_path
    assert path == f"{DIRECTORY}/00000000000000000000.txnindex"
    assert steps.disk.read(path, 0, 1000).hex() == "".join(
        f"0000{producer:016x}{first:016x}{last:016x}{stable:016x}"
        for producer, first, last, stable in EXPECTED
    )


@pytest.mark.parametrize("config", [SMALL, LogConfig()])
def test_a_clean_stop_and_a_crash_keep_the_index(config):
    steps = story(config)
    steps.flush()
    steps.perform_all()
    steps.disk.crash(Random(1))
    log = steps.load()
    assert index_of(log) == EXPECTED
    assert log.first_unstable_offset(8) == 6
    steps.log = log
    write(steps, 1, 2)
    end(steps, 1)
    steps.decided(log.close())
    steps.perform_all()
    again = steps.load(clean=True)
    assert index_of(again) == [*EXPECTED, Aborted(1, 8, 9, 6)]


@pytest.mark.parametrize(
    "damage", [b"\1", b"\0\1" + bytes(32), bytes(68)], ids=["torn", "version", "zeros"]
)
def test_a_damaged_index_is_rebuilt_from_the_log(damage):
    steps = story()
    steps.decided(steps.log.close())
    steps.perform_all()
    path = steps.log.segments_from(5)[0].transaction_index_path
    before = steps.disk.read(path, 0, 1000)
    steps.disk.append(path, len(before), (damage,))
    with pytest.raises(Corrupt, match=r"\.txnindex"):
        check_index(before + damage, path, 4)
    assert index_of(steps.load(clean=True)) == EXPECTED
    assert steps.disk.read(path, 0, 1000) == before


def test_a_truncation_cuts_the_index_and_opens_the_transaction_again():
    for config in (SMALL, LogConfig()):
        steps = story(config)
        run(steps.disk, steps.log.truncate_to(7, steps.now_ms))
        assert index_of(steps.log) == EXPECTED[:1]
        assert steps.log.first_unstable_offset(7) == 1
        run(steps.disk, steps.log.truncate_to(5, steps.now_ms))
        assert index_of(steps.log) == []
        assert steps.log.first_unstable_offset(5) == 0
        assert not [path for path in paths(steps.disk) if path.endswith(".txnindex")]


def test_the_archiver_gets_each_aborted_transaction_with_records_in_the_segment():
    log = story().log
    parts = segment_parts(log, 0)
    assert parts.transaction_index == b""
    assert [one.producer_id for one in parts.aborted] == [1, 2]
