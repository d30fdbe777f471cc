"""Merges of small neighbours: the choice of segments, and that only the number of objects changes."""

from dataclasses import replace

import pytest
from tests.faulty_store import FaultyStore
from tests.transactional_log import Step, transactional_log
from tests.unit.table.buckets import Bucket
from tests.unit.tier.writing.test_tier_writer import KEEP, archive, objects, segments, tier_of

from stratalog.adapters.object_store import MemoryStore
from stratalog.errors import Corrupt
from stratalog.tier.checking.verify import ORPHAN_GRACE_MS
from stratalog.tier.formats.key_filter import PAGE_BYTES, may_hold
from stratalog.tier.reading.fetcher import Fetcher
from stratalog.tier.reading.reader import open_bucket
from stratalog.tier.writing.merging import MergeLimits, merged_segment
from stratalog.tier.writing.tier_writer import Retention

LARGE = MergeLimits(1 << 30, 1 << 40)


@pytest.fixture
def store():
    return FaultyStore(MemoryStore("memory://merging"))


def tier_with(store, count, each=10):
    tier = tier_of(store, epoch=3)
    made, end = segments(count, each=each)
    archive(tier, made, end)
    return tier


def bases(entries):
    return [entry.base_offset for entry in entries]


def test_eight_small_neighbours_are_merged_and_fewer_or_larger_ones_are_not(store):
    tier = tier_with(store, 7)
    assert tier.mergeable(LARGE) == ()
    tier = tier_with(store, 9)
    assert bases(tier.mergeable(LARGE)) == [10 * n for n in range(9)]
    size = tier.manifest.segments[0].data_size
    assert bases(tier.mergeable(MergeLimits(8 * size + 100, 1 << 40))) == [10 * n for n in range(8)]
    assert tier.mergeable(MergeLimits(7 * size, 1 << 40)) == ()
    # Eight segments of ten records, one record each millisecond.
    assert bases(tier.mergeable(MergeLimits(1 << 30, 79))) == [10 * n for n in range(8)]
    assert tier.mergeable(MergeLimits(1 << 30, 78)) == ()


def test_a_merged_segment_is_not_copied_again_for_a_few_more(store):
    tier = tier_with(store, 30)
    tier.merge(tier.mergeable(LARGE), 20)
    made, end = segments(38)
    archive(tier, made, end)
    assert bases(tier.mergeable(LARGE)) == [10 * n for n in range(30, 38)]


def test_a_merged_segment_has_a_key_filter_of_its_own_if_one_of_them_has(store):
    tier = tier_of(store, epoch=3)
    made, end = segments(8)
    archive(tier, [*made[:-1], replace(made[-1], has_key_filter=True)], end)
    assert [entry.key_pages for entry in tier.manifest.segments] == [0] * 7 + [1]
    (merged,) = tier.merge(tier.mergeable(LARGE), 20).recent()
    assert merged.entry.key_pages == 1
    page = store.get_range(merged.path, merged.entry.data_size, PAGE_BYTES)
    assert all(may_hold(page, b"key %d" % n, 1, merged.path) for n in range(end))


def test_readers_find_the_same_batches_also_with_an_older_version(store):
    tier = tier_with(store, 8)
    before = tier.manifest
    fetcher = Fetcher(store)
    batches = {
        offset: b"".join(fetcher.read(before.recent_segment_for(offset), offset, 1).buffers)
        for offset in range(80)
    }
    after = tier.merge(tier.mergeable(LARGE), 20)
    (merged,) = after.recent()
    assert (merged.entry.base_offset, merged.entry.last_offset) == (0, 79)
    assert merged.entry.records == 80
    assert (merged.entry.min_timestamp, merged.entry.max_timestamp) == (1000, 1079)
    assert after.tiered_end == 80
    for manifest in (before, after):
        for offset, batch in batches.items():
            assert (
                b"".join(fetcher.read(manifest.recent_segment_for(offset), offset, 1).buffers)
                == batch
            )
    assert tier.lookup.at_timestamp(1042).path == merged.path
    found = fetcher.offset_for_timestamp(merged, 1042)
    assert found.offset == 42
    assert len(objects(store)) == 9, "during the grace"
    tier.expire(2000, KEEP)
    assert objects(store) == [merged.path]


def test_a_damaged_object_is_not_merged_and_delays_no_neighbour(store):
    tier = tier_with(store, 18)
    run = tier.mergeable(LARGE)
    path = tier.manifest.path_of(run[8])
    store.fault = lambda operation, asked: "wrong" if asked == path else None
    with pytest.raises(Corrupt):
        tier.merge(run, 20)
    assert bases(tier.manifest.segments) == [10 * n for n in range(18)]
    for first in (0, 90):
        run = tier.mergeable(LARGE)
        assert bases(run) == list(range(first, first + 80 + 10 * (first > 0), 10))
        tier.merge(run, 30)
    assert tier.mergeable(LARGE) == ()
    assert bases(segment.entry for segment in tier.manifest.recent()) == [0, 80, 90]


def test_after_a_failed_merge_sound_objects_are_not_merged_again_each_time(store):
    tier = tier_with(store, 8)
    run = tier.mergeable(LARGE)
    path = tier.manifest.path_of(run[4])
    faults = iter(["wrong"])
    store.fault = lambda operation, asked: next(faults, None) if asked == path else None
    with pytest.raises(Corrupt):
        tier.merge(run, 20)
    assert tier.mergeable(LARGE) == ()


@pytest.mark.parametrize("is_known", [True, False])
def test_aborted_transactions_are_known_for_all_segments_or_for_none(is_known):
    """A transaction of several segments is in the list of each, and once in the list of the merged segment."""
    steps = [step for n in range(5) for step in (Step(n, 2), Step(9, 1), Step(n, 0, kind=n % 2))]
    log = transactional_log(steps)
    bucket = Bucket(MemoryStore("memory://aborted"))
    bucket.create("t")
    batches = [[one] for one in log.batches]
    bucket.archive("t", 0, batches, aborted=log.aborted if is_known else None)
    found = open_bucket(bucket.store)
    manifest = found.manifest(found.topic("t"), 0)
    merged = merged_segment(bucket.store, list(found.live(manifest)))
    assert merged.aborted == (tuple(log.aborted) if is_known else None)


def test_a_segment_that_retention_removed_meanwhile_is_not_restored(store):
    tier = tier_with(store, 9)
    run = tier.mergeable(LARGE)
    tier.expire(20, Retention(-1, -1, 10, 0, ORPHAN_GRACE_MS))
    after = tier.merge(run, 30)
    assert bases(segment.entry for segment in after.recent()) == [10 * n for n in range(1, 9)]
