"""Idempotent producers: the log accepts a batch, refuses it, or recognises a repeat."""

from struct import pack, pack_into

import pytest
from crc32c import crc32c

from stratalog.errors import Corrupt, ErrorCode, Rejected
from stratalog.log.producers import ProducerStates
from stratalog.wire.batch import parse_header
from stratalog.wire.records import Record, build_batch

LAST = 2**31 - 1


def marker(*, epoch=0, producer_id=7, kind=1, coordinator=0):
    """A marker's header and bytes: `kind` is 0 for an abort, 1 for a commit."""
    key, value = pack(">hh", 0, kind), pack(">hi", 0, coordinator)
    data = build_batch(
        [Record(0, 100, key, value)],
        producer_id=producer_id,
        producer_epoch=epoch,
        transactional=True,
        control=True,
    )
    return parse_header(data), memoryview(data)


def header(sequence, count=1, *, producer_id=7, epoch=0, transactional=False, control=False):
    return parse_header(
        build_batch(
            [Record(0, 100 + at, None, b"x") for at in range(count)],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
            control=control,
        )
    )


def written(*headers):
    """Return the producers' states after these batches; the first batch has offset 1000."""
    states = ProducerStates()
    offset = 1000
    for one in headers:
        assert states.check(one) is None
        states.update(one, offset, now_ms=50)
        offset += one.record_count
    return states


def refusal(states, one):
    with pytest.raises(Rejected) as caught:
        states.check(one)
    return caught.value.code


def test_a_producer_may_begin_at_any_sequence_and_must_then_continue_it():
    states = written(header(40, 3), header(43))
    assert states.check(header(44)) is None
    assert refusal(states, header(45)) is ErrorCode.out_of_order_sequence_number


def test_the_last_five_batches_are_recognised_and_no_older_one():
    states = written(*(header(at * 2, 2) for at in range(6)))
    assert states.check(header(10, 2)) == (10, 11, 1010, 1011, 101)
    assert states.check(header(2, 2))[2:4] == (1002, 1003)
    assert refusal(states, header(0, 2)) is ErrorCode.out_of_order_sequence_number
    # The same first sequence with another count is no repeat.
    assert refusal(states, header(2, 1)) is ErrorCode.out_of_order_sequence_number


def test_sequences_wrap_to_zero_within_and_between_batches():
    states = written(header(LAST - 1, 2))
    assert states.check(header(0)) is None
    states = written(header(LAST, 3))
    assert states.get(7).batches[-1][:2] == (LAST, 1)
    assert states.check(header(2)) is None
    assert states.check(header(LAST, 3))[2:4] == (1000, 1002)


def test_a_new_epoch_begins_at_zero_and_fences_the_old():
    states = written(header(0, 5))
    assert refusal(states, header(5, epoch=1)) is ErrorCode.out_of_order_sequence_number
    states.update(header(0, epoch=1), 1005, now_ms=60)
    assert refusal(states, header(5, epoch=0)) is ErrorCode.invalid_producer_epoch
    assert states.check(header(0, epoch=1))[2] == 1005
    assert states.check(header(1, epoch=1)) is None
    # A batch of the old epoch is not a repeat in the new one.
    assert refusal(states, header(0, 5, epoch=1)) is ErrorCode.out_of_order_sequence_number


def test_transactions_are_open_until_their_marker():
    states = written(header(0, transactional=True), header(0, producer_id=8))
    states.update(header(1, transactional=True), 1005, now_ms=60)
    assert states.first_unstable_offset(2000) == 1000
    assert refusal(states, header(2)) is ErrorCode.invalid_txn_state
    states.expire(10**9, 1)
    assert states.get(7) is not None
    assert states.get(8) is None
    assert states.take(*marker(), 1006, now_ms=60) is None
    assert states.first_unstable_offset(1007) is None


def test_records_stay_unstable_until_the_marker_is_below_the_high_watermark():
    states = written(header(0, transactional=True))
    states.update(header(0, producer_id=8, transactional=True), 1001, now_ms=60)
    states.take(*marker(kind=0), 1002, now_ms=60)
    assert states.first_unstable_offset(1002) == 1000
    assert states.first_unstable_offset(1003) == 1001
    states.take(*marker(producer_id=8), 1003, now_ms=60)
    assert states.first_unstable_offset(1003) == 1001
    assert states.first_unstable_offset(1004) is None


def test_a_marker_of_an_older_producer_or_coordinator_is_refused():
    states = written(header(0, epoch=3, transactional=True))
    assert states.take(*marker(epoch=4, coordinator=5), 1001, now_ms=60) is None

    def refused(**of):
        with pytest.raises(Rejected) as caught:
            states.check_marker(*marker(**of))
        return caught.value.code

    assert refused(epoch=3, coordinator=6) is ErrorCode.invalid_producer_epoch
    assert refused(epoch=4, coordinator=4) is ErrorCode.transaction_coordinator_fenced
    states.check_marker(*marker(epoch=4, coordinator=5))
    # The marker's epoch is the producer's from here on, and begins at sequence 0 again.
    assert refusal(states, header(1, epoch=3)) is ErrorCode.invalid_producer_epoch
    assert states.check(header(0, epoch=4)) is None


def test_a_marker_of_the_second_protocol_has_a_higher_epoch_than_the_producer():
    states = written(header(0, epoch=3, transactional=True))
    states.check_raised(7, 4)
    states.check_raised(8, 0)
    for epoch in (2, 3):
        with pytest.raises(Rejected) as caught:
            states.check_raised(7, epoch)
        assert caught.value.code is ErrorCode.invalid_producer_epoch


def test_an_abort_names_its_transaction_and_the_next_stable_offset():
    states = written(header(0, 2, transactional=True))
    states.update(header(0, producer_id=8, transactional=True), 1002, now_ms=60)
    assert states.take(*marker(kind=0), 1003, now_ms=60) == (7, 1000, 1003, 1002)
    assert states.take(*marker(kind=0), 1004, now_ms=60) is None, "nothing was open"
    assert states.take(*marker(producer_id=8, kind=0), 1005, now_ms=60) == (8, 1002, 1005, 1006)


def test_a_producer_expires_by_the_time_of_its_append_not_by_its_timestamps():
    states = written(header(0))
    states.expire(50 + 999, 1000)
    assert states.get(7) is not None
    states.expire(50 + 1000, 1000)
    assert states.get(7) is None


def test_an_open_transaction_without_a_new_batch_is_late():
    states = written(header(0, transactional=True), header(0, producer_id=8))
    assert not states.has_late(50 + 100, 100)
    assert states.has_late(50 + 101, 100)
    states.update(header(1, transactional=True), 1002, now_ms=60)
    assert not states.has_late(50 + 101, 100), "it has a newer batch"
    states.take(*marker(), 1003, now_ms=60)
    assert not states.has_late(10**9, 100), "its marker has ended it"


def test_a_snapshot_keeps_every_remembered_batch():
    states = written(header(0, 2), header(2, 3), header(0, producer_id=8, transactional=True))
    back = ProducerStates.decode(states.encode(), now_ms=500)
    assert list(back.get(7).batches) == [(0, 1, 1000, 1001, 101), (2, 4, 1002, 1004, 102)]
    assert back.get(7).touched_ms == 500
    assert back.first_unstable_offset(2000) == 1005
    assert back.encode() == states.encode()


def test_any_flipped_bit_of_a_snapshot_is_noticed():
    data = written(header(0, 2)).encode()
    for at in range(len(data) * 8):
        broken = bytearray(data)
        broken[at // 8] ^= 1 << at % 8
        with pytest.raises(Corrupt):
            ProducerStates.decode(bytes(broken), now_ms=0)
    for size in range(len(data)):
        with pytest.raises(Corrupt):
            ProducerStates.decode(data[:size], now_ms=0)


def test_a_snapshot_with_a_wrong_count_and_a_sound_crc_is_corrupt():
    data = bytearray(written(header(0, 2)).encode())
    pack_into(">i", data, 6, -1)
    pack_into(">I", data, 2, crc32c(bytes(data[6:])))
    with pytest.raises(Corrupt):
        ProducerStates.decode(bytes(data), now_ms=0)
