"""Record batches as views: a broker checks them, assigns offsets and epoch, and stamps times."""

import pytest
from crc32c import crc32c

from stratalog.errors import Corrupt, ErrorCode, Rejected
from stratalog.wire.batch import (
    HEADER,
    HEADER_SIZE,
    assign,
    check_produced,
    crc_holds,
    last_whole,
    parse_header,
    scan,
    set_log_append_time,
)
from stratalog.wire.records import Record, build_batch, read_records

RECORDS = [Record(0, 1000 + n, b"key %d" % n, b"value %d" % n) for n in range(3)]


def batch(**changes):
    """Return a batch of three records with changed header fields and a valid CRC."""
    made = build_batch(RECORDS, base_offset=40, leader_epoch=2)
    values = parse_header(made)._replace(**changes)
    HEADER.pack_into(made, 0, values[0], values.size - 12, *values[2:])
    made[17:21] = crc32c(bytes(made[21:])).to_bytes(4, "big")
    return made


def refused(made, limit=1 << 20):
    with pytest.raises(Rejected) as error:
        check_produced(memoryview(made), max_batch_bytes=limit)
    return error.value.code


def test_the_header_has_the_values_of_the_built_batch():
    made = build_batch(
        RECORDS,
        codec="zstd",
        base_offset=40,
        leader_epoch=2,
        producer_id=7,
        producer_epoch=1,
        base_sequence=2**31 - 2,
        transactional=True,
    )
    header = parse_header(made)
    assert header.size == len(made)
    assert (header.base_offset, header.last_offset, header.next_offset) == (40, 42, 43)
    assert (header.leader_epoch, header.magic, header.codec) == (2, 2, 4)
    assert (header.base_timestamp, header.max_timestamp) == (1000, 1002)
    assert (header.producer_id, header.producer_epoch) == (7, 1)
    assert header.last_sequence == 0  # 2^31 - 2, 2^31 - 1, 0
    assert header.record_count == 3
    assert header.is_transactional
    assert not header.is_control
    assert not header.is_log_append_time
    assert crc_holds(made, 0, header)


def test_a_batch_without_a_producer_has_no_sequence():
    assert parse_header(batch()).last_sequence == -1


@pytest.mark.parametrize(
    "bad", [b"", bytes(60), bytes(61), batch(magic=1), batch(size=60), batch(size=-5)]
)
def test_a_malformed_header_is_corrupt(bad):
    with pytest.raises(Corrupt):
        parse_header(bad)


def test_scan_ends_at_a_torn_batch_and_raises_at_a_malformed_one():
    two = batch() + batch(base_offset=43)
    positions = [(at, header.base_offset) for at, header in scan(two + batch()[:-1])]
    assert positions == [(0, 40), (len(two) // 2, 43)]
    assert len(list(scan(two + bytes(60)))) == 2
    with pytest.raises(Corrupt):
        list(scan(two + bytes(61)))
    assert [header.base_offset for _, header in scan(two, len(two) // 2)] == [43]
    assert [header.base_offset for _, header in scan(two, 0, len(two) - 1)] == [40]


def test_a_sound_batch_is_accepted_with_any_offset():
    two = batch() + batch(base_offset=-7, last_offset_delta=2)
    headers = check_produced(memoryview(two), max_batch_bytes=len(two) // 2)
    assert [header.record_count for header in headers] == [3, 3]


@pytest.mark.parametrize("timestamp", [-2, -86_400_000, -(1 << 63), 1 << 62])
def test_the_header_says_nothing_against_a_timestamp(timestamp):
    made = batch(base_timestamp=timestamp, max_timestamp=timestamp)
    (header,) = check_produced(memoryview(made), max_batch_bytes=len(made))
    assert (header.base_timestamp, header.max_timestamp) == (timestamp, timestamp)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"record_count": 0, "last_offset_delta": -1}, ErrorCode.invalid_record),
        ({"record_count": -1}, ErrorCode.invalid_record),
        ({"record_count": 4}, ErrorCode.invalid_record),
        ({"last_offset_delta": 5}, ErrorCode.invalid_record),
        ({"attributes": 0x20}, ErrorCode.invalid_record),
        ({"producer_id": 5, "producer_epoch": 0}, ErrorCode.invalid_record),
        ({"producer_id": 5, "base_sequence": 0}, ErrorCode.invalid_record),
        ({"attributes": 5}, ErrorCode.unsupported_compression_type),
        ({"attributes": 7}, ErrorCode.unsupported_compression_type),
        ({"attributes": 8}, ErrorCode.invalid_timestamp),
        ({"magic": 0}, ErrorCode.invalid_record),
        ({"magic": 1}, ErrorCode.invalid_record),
        ({"magic": 3}, ErrorCode.corrupt_message),
        ({"magic": -1}, ErrorCode.corrupt_message),
        ({"size": 20}, ErrorCode.corrupt_message),
        ({"size": -1}, ErrorCode.corrupt_message),
        ({"size": 1000}, ErrorCode.invalid_record),
    ],
)
def test_the_fault_of_a_batch_decides_the_error_code(changes, code):
    assert refused(batch(**changes)) is code


def test_a_produced_field_must_be_whole_batches():
    made = batch()
    assert refused(b"") is ErrorCode.invalid_record
    assert refused(made[:-1]) is ErrorCode.invalid_record
    assert refused(made + made[:30]) is ErrorCode.invalid_record
    assert refused(made + b"\0") is ErrorCode.invalid_record
    assert refused(made, limit=len(made) - 1) is ErrorCode.message_too_large


def test_a_flip_of_any_bit_under_the_crc_is_found():
    made = batch()
    for position in [*range(17, 80, 5), len(made) - 1]:
        made[position] ^= 1
        assert refused(made) is ErrorCode.corrupt_message
        assert last_whole(made) == 0
        made[position] ^= 1
    check_produced(memoryview(made), max_batch_bytes=1 << 20)


def test_offset_and_epoch_are_assigned_in_place_and_the_crc_stays_valid():
    two = bytearray(batch() + batch())
    half = len(two) // 2
    assign(memoryview(two), half, 1 << 40, 9)
    header = parse_header(two, half)
    assert (header.base_offset, header.leader_epoch) == (1 << 40, 9)
    assert crc_holds(two, half, header)
    assert parse_header(two).base_offset == 40
    assert [record.offset for record in read_records(two[half:])] == [
        (1 << 40) + n for n in range(3)
    ]


def test_log_append_time_is_stamped_in_place():
    two = bytearray(batch() + batch())
    half = len(two) // 2
    stamped = set_log_append_time(memoryview(two), half, parse_header(two, half), 123456789)
    header = parse_header(two, half)
    assert header == stamped
    assert header.is_log_append_time
    assert header.max_timestamp == 123456789
    assert crc_holds(two, half, header)
    assert {record.timestamp for record in read_records(two[half:])} == {123456789}
    assert not parse_header(two).is_log_append_time


def test_last_whole_stops_at_the_first_batch_that_is_not_sound():
    one = batch()
    size = len(one)
    assert last_whole(b"") == 0
    assert last_whole(one * 3) == 3 * size
    for cut in (1, HEADER_SIZE - 1, HEADER_SIZE, size - 1):
        assert last_whole(one * 2 + one[:cut]) == 2 * size
    damaged = bytearray(one * 3)
    damaged[size + 70] ^= 0x80
    assert last_whole(damaged) == size
    assert last_whole(one + bytes(200)) == size
