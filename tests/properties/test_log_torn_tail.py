"""A crash at every byte of the last batch: earlier batches stay, and no part of the last one does."""

import pytest
from tests.log_steps import Steps, batch
from tests.sim.disk import PowerLoss

from stratalog.config import LogConfig
from stratalog.wire.batch import HEADER_SIZE

CONFIG = LogConfig(index_interval_bytes=50)


def prepared(config=CONFIG) -> tuple[Steps, bytes]:
    steps = Steps(config)
    for at in range(3):
        steps.append(batch(2, producer_id=5, producer_epoch=0, base_sequence=2 * at))
    return steps, steps.read_all()


def last_batch(**fields) -> bytearray:
    return batch(3, producer_id=5, producer_epoch=0, base_sequence=6, **fields)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_write_cut_at_any_byte_leaves_all_of_the_batch_or_nothing(codec):
    steps, before = prepared()
    whole = last_batch(codec=codec)
    for cut in range(len(whole) + 1):
        steps, before = prepared()
        appended = steps.decide(last_batch(codec=codec))
        steps.disk.tear_after(cut)
        with pytest.raises(PowerLoss):
            steps.perform_all()
        steps.disk.end_process()
        log = steps.load()
        complete = cut == len(whole)
        assert log.log_end_offset == (appended.last_offset + 1 if complete else 6), cut
        assert log.recovered.bytes_cut == (0 if complete else cut)
        assert steps.read_all() == before + (bytes(appended.batches[0][2]) if complete else b"")
        # The producer repeats the batch without an answer: the log accepts the batch once, never twice.
        again = steps.append(last_batch(codec=codec))
        assert again.duplicate == complete
        assert (again.base_offset, again.last_offset) == (6, 8)
        assert steps.log.log_end_offset == 9


def test_a_damaged_byte_anywhere_in_the_last_batch_cuts_it_off():
    steps, before = prepared()
    appended = steps.append(last_batch())
    path = steps.log.segments[0].path
    # Base offset and leader epoch lie outside the CRC: a lower offset or a nonsense length is seen, an epoch is not.
    outside = set(range(8)) | set(range(12, 16))
    for at in range(appended.size):
        if at in outside:
            continue
        damaged = Steps(CONFIG)
        damaged.disk = steps.disk.copy()
        damaged.disk.flip(path, appended.effects[-1].position + at)
        log = damaged.load()
        assert log.log_end_offset == 6, at
        assert damaged.read_all() == before
    assert appended.size > HEADER_SIZE


def test_a_torn_new_segment_is_emptied_and_the_log_continues_there():
    config = LogConfig(segment_bytes=350)
    for cut in (0, 1, 11, 12, 60, 61, 100):
        steps = Steps(config)
        steps.append(batch(2))
        steps.append(batch(2))
        before = steps.read_all()
        appended = steps.decide(batch(2))
        assert len(steps.log.segments) == 2, "the third batch was to begin a segment"
        while getattr(steps.queue[0][0][0], "path", None) != appended.ends[-1][0].path:
            steps.perform_effect()
        steps.disk.tear_after(cut)
        with pytest.raises(PowerLoss):
            steps.perform_all()
        log = steps.load()
        assert [segment.base_offset for segment in log.segments] == [0, 4]
        assert log.log_end_offset == 4
        assert steps.read_all() == before
        assert steps.append(batch(2)).base_offset == 4
        assert steps.load().log_end_offset == 6
