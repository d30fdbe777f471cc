"""The plan: every offset is in exactly one task, from the bucket or the broker, and tasks have similar sizes."""

from itertools import accumulate, pairwise
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.kernels.missing import Missing
from stratalog.table.plan import BrokerTask, BucketTask, Range, Task, plan
from stratalog.tier.formats.manifest import Entry, Manifest, RemoteSegment, SegmentState
from stratalog.wire.ids import topic_id_text

TOPIC = UUID(int=5)
MIB = 1 << 20


def entry(base: int, last: int, data_size: int = 1000, *, live: bool = True) -> Entry:
    return Entry(
        id=topic_id_text(UUID(int=base)),
        base_offset=base,
        last_offset=last,
        leader_epoch=0,
        size=data_size + 100,
        data_size=data_size,
        records=last - base + 1,
        min_timestamp=0,
        max_timestamp=0,
        min_timestamp_exact=True,
        data_crc=0,
        footer_crc=0,
        leader_epochs=((0, 0),),
        state=SegmentState.COPY_FINISHED if live else SegmentState.DELETE_STARTED,
        state_ms=0,
    )


def live_of(*entries: Entry) -> list[RemoteSegment]:
    manifest = Manifest(
        cluster_id="c",
        topic_id=topic_id_text(TOPIC),
        topic="t",
        partition=0,
        tiered_end=entries[-1].last_offset + 1,
        segments=entries,
    )
    return list(manifest.recent())


def wanted(first: int, end: int) -> Range:
    return Range("t", TOPIC, 0, first, end)


def shape(tasks: list[Task]) -> list[tuple[str, int, int]]:
    return [
        ("bucket" if isinstance(task, BucketTask) else "broker", task.wanted.first, task.wanted.end)
        for task in tasks
    ]


def test_the_seam_is_the_end_of_the_manifest() -> None:
    held = live_of(entry(0, 9), entry(10, 19))
    tasks = plan([(wanted(3, 25), held)], has_broker=True, min_tasks=None)
    assert shape(tasks) == [("bucket", 3, 20), ("broker", 20, 25)]
    tasks = plan([(wanted(3, 15), held)], has_broker=True, min_tasks=None)
    assert shape(tasks) == [("bucket", 3, 15)]
    tasks = plan([(wanted(20, 25), held)], has_broker=True, min_tasks=None)
    assert shape(tasks) == [("broker", 20, 25)]


def test_offsets_of_deleted_or_missing_segments_are_read_from_the_broker() -> None:
    held = live_of(entry(0, 9, live=False), entry(10, 19))
    tasks = plan([(wanted(0, 20), held)], has_broker=True, min_tasks=None)
    assert shape(tasks) == [("broker", 0, 10), ("bucket", 10, 20)]
    assert shape(plan([(wanted(0, 5), [])], has_broker=True, min_tasks=None)) == [("broker", 0, 5)]


def test_without_a_broker_offsets_that_the_bucket_lacks_are_missing() -> None:
    with pytest.raises(Missing, match="t-0 in the bucket: offsets 10 to 11 are missing"):
        plan([(wanted(0, 12), live_of(entry(0, 9)))], has_broker=False, min_tasks=None)


def test_small_segments_share_a_task_and_large_ones_are_divided() -> None:
    small = [entry(number * 10, number * 10 + 9, 3 * MIB) for number in range(8)]
    tasks = plan([(wanted(0, 80), live_of(*small))], has_broker=False, min_tasks=None)
    assert [len(task.pieces) for task in tasks if isinstance(task, BucketTask)] == [2, 2, 2, 2]
    large = live_of(entry(0, 9, 3 * MIB), entry(10, 19, 1024 * MIB), entry(20, 29, 3 * MIB))
    tasks = plan([(wanted(0, 30), large)], has_broker=False, min_tasks=None)
    sizes = [
        sum(piece.to_byte - piece.from_byte for piece in task.pieces)
        for task in tasks
        if isinstance(task, BucketTask)
    ]
    assert sizes == [3 * MIB, *[128 * MIB] * 8, 3 * MIB]


def test_min_partitions_makes_smaller_tasks() -> None:
    held = live_of(entry(0, 999, 40 * MIB))
    tasks = plan([(wanted(0, 1200), held)], has_broker=True, min_tasks=11)
    assert len([task for task in tasks if isinstance(task, BucketTask)]) >= 10
    tasks = plan([(wanted(0, 30), []), (wanted(0, 10), [])], has_broker=True, min_tasks=4)
    assert shape(tasks) == [
        *[("broker", first, first + 10) for first in (0, 10, 20)],
        ("broker", 0, 10),
    ]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.integers(1, 30), st.data())
def test_no_task_has_more_offsets_than_are_allowed(
    sizes: list[int], most: int, data: st.DataObject
) -> None:
    bases = [0, *accumulate(sizes)]
    held = live_of(*(entry(first, end - 1, 100 * MIB) for first, end in pairwise(bases)))
    first = data.draw(st.integers(0, bases[-1]))
    end = data.draw(st.integers(first, bases[-1] + 20))
    ranges = [(wanted(first, end), held)]
    tasks = plan(ranges, has_broker=True, min_tasks=None, max_records=most)
    assert all(0 < task.wanted.end - task.wanted.first <= most for task in tasks)
    edges = [first, *(task.wanted.end for task in tasks)]
    assert edges == [*(task.wanted.first for task in tasks), end]
    for task in tasks:
        for piece in task.pieces if isinstance(task, BucketTask) else ():
            found = piece.segment.entry
            assert (piece.from_byte, piece.to_byte) == (0, found.data_size)
            assert found.base_offset < task.wanted.end
            assert found.last_offset >= task.wanted.first


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_every_offset_is_in_exactly_one_task(data: st.DataObject) -> None:
    entries: list[Entry] = []
    base = data.draw(st.integers(0, 30))
    for _ in range(data.draw(st.integers(1, 6))):
        last = base + data.draw(st.integers(0, 20))
        size = data.draw(st.integers(1, 100)) * MIB
        live = data.draw(st.booleans()) or bool(entries)
        entries.append(entry(base, last, size, live=live))
        base = last + 1
    first = data.draw(st.integers(0, base + 10))
    end = data.draw(st.integers(first, base + 20))
    min_tasks = data.draw(st.one_of(st.none(), st.integers(1, 40)))
    held = [(wanted(first, end), live_of(*entries))]
    tasks = plan(held, has_broker=True, min_tasks=min_tasks)
    live_spans = {
        one.base_offset: one for one in entries if one.state is SegmentState.COPY_FINISHED
    }
    cursor = first
    bytes_read: dict[int, list[tuple[int, int]]] = {}
    for task in tasks:
        span = task.wanted
        if isinstance(task, BrokerTask):
            assert span.first == cursor
            held = [one for one in live_spans.values() if one.base_offset < span.end]
            assert all(one.last_offset < span.first for one in held)
        else:
            assert span.first <= cursor
            for piece in task.pieces:
                found = piece.segment.entry
                bytes_read.setdefault(found.base_offset, []).append(
                    (piece.from_byte, piece.to_byte)
                )
                assert found.base_offset < span.end
                assert found.last_offset >= span.first
        cursor = span.end
    assert cursor == end
    for base_offset, cuts in bytes_read.items():
        edges = [0] + [stop for _, stop in cuts]
        assert cuts == list(pairwise(edges)), "the parts of a segment must cover it without overlap"
        assert edges[-1] == live_spans[base_offset].data_size
