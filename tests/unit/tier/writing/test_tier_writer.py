"""One partition's part of the bucket: uploads, lookups, expiry, removal, and the objects that a crash leaves."""

import pytest
from tests.faulty_store import FaultyStore
from tests.unit.tier.segments import CountingEntropy, closed, log_bytes

from stratalog.adapters.object_store import MemoryStore
from stratalog.errors import Corrupt, Fenced, Unavailable
from stratalog.tier.bucket.commit import Writer
from stratalog.tier.formats.manifest import SegmentState, encode
from stratalog.tier.formats.paths import segment_name
from stratalog.tier.reading.fetcher import Fetcher
from stratalog.tier.writing.archiver import PartitionFolder
from stratalog.tier.writing.tier_writer import (
    ORPHAN_GRACE_MS,
    Retention,
    TierWriter,
    WriterContext,
    exists,
)

TOPIC_ID = CountingEntropy(7).uuid()
KEEP = Retention(ms=-1, bytes=-1, log_start_offset=0, local_only_bytes=0, grace_ms=1000)


FOLDER = PartitionFolder("cluster", TOPIC_ID, 0)


def tier_of(store, node=1, epoch=1, *, entropy=None, hint=None, **options):
    """Return the writer of `node` as the leader of `epoch`."""
    context = WriterContext(store, entropy or CountingEntropy(1000 * node), **options)
    writer = Writer(node, epoch)
    return TierWriter.activate(context, FOLDER, "topic", writer, local_manifest=hint, now_ms=1)


def segments(count, first=0, each=10):
    """Return segments of `each` records, one record each millisecond, and their end offset."""
    made = []
    base = first
    for _ in range(count):
        data, end = log_bytes(base, [each])
        made.append(closed(data, base, end))
        base = end
    return made, base


def archive(tier, made, end, now_ms=10, start=0):
    return tier.archive(made, last_stable_offset=end, log_start_offset=start, now_ms=now_ms)


def objects(store):
    return [info.path for info in store.list("") if info.path.endswith(".seg")]


@pytest.fixture
def store():
    return MemoryStore("memory://unit")


@pytest.fixture
def tier(store):
    return tier_of(store)


def test_a_partition_without_segments_has_an_empty_tier(store):
    tier = tier_of(store, epoch=5)
    manifest = tier.manifest
    assert (manifest.version, manifest.leader_epoch, manifest.segments) == (1, 5, ())
    assert (tier.tiered_end, tier.start_offset, tier.lookup.at(0)) == (0, 0, None)
    assert tier.lookup.at_timestamp(0) is None
    assert tier.lookup.at_max_timestamp() is None


def test_offsets_and_times_find_their_segment(store, tier):
    made, end = segments(3)
    manifest = archive(tier, made, end)
    assert (manifest.version, tier.tiered_end, tier.start_offset) == (2, 30, 0)
    found = [tier.lookup.at(offset).entry.base_offset for offset in (0, 9, 10, 29)]
    assert found == [0, 0, 10, 20]
    assert tier.lookup.at(30) is None
    assert tier.lookup.at_timestamp(1010).entry.base_offset == 10
    assert tier.lookup.at_timestamp(1010, 25).entry.base_offset == 20
    assert tier.lookup.at_timestamp(1030) is None
    assert tier.lookup.at_max_timestamp().entry.base_offset == 20
    assert [segment.path for segment in manifest.recent()] == objects(store)


def test_only_stable_and_new_segments_are_uploaded(store, tier):
    made, end = segments(3)
    archive(tier, made, 25)
    assert tier.tiered_end == 20
    archive(tier, made, end)
    assert tier.tiered_end == 30
    before = tier.manifest
    archive(tier, made, end)
    assert tier.manifest == before
    assert len(objects(store)) == 3


def test_the_tier_continues_after_a_gap_only_if_the_log_starts_there(tier):
    made, end = segments(1, first=50)
    archive(tier, made, end)
    assert tier.tiered_end == 0
    archive(tier, made, end, start=50)
    assert (tier.tiered_end, tier.start_offset) == (60, 50)


def test_another_leaders_segment_edges_do_not_overlap(store, tier):
    made, end = segments(2)
    archive(tier, made, end)
    later = tier_of(store, node=2, epoch=2)
    data, end = log_bytes(0, [10, 10, 10])
    archive(later, [closed(data, 0, end)], end)
    assert [e.base_offset for e in later.manifest.segments] == [0, 10, 20]
    assert [segment_name(path).base_offset for path in objects(store)] == [0, 10, 20]


def test_a_fenced_leader_changes_nothing(store, tier):
    made, end = segments(1)
    tier_of(store, node=2, epoch=2)
    with pytest.raises(Fenced):
        archive(tier, made, end)
    with pytest.raises(Fenced):
        tier.expire(1 << 40, Retention(0, 0, 100, 0, 0))
    assert tier_of(store, node=2, epoch=3).manifest.segments == ()


def test_a_restart_with_the_local_manifest_lists_nothing(store, tier):
    made, end = segments(2)
    archive(tier, made, end)
    watched = FaultyStore(store)
    again = tier_of(watched, epoch=2, hint=tier.manifest_bytes())
    assert again.tiered_end == 20
    assert watched.requests("list") == []


@pytest.mark.parametrize("hint", [b"", b"garbage", "foreign"])
def test_an_unusable_local_manifest_is_ignored(store, tier, hint):
    made, end = segments(2)
    archive(tier, made, end)
    if hint == "foreign":
        folder = PartitionFolder("other", TOPIC_ID, 0)
        context = WriterContext(store, CountingEntropy())
        other = TierWriter.activate(context, folder, "topic", Writer(1, 1), now_ms=1)
        hint = encode(other.manifest)
    again = tier_of(store, epoch=2, hint=hint)
    assert again.tiered_end == 20


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_of_unknown_outcome_is_repeated_without_a_second_upload(store, when):
    failing = {"put_if_absent": None, "get": None}
    watched = FaultyStore(store, lambda operation, path: failing.get(operation))
    tier = tier_of(watched)
    made, end = segments(2)
    failing.update(put_if_absent=when, get="before")
    with pytest.raises(Unavailable):
        archive(tier, made, end)
    assert tier.tiered_end == 0  # not confirmed: no local segment may be deleted
    failing.update(put_if_absent=None, get=None)
    archive(tier, made, end)
    assert tier.tiered_end == 20
    assert len(watched.requests("put")) == len(objects(store)) == 2
    assert [entry.base_offset for entry in tier.manifest.segments] == [0, 10]


def test_an_uncommitted_upload_that_a_sweep_may_remove_is_repeated(store):
    failing = {}
    tier = tier_of(FaultyStore(store, lambda operation, path: failing.get(operation)))
    made, end = segments(1)
    failing["put_if_absent"] = "before"
    with pytest.raises(Unavailable):
        archive(tier, made, end, now_ms=10)
    failing.clear()
    archive(tier, made, end, now_ms=10 + ORPHAN_GRACE_MS)
    assert len(objects(store)) == 2  # the first is an orphan now
    assert tier.lookup.at(0).path == objects(store)[1]


def test_a_crash_between_upload_and_commit_leaves_an_orphan_and_no_entry(store):
    failing = {}
    tier = tier_of(FaultyStore(store, lambda operation, path: failing.get(operation)))
    made, end = segments(1)
    failing["put_if_absent"] = "before"
    with pytest.raises(Unavailable):
        archive(tier, made, end)
    again = tier_of(store, epoch=2, entropy=CountingEntropy(5000))
    assert (again.tiered_end, len(objects(store))) == (0, 1)
    archive(again, made, end)
    assert (again.tiered_end, len(objects(store))) == (10, 2)


def test_segments_uploaded_before_a_corrupt_one_are_committed(store, tier):
    made, end = segments(3)
    data, _ = log_bytes(10, [10])
    made[1] = closed(data[:-1] + b"?", 10, 20)
    with pytest.raises(Corrupt, match="local segment 10"):
        archive(tier, made, end)
    assert (tier.tiered_end, len(objects(store))) == (10, 1)


def test_retention_by_time_expires_whole_segments_and_removes_them_after_the_grace(store, tier):
    made, end = segments(3)  # greatest timestamps 1009, 1019, 1029
    archive(tier, made, end)
    by_time = Retention(ms=100, bytes=-1, log_start_offset=0, local_only_bytes=0, grace_ms=1000)
    assert tier.expire(1109, by_time).log_start_offset == 0
    manifest = tier.expire(1119, by_time)
    assert (manifest.log_start_offset, tier.start_offset) == (10, 10)
    assert manifest.segments[0].state is SegmentState.DELETE_STARTED
    assert tier.lookup.at(9) is None
    assert len(objects(store)) == 3  # readers with the older version continue
    tier.expire(2118, KEEP)
    assert len(objects(store)) == 3
    manifest = tier.expire(2119, KEEP)
    assert len(objects(store)) == 2
    assert [entry.base_offset for entry in manifest.segments] == [10, 20]
    assert manifest.log_start_offset == 10


def test_retention_by_size_counts_segments_that_are_only_local(tier):
    made, end = segments(3, first=100)
    size = archive(tier, made, end, start=100).segments[0].data_size

    def log_start(limit, local):
        return tier.expire(10, Retention(-1, limit, 100, local, 0)).log_start_offset

    assert log_start(2 * size + 1, 0) == 100
    assert log_start(2 * size, 0) == 110
    assert log_start(2 * size, size - 1) == 110
    assert log_start(2 * size, size) == 120
    assert log_start(0, 0) == 130
    assert tier.manifest.segments == ()
    assert (tier.tiered_end, tier.start_offset) == (130, 130)


def test_deleted_records_remove_their_segments(tier):
    made, end = segments(3)
    archive(tier, made, end)
    manifest = tier.expire(10, Retention(-1, -1, 15, 0, 0))
    assert (manifest.log_start_offset, tier.start_offset) == (15, 15)
    assert [entry.base_offset for entry in manifest.segments] == [10, 20]
    assert tier.lookup.at(14) is None
    assert tier.lookup.at(15).entry.base_offset == 10


def test_no_segment_is_removed_before_the_version_without_it_is_confirmed(store):
    failing = {}
    tier = tier_of(FaultyStore(store, lambda operation, path: failing.get(operation)))
    made, end = segments(2)
    archive(tier, made, end)
    failing.update(put_if_absent="after", get="before")  # the put succeeds; its answer is lost
    with pytest.raises(Unavailable):
        tier.expire(10, Retention(-1, -1, 10, 0, 0))
    assert len(objects(store)) == 2
    failing.clear()
    tier.expire(10, Retention(-1, -1, 10, 0, 0))
    assert len(objects(store)) == 1


def test_a_failed_removal_is_repeated(store):
    failing = {}
    tier = tier_of(FaultyStore(store, lambda operation, path: failing.get(operation)))
    made, end = segments(2)
    archive(tier, made, end)
    gone = Retention(-1, -1, 10, 0, 0)
    failing["delete"] = "after"
    with pytest.raises(Unavailable):
        tier.expire(10, gone)
    failing.clear()
    assert [entry.base_offset for entry in tier.expire(10, gone).segments] == [10]


def test_a_reader_with_an_older_version_continues_during_the_grace(store, tier):
    made, end = segments(2)
    pinned = archive(tier, made, end)
    tier.expire(10, Retention(-1, -1, 20, 0, 1000))
    tier.expire(1009, Retention(-1, -1, 20, 0, 1000))
    fetcher = Fetcher(store)
    for segment in pinned.recent():
        assert fetcher.read(segment, segment.entry.base_offset, 1).size > 0


def test_a_disabled_tier_is_empty_for_readers_first_and_then_in_the_bucket(store, tier):
    made, end = segments(3)
    archive(tier, made, end)
    manifest = tier.withdraw(50, 10)
    assert list(manifest.recent()) == []
    assert (manifest.start_offset, manifest.tiered_end, manifest.log_start_offset) == (30, 30, 10)
    assert tier.withdraw(60, 10).version == manifest.version, "a second call must write no version"
    assert len(objects(store)) == 3
    assert tier.expire(1049, Retention(-1, -1, 10, 0, 1000)).segments
    assert not tier.expire(1050, Retention(-1, -1, 10, 0, 1000)).segments
    assert objects(store) == []


def test_an_enabled_tier_gets_the_local_segments_once_the_old_tier_is_removed(store, tier):
    made, end = segments(3)
    archive(tier, made, end)
    tier.withdraw(50, 10)
    assert (tier.tiered_end, tier.is_leaving) == (10, True)
    assert archive(tier, made[1:], end, start=10).tiered_end == 30, "the old tier still has objects"
    tier.expire(50, Retention(-1, -1, 10, 0, 0))
    assert not tier.is_leaving
    manifest = archive(tier, made[1:2], 20, start=10)
    assert (manifest.start_offset, manifest.tiered_end, tier.tiered_end) == (10, 20, 20)
    manifest = archive(tier, made[1:], end, start=10)
    assert [entry.base_offset for entry in manifest.segments] == [10, 20]


def test_a_partition_that_the_bucket_lacks_is_found_missing(store, tier):
    assert exists(store, FOLDER)
    assert not exists(MemoryStore("memory://empty"), FOLDER)


def test_old_manifest_versions_are_pruned(store, tier):
    made, end = segments(298, each=1)
    for one in made:
        archive(tier, [one], end)
    assert tier.manifest.version == 299
    versions = [info for info in store.list("") if "/manifest/" in info.path]
    assert len(versions) <= 64 + 16 + 1
    fresh = tier_of(store, epoch=300)
    assert fresh.manifest.version == 300
    assert fresh.manifest.boundary == (299 - 16) // 64
