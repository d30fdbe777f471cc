"""Pinned objects stay until the query has read them; unpinned expired ones are deleted in bounded time.

Method: a partition's tier with its own steady clock, jumping wall times, and leases that the test puts.
"""

import pytest
from msgspec.structs import replace
from tests.unit.tier.writing.test_spilling import LIMITS, filled
from tests.unit.tier.writing.test_tier_writer import TOPIC_ID, archive, objects, segments, tier_of

from stratalog.adapters.object_store import MemoryStore
from stratalog.tier.bucket.identity import claim_bucket, register_topic
from stratalog.tier.bucket.leases import (
    LEASE_MS,
    LEASE_MS_MAX,
    Lease,
    Leases,
    put_lease,
    release_lease,
)
from stratalog.tier.checking.verify import sweep, verify
from stratalog.tier.reading.archives import ArchiveManifests
from stratalog.tier.reading.fetcher import Fetcher
from stratalog.tier.writing.merging import MergeLimits
from stratalog.tier.writing.tier_writer import Retention
from stratalog.wire.ids import topic_id_text

GRACE = 1000
NOTHING_KEPT = Retention(0, -1, 0, 0, GRACE)
LATE = 1 << 45
"""A wall time at which every record is older than retention."""


class Ticking:
    """A steady clock."""

    def __init__(self):
        self.now = 5_000_000

    def __call__(self):
        return self.now


@pytest.fixture
def steady():
    return Ticking()


@pytest.fixture
def store():
    made = MemoryStore("memory://leases")
    claim_bucket(made, "cluster", 0)
    register_topic(made, "cluster", TOPIC_ID, "topic", 1, {}, 0)
    return made


def leader(store, steady, node=1):
    leases = Leases(store, "cluster")
    return tier_of(
        store, node=node, epoch=node, spill_limits=LIMITS, steady_ms=steady, leases=leases
    )


@pytest.fixture
def tier(store, steady):
    return leader(store, steady)


def lease_on(tier, version, lease_id="A" * 22, partition="0"):
    versions = {topic_id_text(TOPIC_ID): {partition: version}}
    return Lease(cluster_id="cluster", id=lease_id, holder="a test", versions=versions)


def renew(store, lease):
    """Put the lease again with a later store time, as if minutes had passed."""
    before = [info.modified_ms for info in store.list(lease.path)]
    while [info.modified_ms for info in store.list(lease.path)] == before:
        put_lease(store, lease)


def leases(store):
    return [info.path for info in store.list("") if "/leases/" in info.path]


def readable(store, manifest):
    """Read every segment that a pinned manifest names."""
    fetcher = Fetcher(store)
    live = list(ArchiveManifests(store).live(manifest))
    return [b"".join(fetcher.read(one, one.entry.base_offset, 1).buffers) for one in live]


def test_pinned_segments_stay_until_the_lease_is_released(store, tier, steady):
    made = filled(tier)
    pinned = tier.manifest
    lease = lease_on(tier, pinned.version)
    put_lease(store, lease)
    for _ in range(20):
        steady.now += LEASE_MS // 3
        renew(store, lease)
        tier.expire(LATE, NOTHING_KEPT)
    assert tier.start_offset == 200, "a segment is still in the log"
    assert readable(store, pinned) == [b"".join(one.read()) for one in made]
    assert verify(store, now_ms=1 << 44, grace_ms=1 << 45) == []
    sweep(store, now_ms=1 << 44, grace_ms=0)
    assert readable(store, pinned)
    release_lease(store, lease)
    tier.expire(LATE, NOTHING_KEPT)
    assert objects(store) == []
    assert (tier.manifest.segments, tier.manifest.archives) == ((), ())


def test_merging_and_disabling_the_tier_respect_a_lease(store, tier, steady):
    made, end = segments(8)
    archive(tier, made, end)
    pinned = tier.manifest
    put_lease(store, lease_on(tier, pinned.version))
    tier.merge(tier.mergeable(MergeLimits(1 << 20, 1 << 40)), 10)
    steady.now += 2 * GRACE
    tier.expire(10, Retention(-1, -1, 0, 0, GRACE))
    assert len(objects(store)) == 9
    tier.withdraw(10, 0)
    steady.now += 2 * GRACE
    tier.expire(10, Retention(-1, -1, 0, 0, GRACE))
    assert readable(store, pinned) == [b"".join(one.read()) for one in made]


def test_a_lease_on_a_later_version_or_another_partition_holds_nothing_back(store, tier, steady):
    made, end = segments(3)
    archive(tier, made, end)
    tier.expire(1_000_000, Retention(-1, -1, 10, 0, GRACE))
    put_lease(store, lease_on(tier, tier.manifest.version, "B" * 22))
    put_lease(store, lease_on(tier, 1, "C" * 22, partition="1"))
    steady.now += GRACE
    tier.expire(1_000_000, Retention(-1, -1, 10, 0, GRACE))
    assert len(objects(store)) == 2
    tier.expire(LATE, NOTHING_KEPT)
    steady.now += GRACE
    tier.expire(LATE, NOTHING_KEPT)
    assert len(objects(store)) == 2, "the pinned version names these segments"


def test_a_lease_that_is_not_renewed_ends_and_is_removed(store, tier, steady):
    """After a reader's crash its segments are deleted LEASE_MS after the leader first saw the lease."""
    filled(tier)
    put_lease(store, lease_on(tier, tier.manifest.version))
    tier.expire(LATE, NOTHING_KEPT)
    steady.now += GRACE
    for _ in range(10):
        tier.expire(LATE, NOTHING_KEPT)
        assert len(objects(store)) == 20
        steady.now += LEASE_MS // 10
    tier.expire(LATE, NOTHING_KEPT)
    assert (objects(store), leases(store)) == ([], [])


def test_an_unreadable_lease_pins_all_segments_for_the_same_time(store, tier, steady):
    filled(tier)
    put_lease(store, lease_on(tier, 1 << 40))
    (path,) = leases(store)
    store.put(path, [b"torn"])
    tier.expire(LATE, NOTHING_KEPT)
    steady.now += GRACE
    tier.expire(LATE, NOTHING_KEPT)
    assert len(objects(store)) == 20
    steady.now += LEASE_MS
    tier.expire(LATE, NOTHING_KEPT)
    assert objects(store) == []


@pytest.mark.parametrize("step", [-(10**9), 10**9])
def test_the_grace_is_elapsed_time_whatever_the_wall_clock(store, tier, steady, step):
    made, end = segments(3)
    archive(tier, made, end, now_ms=LATE)
    tier.expire(LATE, NOTHING_KEPT)
    tier.expire(LATE + step, NOTHING_KEPT)
    steady.now += GRACE - 1
    tier.expire(LATE + 2 * step, NOTHING_KEPT)
    assert len(objects(store)) == 3
    steady.now += 1
    tier.expire(LATE - step, NOTHING_KEPT)
    assert objects(store) == []


def test_a_new_leader_restarts_the_grace(store, tier, steady):
    made, end = segments(3)
    archive(tier, made, end)
    tier.expire(LATE, NOTHING_KEPT)
    steady.now += GRACE
    later = leader(store, steady, node=2)
    later.expire(LATE + 10**9, NOTHING_KEPT)
    assert len(objects(store)) == 3
    steady.now += GRACE
    later.expire(LATE, NOTHING_KEPT)
    assert objects(store) == []


@pytest.mark.parametrize(
    ("says", "lives_ms"),
    [(5000, 5000), (LEASE_MS_MAX - 1, LEASE_MS_MAX - 1), (1 << 60, LEASE_MS_MAX)],
)
def test_a_lease_states_its_duration_up_to_a_limit(store, tier, steady, says, lives_ms):
    filled(tier)
    put_lease(store, replace(lease_on(tier, tier.manifest.version), lasts_ms=says))
    tier.expire(LATE, NOTHING_KEPT)
    steady.now += GRACE
    tier.expire(LATE, NOTHING_KEPT)
    steady.now += lives_ms - 1
    tier.expire(LATE, NOTHING_KEPT)
    assert len(objects(store)) == 20
    steady.now += 1
    tier.expire(LATE, NOTHING_KEPT)
    assert (objects(store), leases(store)) == ([], [])


@pytest.mark.parametrize("lives_ms", [LEASE_MS, 5000, 6 * LEASE_MS])
def test_an_abandoned_lease_is_an_orphan_after_its_time_and_a_sweep_takes_it(store, tier, lives_ms):
    put_lease(store, replace(lease_on(tier, 1), lasts_ms=lives_ms))
    (info,) = [one for one in store.list("") if "/leases/" in one.path]
    ended = info.modified_ms + lives_ms
    assert sweep(store, now_ms=ended - 1, grace_ms=0) == []
    assert [one.path for one in sweep(store, now_ms=ended, grace_ms=0)] == [info.path]
