"""Manifests that spill: readers find archived entries, retention removes them, and few archives are read.

Method: a partition's tier with small limits; every answer is compared with the archived segments. Ten years of hourly
segments are a generated manifest.
"""

from contextlib import suppress

import pytest
from msgspec.structs import replace
from tests.faulty_store import FaultyStore
from tests.unit.tier.formats.test_archive_manifest import hours
from tests.unit.tier.segments import closed, log_bytes
from tests.unit.tier.writing.test_tier_writer import (
    KEEP,
    TOPIC_ID,
    archive,
    objects,
    segments,
    tier_of,
)

from stratalog.adapters.object_store import MemoryStore
from stratalog.errors import Corrupt, Unavailable
from stratalog.tier.bucket.commit import load_latest, run
from stratalog.tier.bucket.identity import (
    claim_bucket,
    delete_topic,
    register_topic,
    remove_deleted_topics,
)
from stratalog.tier.checking.verify import sweep, verify
from stratalog.tier.formats.manifest import decode, encode
from stratalog.tier.reading.archives import ArchiveManifests
from stratalog.tier.reading.fetcher import Fetcher
from stratalog.tier.reading.reader import open_bucket
from stratalog.tier.writing.merging import MergeLimits
from stratalog.tier.writing.spilling import SpillLimits
from stratalog.tier.writing.tier_writer import Retention
from stratalog.wire.ids import topic_id_text
from stratalog.wire.records import Record, build_batch

LIMITS = SpillLimits(segments=4, kept=2, archive_segments=6)
HOUR = 3_600_000


class CountingStore(MemoryStore):
    """A store that records the paths of its reads."""

    def __init__(self):
        super().__init__("memory://counting")
        self.read = []

    def get(self, path):
        self.read.append(path)
        return super().get(path)


@pytest.fixture
def store():
    made = CountingStore()
    claim_bucket(made, "cluster", 0)
    register_topic(made, "cluster", TOPIC_ID, "topic", 1, {}, 0)
    return made


@pytest.fixture
def tier(store):
    return tier_of(store, spill_limits=LIMITS)


def filled(tier, count=20, now_ms=10):
    """Archive segments of ten records, one record each millisecond from 1000 on; spill as a leader does."""
    made, end = segments(count)
    for one in made:
        archive(tier, [one], end, now_ms=now_ms)
        tier.spill(now_ms)
    return made


def archives(store):
    return [info.path for info in store.list("") if "/archive/" in info.path]


def bases(store, manifest, **wanted):
    live = ArchiveManifests(store).live(manifest, **wanted)
    return [segment.entry.base_offset for segment in live]


def all_of(count, first=0):
    return [10 * number for number in range(first, count)]


def sound(store):
    assert verify(store, now_ms=1 << 50, grace_ms=0) == []


def test_every_offset_and_time_is_found_after_a_spill(store, tier):
    made = filled(tier)
    manifest = tier.manifest
    assert len(list(manifest.recent())) <= 4
    assert [one.segments for one in manifest.live_archives()] == [6, 6, 6]
    assert bases(store, manifest) == all_of(20)
    assert (manifest.start_offset, manifest.tiered_end) == (0, 200)
    assert manifest.live_bytes == sum(len(b"".join(one.read())) for one in made)
    fresh = tier_of(store, node=2, epoch=2)
    for one in (tier, fresh):
        assert one.lookup.at_if_loaded(195).entry.base_offset == 190
        assert one.lookup.at(200) is None
        for offset in range(200):
            assert one.lookup.at(offset).entry.base_offset == offset // 10 * 10
            found = one.lookup.at_timestamp(1000 + offset)
            assert found.entry.base_offset == offset // 10 * 10
        assert one.lookup.at_timestamp(1035, 80).entry.base_offset == 80
        assert one.lookup.at_timestamp(1200) is None
        assert one.lookup.at_max_timestamp().entry.base_offset == 190
    fetcher = Fetcher(store)
    for number, one in enumerate(made):
        at = 10 * number
        assert b"".join(fetcher.read(tier.lookup.at(at), at, 1).buffers) == b"".join(one.read())
    sound(store)


def test_the_latest_record_at_or_behind_an_offset_is_found_in_any_archive(store):
    """The times fall: each segment's first record is its latest, and so is each archive's first segment."""
    tier = tier_of(store, spill_limits=LIMITS)
    for number in range(20):
        records = [Record(n, 10_000 - 10 * number - n, None, b"v") for n in range(10)]
        data = build_batch(records, base_offset=10 * number, leader_epoch=3)
        end = 10 * number + 10
        archive(tier, [closed(bytes(data), 10 * number, end)], end)
        tier.spill(10)
    fetcher = Fetcher(store)
    for offset in range(200):
        segment = tier.lookup.at_max_timestamp(offset)
        assert segment.entry.base_offset == offset // 10 * 10
        found = fetcher.latest(segment, offset)
        assert (found.offset, found.timestamp) == (offset, 10_000 - offset)
    assert tier.lookup.at_max_timestamp(200) is None
    assert fetcher.latest(segment, 200) is None


def test_a_repeated_lookup_and_its_successors_read_no_archive(store, tier):
    filled(tier)
    fresh = tier_of(store, node=2, epoch=2)
    assert fresh.lookup.at_if_loaded(13) is None
    assert fresh.lookup.at(13).entry.base_offset == 10
    read = len(store.read)
    assert fresh.lookup.at_if_loaded(25).entry.base_offset == 20
    assert fresh.lookup.at_if_loaded(59).entry.base_offset == 50
    assert fresh.lookup.at_if_loaded(60) is None, "offset 60 must need the next archive manifest"
    assert fresh.lookup.time_span_at(60) == (1060, 1119), (
        "the lookup needs no read at the precision of one archive manifest"
    )
    assert fresh.lookup.time_span_at(10_000) is None
    assert len(store.read) == read


def test_a_range_of_offsets_or_time_reads_only_its_archives(store, tier):
    filled(tier)
    manifest = tier.manifest
    for wanted, expected, opened in [
        ({"first": 65, "end": 90}, [60, 70, 80], 1),
        ({"first": 55, "end": 61}, [50, 60], 2),
        ({"first": 185}, [180, 190], 0),
        ({"end": 5}, [0], 1),
        ({"since_ms": 1175}, [170, 180, 190], 1),
        ({"since_ms": 1180}, [180, 190], 0),
        ({"since_ms": 1065, "first": 30, "end": 75}, [60, 70], 1),
    ]:
        store.read.clear()
        assert bases(store, manifest, **wanted) == expected, wanted
        assert len([path for path in store.read if "/archive/" in path]) == opened, wanted


def test_a_full_archive_is_final_and_a_replaced_one_is_removed_after_the_grace(store, tier):
    filled(tier, 20)
    named = [one for one in tier.manifest.archives if one.segments == 0]
    assert named, "archives that grow must be replaced"
    assert len(archives(store)) == len(tier.manifest.archives)
    tier.expire(1009, KEEP)
    assert len(archives(store)) == len(named) + 3, (
        "readers of older versions need the replaced archives"
    )
    manifest = tier.expire(1010, KEEP)
    assert len(archives(store)) == len(manifest.archives) == 3
    assert bases(store, manifest) == all_of(20)
    assert len(objects(store)) == 20
    sound(store)


def test_retention_removes_part_of_an_archive_and_then_the_whole(store, tier):
    filled(tier)
    pinned = tier.manifest

    def expired(now_ms, ms):
        return tier.expire(now_ms, Retention(ms, -1, 0, 0, grace_ms=1000))

    manifest = expired(2049, 1000)  # greatest timestamps are 1009, 1019, …
    assert (manifest.start_offset, manifest.log_start_offset) == (40, 40)
    assert bases(store, manifest) == all_of(20, 4)
    assert tier.lookup.at(39) is None
    assert tier.lookup.at(40).entry.base_offset == 40
    assert len(objects(store)) == 20
    assert bases(store, pinned) == all_of(20), "an older version still has every segment"
    assert expired(3049, 2000).start_offset == 40
    assert len(objects(store)) == 16, "the grace is over"
    manifest = expired(3150, 2000)
    assert manifest.start_offset == 150
    assert bases(store, manifest) == all_of(20, 15)
    assert [one.segments for one in manifest.live_archives()] == [3]
    manifest = expired(4150, 3000)
    assert (len(objects(store)), len(archives(store))) == (5, 1)
    assert len(manifest.archives) == 1
    sound(store)
    manifest = expired(10_000, 0)
    assert (manifest.start_offset, manifest.tiered_end) == (200, 200)
    manifest = expired(11_000, 0)
    assert (manifest.archives, manifest.segments) == ((), ())
    assert (objects(store), archives(store)) == ([], [])
    sound(store)


@pytest.mark.parametrize("young", [0, 2, 7, 11])
def test_segments_after_a_young_one_stay_however_old_their_records_are(store, tier, young):
    """Times may go back (a producer sets them): a hole in the log would be worse than a late expiry."""
    end = 0
    for number in range(12):
        data, next_end = log_bytes(end, [10], start_ms=100_000 if number == young else 1000)
        archive(tier, [closed(data, end, next_end)], next_end)
        tier.spill(10)
        end = next_end
    assert len(list(tier.manifest.live_archives())) == 2
    manifest = tier.expire(50_000, Retention(10_000, -1, 0, 0, grace_ms=0))
    assert bases(store, manifest) == all_of(12, young)
    assert len(objects(store)) == 12 - young
    sound(store)
    assert bases(store, tier.expire(120_000, Retention(10_000, -1, 0, 0, grace_ms=0))) == []


@pytest.mark.parametrize("left", range(21))
def test_retention_by_size_and_by_deleted_records_is_exact_after_a_spill(store, tier, left):
    filled(tier)
    size = tier.manifest.segments[-1].data_size
    kept = sum(
        one.entry.data_size
        for one in ArchiveManifests(store).live(tier.manifest, first=200 - 10 * left)
    )
    manifest = tier.expire(10, Retention(-1, kept, 0, 0, 0))
    assert bases(store, manifest) == all_of(20, 20 - left)
    if left:
        start = 200 - 10 * left + 5
        manifest = tier.expire(10, Retention(-1, -1, start, size, 0))
        assert manifest.log_start_offset == manifest.start_offset == start
        assert bases(store, manifest) == all_of(20, 20 - left)
    assert len(objects(store)) == left
    sound(store)


def test_retention_without_due_segments_reads_no_archive(store, tier):
    filled(tier)
    by_time = Retention(1_000_000, 1 << 40, 0, 0, 1000)
    tier.expire(1_001_009, by_time)
    store.read.clear()
    for now_ms in range(1_001_000, 1_001_009):
        tier.expire(now_ms, by_time)
    assert not store.read


def test_an_interrupted_removal_is_continued(store):
    """Segments are deleted before the archive that names them, so no failure leaves an unnamed segment."""
    left = []
    faulty = FaultyStore(store, lambda operation, path: left.pop() if left else None)
    tier = tier_of(faulty, spill_limits=LIMITS)
    filled(tier)
    everything = Retention(0, -1, 0, 0, 0)
    for step in range(30):
        left[:] = ["after", *[None] * step]
        with suppress(Unavailable):
            tier.expire(10_000, everything)
        left.clear()
    manifest = tier.expire(10_000, everything)
    assert (manifest.archives, manifest.segments) == ((), ())
    assert (objects(store), archives(store)) == ([], [])


def test_a_disabled_tier_leaves_no_object_and_can_be_enabled_again(store, tier):
    made = filled(tier)
    tier.withdraw(50, 0)
    assert (tier.start_offset, tier.manifest.tiered_end) == (200, 200)
    assert tier.is_leaving
    assert tier.lookup.at(15) is None
    assert len(objects(store)) == 20
    tier.expire(1050, KEEP)
    assert (objects(store), archives(store)) == ([], [])
    assert not tier.is_leaving
    for one in made:
        archive(tier, [one], 200, now_ms=2000)
        tier.spill(2000)
    assert bases(store, tier.manifest) == all_of(20)
    assert b"".join(Fetcher(store).read(tier.lookup.at(15), 15, 1).buffers) == b"".join(
        made[1].read()
    )


def test_topic_deletion_leaves_no_archive(store, tier):
    filled(tier)
    delete_topic(store, "cluster", TOPIC_ID, 100)
    assert remove_deleted_topics(store, "cluster", [topic_id_text(TOPIC_ID)])
    assert (objects(store), archives(store)) == ([], [])


def test_small_neighbours_are_merged_before_they_spill(store):
    tier = tier_of(store, spill_limits=SpillLimits(segments=10, kept=8, archive_segments=6))
    made, end = segments(30)
    for one in made:
        archive(tier, [one], end)
        if run_of := tier.mergeable(MergeLimits(1 << 20, 1 << 40)):
            tier.merge(run_of, 10)
        tier.spill(10)
    assert len(bases(store, tier.manifest)) < 12
    tier.expire(5000, KEEP)
    sweep(store, now_ms=1 << 50, grace_ms=0)
    sound(store)
    for offset in range(300):
        assert Fetcher(store).read(tier.lookup.at(offset), offset, 1)


def test_a_restarted_leader_continues_from_its_disk_or_from_the_bucket(store, tier):
    filled(tier, 9)
    for node, local in ((2, tier.manifest_bytes()), (3, b"")):
        made = tier_of(store, node=node, epoch=node, hint=local, spill_limits=LIMITS)
        assert bases(store, made.manifest) == all_of(9)
        assert made.tiered_end == 90


def test_a_damaged_object_is_named_and_nothing_is_swept(store, tier):
    filled(tier)
    path = archives(store)[0]
    named = [tier.manifest.archive_path(one) for one in tier.manifest.live_archives()]
    path = named[1]
    damage(store, path)
    problems = verify(store, now_ms=1 << 50, grace_ms=0)
    assert [(one.path, one.orphan) for one in problems if not one.orphan] == [(path, False)]
    with pytest.raises(Corrupt, match="nothing was removed"):
        sweep(store, now_ms=1 << 50, grace_ms=0)
    fresh = tier_of(store, node=2, epoch=2)
    with pytest.raises(Corrupt, match=path):
        fresh.lookup.at(75)
    assert fresh.lookup.at(15).entry.base_offset == 10
    store.delete([path])
    problems = verify(store, now_ms=1 << 50, grace_ms=0)
    assert [one.path for one in problems if not one.orphan] == [path]


def damage(store, path):
    data = bytearray(store.get(path))
    data[50] ^= 1
    store.put(path, [bytes(data)])


def test_a_damaged_archive_delays_younger_segments_until_it_expires_completely(store, tier):
    filled(tier)
    path = tier.manifest.archive_path(next(tier.manifest.live_archives()))
    damage(store, path)
    fresh = tier_of(store, node=2, epoch=2)

    def expired(now_ms):
        return fresh.expire(now_ms, Retention(1000, -1, 0, 0, grace_ms=100))

    assert expired(2049).start_offset == 0, "no segment may expire while the archive is unreadable"
    assert list(fresh.damage) == [path]
    assert path in fresh.damage[path]
    assert expired(2070).start_offset == 70, "the whole archive is due, and one segment of the next"
    assert len(objects(store)) == 20
    manifest = expired(2170)
    assert (path in archives(store), fresh.damage) == (False, {})
    assert bases(store, manifest) == all_of(20, 17), "younger segments expire as before"
    expired(2270)
    left = verify(store, now_ms=1 << 50, grace_ms=0)
    assert [one.orphan for one in left] == [True] * 6, "only a sweep finds the unnamed segments"
    sweep(store, now_ms=1 << 50, grace_ms=0)
    assert len(objects(store)) == 3
    sound(store)


@pytest.mark.parametrize("lost", [False, True])
def test_a_damaged_archive_does_not_grow_and_its_tier_can_be_disabled(store, tier, lost):
    filled(tier, 6)
    (last,) = tier.manifest.live_archives()
    path = tier.manifest.archive_path(last)
    store.delete([path]) if lost else damage(store, path)
    fresh = tier_of(store, node=2, epoch=2, spill_limits=LIMITS)
    made, end = segments(14)
    for one in made:
        archive(fresh, [one], end, now_ms=20)
        fresh.spill(20)
    live = list(fresh.manifest.live_archives())
    assert live[0] == last
    assert [one.segments for one in live[1:]] == [6, 2]
    assert len([one for one in fresh.manifest.segments if one.state.startswith("COPY")]) == 2
    for offset in range(40, 140):
        assert Fetcher(store).read(fresh.lookup.at(offset), offset, 1)
    with pytest.raises(Corrupt, match=path):
        fresh.lookup.at(15)
    fresh.withdraw(30, 0)
    fresh.expire(2000, KEEP)
    assert not fresh.is_leaving
    sweep(store, now_ms=1 << 50, grace_ms=0)
    assert (objects(store), archives(store)) == ([], [])


def test_an_archive_that_was_damaged_in_transfer_is_read_again(store, tier):
    filled(tier)
    faults = []
    faulty = FaultyStore(store, lambda operation, path: faults.pop() if faults else None)
    fresh = tier_of(faulty, node=2, epoch=2)
    for fault in ("wrong", "torn"):
        faults[:] = [fault]
        assert fresh.lookup.at(15 if fault == "wrong" else 75)
        assert (faults, fresh.damage) == ([], {})


def test_an_archive_that_no_manifest_names_is_an_orphan(store, tier):
    filled(tier)
    stray = archives(store)[0][:-22] + "A" * 22
    store.put(stray, [b"x"])
    assert [one.path for one in verify(store, now_ms=1 << 50, grace_ms=0)] == [stray]
    assert [one.path for one in sweep(store, now_ms=1 << 50, grace_ms=0)] == [stray]
    sound(store)


def test_a_put_of_unknown_outcome_leaves_an_orphan_at_most(store):
    failing = []
    faulty = FaultyStore(store, lambda operation, path: failing.pop() if failing else None)
    tier = tier_of(faulty, spill_limits=LIMITS)
    made, end = segments(5)
    archive(tier, made, end)
    failing.append("after")
    with pytest.raises(Unavailable):
        tier.spill(10)
    assert tier.manifest.archives == ()
    tier.spill(10)
    assert bases(store, tier.manifest) == all_of(5)
    assert len(sweep(store, now_ms=1 << 50, grace_ms=0)) == 1
    sound(store)


def test_a_manifest_without_archives_is_of_format_1_and_one_with_them_of_format_2(store, tier):
    made, end = segments(1)
    archive(tier, made, end)
    assert b'"format":1,' in encode(tier.manifest)
    filled(tier)
    assert b'"format":2,' in encode(tier.manifest)
    assert decode(encode(tier.manifest), "here").archives == tier.manifest.archives


def ten_years(store):
    """Return a partition's tier of 87,600 hourly segments: most of them as an earlier release left them, the last 250
    archived and spilled as a leader does.
    """
    tier = tier_of(store)
    entries = hours(87_600)
    before = entries[:-250]
    end = before[-1].last_offset + 1
    tier.manifest = replace(tier.manifest, segments=tuple(before), tiered_end=end)
    for number, entry in enumerate(entries[-250:]):
        tier.spill(number)

        def added(tip, entry=entry):
            end = entry.last_offset + 1
            return replace(tip, segments=(*tip.segments, entry), tiered_end=end)

        tier._commit(added, number)
        tier.expire(number + 1000, KEEP)
    return tier, entries


def test_ten_years_of_hours_take_a_hundred_bytes_a_segment_and_a_lookup_opens_two_archives(store):
    tier, entries = ten_years(store)
    sizes = {
        info.path: info.size for info in store.list("") if info.path.startswith(tier.folder.prefix)
    }
    assert sum(sizes.values()) / len(entries) < 100, "the bytes of all stored manifest versions"
    newest = run(store, load_latest(tier.folder.prefix))
    assert len(encode(newest)) < 64 << 10
    start = entries[0].min_timestamp
    for first, last in [
        (0, 87_599),
        (40_000, 80_000),
        (65_530, 65_540),
        (80_000, 80_024),
        (87_590, 87_599),
    ]:
        bucket = open_bucket(store)
        store.read.clear()
        manifest = bucket.manifest(bucket.topic("topic"), 0)
        since = start + first * HOUR
        found = next(bucket.archives.live(manifest, since_ms=since))
        until = next(bucket.archives.live(manifest, since_ms=start + last * HOUR))
        held = list(
            bucket.archives.live(
                manifest, first=found.entry.base_offset, end=until.entry.last_offset + 1
            )
        )
        assert [one.entry for one in held] == entries[first : last + 1]
        opened = [path for path in store.read if "/archive/" in path]
        assert len(set(opened)) == len(opened) <= 2, opened
