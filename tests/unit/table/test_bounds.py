"""Bounds: words, JSON and timestamps become offsets, and offsets become ranges."""

from collections.abc import Mapping
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import DataLoss
from stratalog.table.bounds import limited, ranges, resolve
from stratalog.table.log import Extent, LogTopic, Snapshot
from stratalog.table.options import EARLIEST, LATEST, Bound
from stratalog.wire.ids import TopicIdPartition

T = UUID(int=1)
SNAPSHOT = Snapshot(
    {T: LogTopic(T, "t", (0, 1), gaps=False, partition_count=2)},
    {(T, 0): Extent(5, 10, None), (T, 1): Extent(0, 7, None)},
)


def ask_nothing(_wanted: Mapping[TopicIdPartition, int]) -> dict[TopicIdPartition, int | None]:
    raise AssertionError("no timestamp was given")


def meant(bound: Bound, *, late_is_error: bool = True) -> list[int]:
    def ask(wanted: Mapping[TopicIdPartition, int]) -> dict[TopicIdPartition, int | None]:
        """Offset n has timestamp 100 n."""
        return {
            key: at if (at := -(-when // 100)) < SNAPSHOT.extents[key].end else None
            for key, when in wanted.items()
        }

    return list(resolve(bound, SNAPSHOT, ask, "starting", late_is_error=late_is_error).values())


def test_each_bound_becomes_an_offset() -> None:
    assert meant(Bound(everywhere=EARLIEST)) == [5, 0]
    assert meant(Bound(everywhere=LATEST)) == [10, 7]
    assert meant(Bound(offsets={"t": {0: 6, 1: LATEST}})) == [6, 7]
    assert meant(Bound(offsets={"t": {0: EARLIEST, 1: 3}})) == [5, 3]


def test_timestamps_become_offsets() -> None:
    assert meant(Bound(timestamp=550)) == [6, 6]
    assert meant(Bound(timestamps={"t": {0: 800, 1: 0}})) == [8, 0]
    with pytest.raises(ValueError, match="t-1 has no record as young as 800"):
        meant(Bound(timestamp=800))
    assert meant(Bound(timestamp=800), late_is_error=False) == [8, 7]


@pytest.mark.parametrize(
    ("offsets", "says"),
    [
        ({"t": {0: 6}}, "'startingOffsets' says nothing about t-1"),
        ({"t": {0: 6, 1: 0, 2: 0}}, "'startingOffsets' names t-2, which is not read"),
        ({"t": {0: 6, 1: 0}, "s": {0: 1}}, "'startingOffsets' names s-0"),
    ],
)
def test_json_must_name_exactly_the_read_partitions(
    offsets: dict[str, dict[int, int]], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        meant(Bound(offsets=offsets))


def planned(
    first: tuple[int, int], end: tuple[int, int], *, fail: bool
) -> list[tuple[int, int, int]]:
    keys = list(SNAPSHOT.extents)
    found = ranges(
        SNAPSHOT,
        dict(zip(keys, first, strict=True)),
        dict(zip(keys, end, strict=True)),
        fail_on_data_loss=fail,
    )
    return [(one.partition, one.first, one.end) for one, _ in found]


def test_empty_ranges_are_left_out() -> None:
    assert planned((5, 0), (10, 7), fail=True) == [(0, 5, 10), (1, 0, 7)]
    assert planned((6, 7), (6, 7), fail=True) == []
    assert planned((9, 0), (8, 1), fail=True) == [(1, 0, 1)]


def test_missing_records_are_data_loss_unless_the_options_allow_them() -> None:
    with pytest.raises(DataLoss, match=r"t-0: offsets 3 to 4 are gone \(the log starts at 5\)"):
        planned((3, 0), (10, 7), fail=True)
    assert planned((3, 0), (10, 7), fail=False) == [(0, 5, 10), (1, 0, 7)]
    with pytest.raises(DataLoss, match="t-1: offset 9 lies behind the log's end 7"):
        planned((5, 0), (10, 9), fail=True)
    assert planned((5, 8), (10, 9), fail=False) == [(0, 5, 10)]


@given(
    st.dictionaries(
        st.integers(0, 9), st.tuples(st.integers(0, 1000), st.integers(0, 1000)), max_size=6
    ),
    st.integers(1, 500),
)
def test_a_limit_always_advances_and_only_rounding_exceeds_it(
    partitions: dict[int, tuple[int, int]], most: int
) -> None:
    first = {(T, index): begin for index, (begin, _) in partitions.items()}
    end = {(T, index): begin + size for index, (begin, size) in partitions.items()}
    found = limited(first, end, most)
    waiting = sum(size for _, size in partitions.values())
    moved = sum(found[key] - first[key] for key in found)
    assert all(first[key] <= found[key] <= end[key] for key in end)
    # A share below one is rounded up, as in Spark's Kafka source, so that no small partition starves.
    assert moved <= most + len(partitions)
    assert moved > 0 or waiting == 0
    if waiting <= most:
        assert found == end
