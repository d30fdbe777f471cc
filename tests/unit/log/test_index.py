"""Sparse indexes: in memory, as files, and searched in files."""

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sim.disk import SimDisk

from stratalog.errors import Corrupt
from stratalog.log.effects import run
from stratalog.log.index import OFFSET_ENTRY, TIME_ENTRY, OffsetIndex, TimeIndex, search_file


def offset_index(*entries):
    index = OffsetIndex()
    for offset, position in entries:
        index.add(offset, position)
    return index


def time_index(*entries):
    index = TimeIndex()
    for timestamp, offset in entries:
        index.add(timestamp, offset)
    return index


def test_an_offset_index_is_written_as_pairs_of_big_endian_ints():
    index = offset_index((4, 100), (9, 70_000))
    assert index.encode() == pack(">iiii", 4, 100, 9, 70_000)
    back = OffsetIndex.decode(index.encode(), 80_000)
    assert (list(back.offsets), list(back.positions)) == ([4, 9], [100, 70_000])


def test_the_floor_of_an_offset_is_the_last_entry_at_or_below_it():
    index = offset_index((4, 100), (9, 200))
    first, second = (4, 100), (9, 200)
    found = [index.floor(offset) for offset in (0, 3, 4, 8, 9, 50)]
    assert found == [None, None, first, first, second, second]


def test_a_time_index_keeps_only_growing_timestamps():
    index = time_index((-1, 0), (50, 3), (50, 5), (40, 6), (60, 9))
    assert index.encode() == pack(">qiqi", 50, 3, 60, 9)
    assert list(TimeIndex.decode(index.encode()).timestamps) == [50, 60]


def test_records_as_old_as_an_entry_may_lie_before_it():
    index = time_index((50, 3), (60, 9))
    assert [index.floor(t) for t in (10, 50, 51, 60, 61)] == [0, 0, 3, 3, 9]


def test_truncation_forgets_entries_at_the_offset_and_above():
    index, times = offset_index((4, 100), (9, 200)), time_index((50, 3), (60, 9))
    index.truncate(9)
    times.truncate(9)
    assert (list(index.offsets), list(times.timestamps)) == ([4], [50])


@pytest.mark.parametrize(
    "data",
    [
        b"1234567",
        pack(">iiii", 4, 100, 4, 200),
        pack(">iiii", 4, 100, 9, 100),
        pack(">ii", -1, 0),
        pack(">ii", 4, 1000),
    ],
)
def test_a_malformed_offset_index_is_corrupt(data):
    with pytest.raises(Corrupt):
        OffsetIndex.decode(data, 1000)


@pytest.mark.parametrize(
    "data",
    [b"12345678901", pack(">qiqi", 5, 1, 5, 2), pack(">qiqi", 5, 1, 6, 1), pack(">qi", -1, 0)],
)
def test_a_malformed_time_index_is_corrupt(data):
    with pytest.raises(Corrupt):
        TimeIndex.decode(data)


@given(
    count=st.sampled_from([0, 1, 2, 4095, 4096, 4097, 20_000]),
    key=st.integers(-5, 60_010),
    entry=st.sampled_from([OFFSET_ENTRY, TIME_ENTRY]),
)
def test_a_search_in_a_file_finds_the_same_as_a_linear_scan(count, key, entry):
    disk = SimDisk()
    values = [(at * 3, at) for at in range(count)]
    disk.append("i", 0, [b"".join(entry.pack(*value) for value in values)])
    below = [value for value in values if value[0] <= key]
    expected = below[-1] if below else None
    assert run(disk, search_file("i", count * entry.size, entry, key)) == expected


def test_a_file_shorter_than_it_was_is_corrupt():
    disk = SimDisk()
    disk.append("i", 0, [OFFSET_ENTRY.pack(1, 2)])
    with pytest.raises(Corrupt, match="i is shorter"):
        run(disk, search_file("i", 20_000 * 8, OFFSET_ENTRY, 5))
